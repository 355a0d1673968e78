"""The dispatcher: claims lanes with due deliveries, and sends the deliveries of each one after the other.

Hides leases, retries and their delays. Invariants: of a conversation and a webhook, one process at a time sends one
event at a time, in the order of the commits; the next event waits until the earlier one is delivered or dead. The
outcome of an attempt is recorded after it, by the holder of the lane only: an attempt whose process died in between is
repeated with the same id. No transaction is open while a receiver is waited for.

Deliveries are not jobs: a slow receiver would occupy the slots of the worker, and jobs have no order.
"""

import asyncio
import random
from collections import Counter
from contextlib import AbstractAsyncContextManager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Final, Generic, TypeVar

from prometheus_client import CollectorRegistry

from app.audit.schemas import Action, ObjectKind
from app.audit.service import record
from app.core.database.transactions import Database, Transaction
from app.core.errors import AppError
from app.core.ids import TenantId, new_uuid
from app.core.telemetry import error_type, get_logger
from app.core.threads import running
from app.core.tracing.metrics import counter, export
from app.providers.schemas import MAX_SENDS, SEND_TIMEOUT_S, DeliveryError, EventSender, SendResult
from app.tenancy.schemas import job_caller
from app.webhooks import delivery_store, store
from app.webhooks.delivery_store import DeliveryRow, LaneKey, ReceiverKey
from app.webhooks.outbox import POLL_S
from app.webhooks.rendering import EventRenderer
from app.webhooks.schemas import TEST_EVENT, DeliveryStatus, DisabledReason
from app.webhooks.signing import secret_key, signed_headers
from app.webhooks.store import WebhookRow

_SENT_PER_CLAIM: Final = 100
"""Deliveries of a lane after which other lanes get the turn."""
_LEASE_MARGIN_S: Final = 30.0
_AGAIN_AFTER_ERROR_S: Final = 5.0
_GONE: Final = 410
_ATTEMPTS_PER_RECEIVER: Final = 4
"""Attempts at once to one webhook: few receivers are made for more, and the others get their turn."""
_RETRY_BASE_S, _FACTOR, _RETRY_MAX_S = 5.0, 3.0, 14_400.0
"""Delays of 5 s, 15 s, 45 s, ... and at most four hours: short faults cost little, and long ones few attempts."""
_DISABLE_AFTER_S: Final = 432_000.0
"""Five days of failures: a receiver that is down over a long weekend keeps its webhook."""
_MAX_EXPONENT: Final = 32
_Owner = TypeVar("_Owner")


@dataclass(frozen=True, slots=True)
class _Attempt:
    """An attempt that has ended and is not recorded yet. `was_failing`: earlier attempts to the webhook had failed."""

    row: DeliveryRow
    result: SendResult
    was_failing: bool


@dataclass(frozen=True, slots=True)
class _Next:
    """The delivery to send next, and its receiver."""

    row: DeliveryRow
    webhook: WebhookRow


class _Shares(Generic[_Owner]):
    """Places that owners use, of which each may use a share."""

    def __init__(self, share: int) -> None:
        self.counts: Counter[_Owner] = Counter()
        self._share = share

    @property
    def used_up(self) -> list[_Owner]:
        """Return the owners that use their whole share."""
        return [owner for owner, count in self.counts.items() if count >= self._share]

    @property
    def least_free(self) -> int:
        """Return the free places of the owner with the fewest, those that use their share left out."""
        return self._share - max((count for count in self.counts.values() if count < self._share), default=0)


