"""CPU time and memory of processes, read from /proc (Linux only)."""

import os
from contextlib import suppress
from pathlib import Path
from typing import Final, Literal

_TICKS_PER_S: Final = os.sysconf("SC_CLK_TCK")


def cpu_s(pid: int) -> float:
    """Return the CPU time that a process has used, in all its threads, in seconds."""
    return _cpu_fields(pid)[0]


def tree_cpu_s(pid: int) -> float:
    """Return the CPU time of a process, its running children, and the children that it has waited for, in seconds.

    For Postgres: `pid` is that of the postmaster, whose children are all the other processes of the server.
    """
    return sum(_cpu_fields(pid)) + sum(_cpu_fields(child)[0] for child in children(pid))


def children(pid: int) -> list[int]:
    """Return the pids of the direct children of a process."""
    found: list[int] = []
    for folder in Path("/proc").iterdir():
        if folder.name.isdecimal():
            with suppress(FileNotFoundError, ProcessLookupError):
                if parent(int(folder.name)) == pid:
                    found.append(int(folder.name))
    return found


def parent(pid: int) -> int:
    """Return the pid of the parent of a process."""
    return int(_stat(pid)[1])


def memory_mib(pid: int, name: Literal["VmRSS", "VmHWM"] = "VmRSS") -> float:
    """Return the resident set of a process in MiB, now or at its peak since `reset_peak_memory`."""
    status = Path(f"/proc/{pid}/status").read_text()
    line = next(line for line in status.splitlines() if line.startswith(name))
    return int(line.split()[1]) / 1024


def reset_peak_memory(pid: int) -> None:
    """Let the peak of the resident set start again from the present value."""
    Path(f"/proc/{pid}/clear_refs").write_text("5")


def _cpu_fields(pid: int) -> tuple[float, float]:
    """CPU seconds of the process itself and of its waited-for children; zeros if it has ended."""
    try:
        fields = _stat(pid)
    except (FileNotFoundError, ProcessLookupError):
        return 0.0, 0.0
    return (int(fields[11]) + int(fields[12])) / _TICKS_PER_S, (int(fields[13]) + int(fields[14])) / _TICKS_PER_S


def _stat(pid: int) -> list[str]:
    # the name of the command, in parentheses, may contain spaces
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
