"""Who takes part in a round of the live crash proof: a NATS server, writers' processes, and who watches leases."""

import asyncio
import json
import os
import random
import shutil
import signal
import socket
import sys
import time
from collections import Counter
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path

import asyncpg

from tests.soak.clients import Connection
from tests.soak.installation import Installation
from tests.soak.live_checks import list_open
from tests.soak.live_writer import Orders

_REPOSITORY = Path(__file__).parents[2]
_LOOK_S = 0.5


def nats_program() -> str | None:
    """Where the NATS server is, where it is installed."""
    return shutil.which("nats-server", path=f"{os.environ.get('PATH', '')}:/usr/sbin:/usr/local/bin")


class Nats:
    """A NATS server that is started again a moment after it was killed."""

    def __init__(self, chance: random.Random) -> None:
        self._chance = chance
        self._process: asyncio.subprocess.Process | None = None
        self._supervising: asyncio.Task[None] | None = None
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.port = int(probe.getsockname()[1])

    @property
    def url(self) -> str:
        """Where it listens."""
        return f"nats://127.0.0.1:{self.port}"

    async def start(self) -> None:
        """Start it, and keep it running."""
        await self._launch()
        self._supervising = asyncio.create_task(self._supervise())

    def kill(self) -> bool:
        """SIGKILL it; false when it is gone just now."""
        if self._process is None or self._process.returncode is not None:
            return False
        with suppress(ProcessLookupError):
            self._process.kill()
        return True

    async def stop(self) -> None:
        """Stop it for good."""
        if self._supervising is not None:
            self._supervising.cancel()
            await asyncio.gather(self._supervising, return_exceptions=True)
        if self.kill() and self._process is not None:
            await self._process.wait()

    async def _launch(self) -> None:
        program = nats_program()
        assert program is not None
        quiet = asyncio.subprocess.DEVNULL
        self._process = await asyncio.create_subprocess_exec(
            program, "-a", "127.0.0.1", "-p", str(self.port), stdin=quiet, stdout=quiet, stderr=quiet
        )

    async def _supervise(self) -> None:
        while True:
            assert self._process is not None
            await self._process.wait()
            await asyncio.sleep(self._chance.uniform(0.05, 2.0))
            await self._launch()


class Author:
    """One writer: its process, its log, and whether another life follows when it is killed."""

    def __init__(self, orders: Orders) -> None:
        self.orders = orders
        self.process: asyncio.subprocess.Process | None = None
        self._read = 0
        self.port: int | None = None
        self.durable_at = 0.0
        self.wrongs = 0

    async def start(self) -> None:
        """Start its process."""
        self.process = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "tests.soak.live_writer", json.dumps(asdict(self.orders)), cwd=_REPOSITORY,
            stdin=asyncio.subprocess.DEVNULL, start_new_session=True,
        )  # fmt: skip

    @property
    def alive(self) -> bool:
        """Whether its process runs."""
        return self.process is not None and self.process.returncode is None

    def kill(self) -> bool:
        """SIGKILL its process."""
        if self.process is None or not self.alive:
            return False
        with suppress(ProcessLookupError):
            self.process.kill()
        return True

    def last_lines(self) -> list[str]:
        """The end of its log."""
        return Path(self.orders.log).read_text().splitlines()[-8:]

    def read_on(self) -> None:
        """Read what its log has more."""
        try:
            with Path(self.orders.log).open("rb") as log:
                log.seek(self._read)
                text = log.read()
        except OSError:
            return
        whole = text[: text.rfind(b"\n") + 1]
        self._read += len(whole)
        for line in whole.splitlines():
            event = json.loads(line)
            if event["e"] == "connected":
                self.port = event["port"]
            elif event["e"] == "durable":
                self.durable_at = event["n"]
            elif event["e"] == "wrong":
                self.wrongs += 1