class Dispatcher:
    """Sends the due deliveries of the installation from this process."""

    def __init__(
        self,
        database: Database,
        ops: Database,
        *,
        renderer: EventRenderer,
        sender: EventSender,
        secret: bytes,
        user_agent: str,
        grace_s: float,
    ) -> None:
        self._database = database
        self._ops = ops
        self._renderer = renderer
        self._sender = sender
        self._secret = secret
        self._user_agent = user_agent
        self._grace_s = grace_s
        self._process = new_uuid()
        self._lease = timedelta(seconds=2 * SEND_TIMEOUT_S + _LEASE_MARGIN_S)
        self._running: dict[LaneKey, asyncio.Task[None]] = {}
        self._due = asyncio.Event()
        self._stopping = False
        self._log = get_logger()
        self.counts: Counter[str] = Counter()
        """Attempts of this process by outcome: `delivered`, `failed`, `dead`."""

    def wake(self) -> None:
        """Look for due deliveries now: a transaction has stored some."""
        self._due.set()

    async def run(self) -> None:
        """Send due deliveries until `stop`, then wait for the running attempts."""
        while not self._stopping:
            self._due.clear()
            claimed = await self._claim()
            if not claimed or self._free <= 0:
                await self._wait()
        await self._end()

    def stop(self) -> None:
        """Stop claiming lanes, and let `run` end."""
        self._stopping = True
        self._due.set()

    async def _end(self) -> None:
        """Let the running attempts end for a while; give the lanes of the others back, whose events are sent again."""
        if self._running:
            await asyncio.wait(self._running.values(), timeout=self._grace_s)
        left = dict(self._running)
        for task in left.values():
            task.cancel()
        await asyncio.gather(*left.values(), return_exceptions=True)
        for lane in left:
            await self._release(lane, delay_s=0.0)

    async def drain(self) -> int:
        """Send until nothing is due; return the number of lanes. For tests."""
        done = 0
        while claimed := await self._claim():
            done += claimed
            await asyncio.gather(*self._running.values())
        return done

    @property
    def _free(self) -> int:
        return MAX_SENDS - len(self._running)

    async def _wait(self) -> None:
        with suppress(TimeoutError):
            async with asyncio.timeout(POLL_S):
                await self._due.wait()

    async def _claim(self) -> int:
        """Claim due lanes for the free places; return their number.

        A webhook gets only its share of them, and a tenant at most half.
        """
        claimed = 0
        while self._free > 0:
            receivers = _Shares[ReceiverKey](_ATTEMPTS_PER_RECEIVER)
            tenants = _Shares[TenantId](MAX_SENDS // 2)
            receivers.counts.update(ReceiverKey(lane.tenant_id, lane.webhook_id) for lane in self._running)
            tenants.counts.update(lane.tenant_id for lane in self._running)
            limit = min(self._free, receivers.least_free, tenants.least_free)
            try:
                async with self._ops.across_tenants() as tx:
                    lanes = await delivery_store.claim(
                        tx,
                        self._process,
                        limit=limit,
                        lease=self._lease,
                        busy=receivers.used_up,
                        busy_tenants=tenants.used_up,
                    )
            except AppError as error:
                self._log.warning("webhooks.claim_failed", code=error.code)
                return claimed
            except Exception as error:  # noqa: BLE001 - the loop looks for due deliveries again after any exception
                self._log.error("webhooks.crashed", error_type=error_type(error), exc_info=error)
                return claimed
            for lane in lanes:
                # this process may still send the lane: its lease ended during a long attempt, or it was given back now
                task = asyncio.create_task(self._send_lane(lane, after=self._running.get(lane)))
                self._running[lane] = task
                task.add_done_callback(partial(self._end_lane, lane))
            claimed += len(lanes)
            if len(lanes) < limit:
                break
        return claimed

    def _end_lane(self, lane: LaneKey, task: asyncio.Task[None]) -> None:
        if self._running.get(lane) is task:
            del self._running[lane]
        self._due.set()

    async def _send_lane(self, lane: LaneKey, *, after: asyncio.Task[None] | None) -> None:
        """Send the deliveries of a claimed lane until one fails, none is left, or others should get the turn.

        `after`: the task of this process that sends the lane until then.
        """
        if after is not None:
            await after
        try:
            ended: _Attempt | None = None
            for _ in range(_SENT_PER_CLAIM):
                following = await self._advance(lane, ended)
                if following is None:
                    return
                result = await self._attempt_guarded(following)
                ended = _Attempt(following.row, result, was_failing=following.webhook.failing_since is not None)
                if self._stopping:
                    break
            await self._advance(lane, ended, is_last=True)
        except AppError as error:
            # the lane is due again, or its lease ends: what was sent and not recorded is sent again
            self._log.warning("webhooks.sending_failed", tenant_id=lane.tenant_id, code=error.code)
            await self._release(lane)
        except Exception as error:  # noqa: BLE001 - the other lanes are sent on after any exception
            self._log.error("webhooks.crashed", tenant_id=lane.tenant_id, error_type=error_type(error), exc_info=error)
            await self._release(lane)

    async def _release(self, lane: LaneKey, *, delay_s: float = _AGAIN_AFTER_ERROR_S) -> None:
        with suppress(AppError):  # a lease that is not released expires
            async with self._database.transaction(lane.tenant_id) as tx:
                await delivery_store.release(tx, self._process, lane, delay=timedelta(seconds=delay_s))

    async def _attempt_guarded(self, following: _Next) -> SendResult:
        """Attempt a delivery.

        Raises an AppError that may pass, such as a database that is away; every other exception is a result, so that
        the lane goes on.
        """
        try:
            return await self._attempt(following)
        except Exception as error:
            if isinstance(error, AppError) and error.retryable:
                raise
            tenant_id, kind = following.row.tenant_id, following.row.event_type
            self._log.error("delivery.crashed", tenant_id=tenant_id, kind=kind, exc_info=error)
            return SendResult(None, DeliveryError.INTERNAL)

    async def _attempt(self, following: _Next) -> SendResult:
        row, webhook = following.row, following.webhook
        body = await self._renderer.render(row, include_content=webhook.include_content)
        now = datetime.now(UTC)
        keys = [secret_key(self._secret, row.tenant_id, webhook.id, webhook.secret_version)]
        if webhook.previous_secret_until is not None and webhook.previous_secret_until > now:
            keys.append(secret_key(self._secret, row.tenant_id, webhook.id, webhook.secret_version - 1))
        headers = {
            "content-type": "application/json",
            "user-agent": self._user_agent,
            **signed_headers(row.event_id, body, keys, at=now),
        }
        return await self._sender.send(webhook.url, headers=headers, body=body)

    async def _advance(self, lane: LaneKey, ended: _Attempt | None, *, is_last: bool = False) -> _Next | None:
        """Record an attempt, and return the next delivery of the lane. None: the lane is given back.

        The webhook is locked before the lane, as by changes of webhooks.
        """
        async with self._database.transaction(lane.tenant_id) as tx:
            if ended is not None:
                await self._record_receiver(tx, ended)
            if not await delivery_store.renew(tx, self._process, lane, lease=self._lease):
                return None  # another process sends the lane, and sends this event again
            delay = None if ended is None else await self._record(tx, ended)
            webhook = await store.find(tx, lane.tenant_id, lane.webhook_id)
            row = await delivery_store.first_pending(tx, lane)
            if webhook is None or row is None:
                await delivery_store.delete_lane(tx, self._process, lane)
                return None
            if not webhook.is_enabled and row.event_type != TEST_EVENT:
                await delivery_store.park(tx, self._process, lane)
                return None
            if delay is not None or is_last:
                await delivery_store.release(tx, self._process, lane, delay=delay or timedelta(0))
                return None
        return _Next(row, webhook)

    async def _record_receiver(self, tx: Transaction, ended: _Attempt) -> None:
        """Record in the webhook whether the attempt failed; disable it after a long time of failures."""
        row, result = ended.row, ended.result
        if result.error is DeliveryError.INTERNAL:
            return  # the receiver has no part in it
        if result.error is None:
            if ended.was_failing:
                await store.record_success(tx, row.tenant_id, row.webhook_id)
            return
        webhook = await store.record_failure(tx, row.tenant_id, row.webhook_id)
        if webhook is None or webhook.failing_since is None or not webhook.is_enabled:
            return
        failing_s = (datetime.now(UTC) - webhook.failing_since).total_seconds()
        is_gone = result.status == _GONE
        if not is_gone and failing_s < _DISABLE_AFTER_S:
            return
        reason = DisabledReason.GONE if is_gone else DisabledReason.FAILING
        if await store.disable(tx, row.tenant_id, row.webhook_id, reason=reason.value):
            record(tx, job_caller(row.tenant_id), Action.WEBHOOK_DISABLE, ObjectKind.WEBHOOK, row.webhook_id)
            self._log.warning("webhook.disabled", tenant_id=row.tenant_id, kind=reason.value)

    async def _record(self, tx: Transaction, ended: _Attempt) -> timedelta | None:
        """Record the outcome in the delivery; return the delay of its retry, None if it is delivered or dead."""
        row, result = ended.row, ended.result
        now = datetime.now(UTC)
        delay: timedelta | None = None
        if result.error is None:
            status = DeliveryStatus.DELIVERED
        elif now >= row.retry_until or result.error is DeliveryError.INTERNAL:
            status = DeliveryStatus.DEAD
        else:
            status, delay = DeliveryStatus.PENDING, self._delay(row, result)
        await delivery_store.record_attempt(tx, row, status, result, now=now)
        outcome = "failed" if status is DeliveryStatus.PENDING else status.value
        tx.after_commit.append(lambda: self.counts.update([outcome]))
        if status is DeliveryStatus.DEAD:
            self._log.warning("delivery.dead", tenant_id=row.tenant_id, kind=row.event_type, status=result.status or 0)
        return delay

    def _delay(self, row: DeliveryRow, result: SendResult) -> timedelta:
        """Return the delay until the next attempt: three times as long each time, with jitter, or as asked for."""
        delay_s = min(_RETRY_BASE_S * _FACTOR ** min(row.attempts, _MAX_EXPONENT), _RETRY_MAX_S)
        # jitter, so that lanes that failed together do not return together
        delay_s *= random.uniform(0.75, 1.25)  # noqa: S311 - no cryptography
        return timedelta(seconds=max(delay_s, result.retry_after_s or 0))


def add_webhook_metrics(registry: CollectorRegistry, dispatcher: Dispatcher) -> None:
    """Export the attempts of this process as `turnkeep_webhook_attempts_total{outcome}`."""
    name, text = "turnkeep_webhook_attempts", "Attempts to deliver events to webhooks."
    outcomes = ("delivered", "failed", "dead")
    export(registry, lambda: [counter(name, text, "outcome", {of: dispatcher.counts[of] for of in outcomes})])


def dispatching(dispatcher: Dispatcher) -> AbstractAsyncContextManager[None]:
    """Run a dispatcher during the block, and stop it afterwards."""
    return running(dispatcher.run(), dispatcher.stop)