class Authors:
    """All writers of a round. A killed one comes back in a moment, or never: then another takes its place."""

    def __init__(self, orders: Orders, count: int, chance: random.Random, folder: Path) -> None:
        self._orders = orders
        self._chance = chance
        self._folder = folder
        self._made = 0
        self._returning: set[asyncio.Task[None]] = set()
        self.stopping = False
        self.all: list[Author] = []
        self.counts: Counter[str] = Counter()
        for _ in range(count):
            self._new()

    def _new(self) -> Author:
        self._made += 1
        made = {"number": self._made, "log": str(self._folder / f"writer-{self._made}.log"), "life": 0}
        author = Author(Orders(**(asdict(self._orders) | made)))
        self.all.append(author)
        return author

    async def start(self) -> None:
        """Start the first writers."""
        for author in self.all:
            await author.start()

    def read_on(self) -> None:
        """Read what the logs have more."""
        for author in self.all:
            author.read_on()

    def living(self) -> list[Author]:
        """Those that run."""
        return [author for author in self.all if author.alive]

    def kill_one(self) -> Author | None:
        """Kill one; gives who is expected back, or who comes instead."""
        living = self.living()
        if not living:
            return None
        author = self._chance.choice(living)
        if not author.kill():
            return None
        if self._chance.random() < 0.75:
            self.counts["writers that came back"] += 1
            author.orders = Orders(**(asdict(author.orders) | {"life": author.orders.life + 1}))
            back = author
        else:
            self.counts["writers that never came back"] += 1
            back = self._new()
        returning = asyncio.create_task(self._return(back))
        self._returning.add(returning)
        returning.add_done_callback(self._returning.discard)
        return back

    async def _return(self, author: Author) -> None:
        if author.process is not None:
            await author.process.wait()
        await asyncio.sleep(self._chance.uniform(0.0, 1.0))
        await author.start()

    async def stop(self, patience_s: float) -> list[str]:
        """Let them end what they have begun; says who did not."""
        await asyncio.gather(*self._returning)
        for author in self.living():
            assert author.process is not None
            author.process.send_signal(signal.SIGTERM)
        wrong: list[str] = []
        give_up = time.monotonic() + patience_s
        for author in self.all:
            if author.process is None:
                continue
            try:
                code = await asyncio.wait_for(author.process.wait(), max(0.1, give_up - time.monotonic()))
            except TimeoutError:
                wrong.append(f"writer {author.orders.number} did not end in {patience_s:.0f} s: {author.last_lines()}")
                author.process.send_signal(signal.SIGUSR1)
                await asyncio.sleep(1.0)
                author.kill()
                await author.process.wait()
            else:
                if code not in {0, -signal.SIGKILL, -signal.SIGTERM}:  # one that had just begun has no handler yet
                    wrong.append(f"writer {author.orders.number} ended with {code}")
        return wrong


class Leases:
    """Looks at open turns for as long as a round lasts: none may be open long after its writer was last heard of."""

    def __init__(self, installation: Installation, longest_s: float) -> None:
        self._installation = installation
        self._longest_s = longest_s
        self._answers_since: float | None = None
        self.longest_s = 0.0
        self.wrongs: dict[str, str] = {}

    async def watch_forever(self) -> None:
        """Look, until cancelled."""
        while True:
            await self.look()
            await asyncio.sleep(_LOOK_S)

    async def look(self) -> int:
        """Look once; says how many turns are open, -1 when the database does not answer."""
        try:
            found = await list_open(self._installation.superuser_url)
        except (OSError, TimeoutError, asyncpg.PostgresError, asyncpg.InterfaceError, asyncpg.InternalClientError):
            self._answers_since = None
            return -1
        now = time.monotonic()
        if not await self._any_ready():
            self._answers_since = None
            return len(found)
        if self._answers_since is None:
            self._answers_since = now
        # nothing can be aborted while nobody is there to do it
        answering_s = now - self._answers_since
        for turn_id, age_s in found.items():
            over_s = min(age_s, answering_s)
            self.longest_s = max(self.longest_s, over_s)
            if over_s > self._longest_s:
                self.wrongs[turn_id] = f"turn {turn_id} is open {over_s:.1f} s after its writer was last heard of"
        return len(found)

    async def _any_ready(self) -> bool:
        states = [await is_ready(port) for port in self._installation.ports]
        return any(states)


async def is_ready(port: int) -> bool:
    """Whether the server on a port says that it is ready."""
    connection = Connection(port, "")
    try:
        return (await connection.ask("GET", "/readyz", timeout_s=2.0)).status == 200
    except (OSError, EOFError, TimeoutError, ValueError):
        return False
    finally:
        connection.close()
