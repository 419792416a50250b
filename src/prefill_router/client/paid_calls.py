"""Calls that cost money: within a budget that is never exceeded and each provider's rate limits.

No call begins unless the most that it can cost fits the budget. What counts against the limit is
the recorded costs with what is at risk, and the most that calls in flight can cost. Where that
last sum is written to disk before it grows (*exposure*), a process that is killed leaves a record
of how much may have been billed without an answer.
"""

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Protocol, final, runtime_checkable

from prefill_router.client.call_costs import CallBill, CallBound, bill_of, bound
from prefill_router.client.rate_limits import ProviderGate
from prefill_router.client.reply import Reply
from prefill_router.data import Prompt
from prefill_router.errors import UpstreamError
from prefill_router.targets import Pool, Target

_AHEAD = 1.5
"""Exposure is written as this multiple of what is needed, so that fewer writes are."""
_SLACK = 1e-9
"""Relative tolerance; more than the rounding error of all sums together."""
_BEHIND = 8
"""A written exposure over this multiple of what is needed is replaced by a smaller one."""
_LEAST = 1e-12
"""US dollars; anything less is rounding error."""


@final
class SpendingLedger:
    """Spending that counts against a limit; used from one event loop.

    Args:
        limit: US dollars; None for no limit.
        charged: US dollars that count already.
        expose: Writes to disk by how many dollars more, or fewer, may be billed for calls not
            recorded yet; its future is awaited before the call. What writes a call's record
            lowers them by its charge itself. None where each call is written by itself.
    """

    def __init__(
        self,
        limit: float | None,
        *,
        charged: float,
        expose: Callable[[float], asyncio.Future[None]] | None = None,
    ) -> None:
        self.limit = limit
        self.charged = charged
        self.unrecorded = 0.0
        self._in_flight = 0
        self._expose = expose
        self._noted = 0.0
        self._noting: asyncio.Future[None] | None = None
        self._waiting: deque[asyncio.Future[None]] = deque()

    @property
    def counted(self) -> float:
        """US dollars that count now, including the most that calls in flight can cost."""
        return self.charged + self.unrecorded

    async def reserve(self, dollars: float) -> bool:
        """Wait until a call that costs at most this fits the limit, and count it as in flight.

        Returns:
            False where it can't fit any more: no call is in flight whose end could free budget.
        """
        while not self._fits(dollars):
            if not self._in_flight:
                return False
            turn = asyncio.get_running_loop().create_future()
            self._waiting.append(turn)
            await turn
        self._in_flight += 1
        self.unrecorded += dollars
        covered = False
        try:
            await self._cover()
            covered = True
        finally:
            if not covered:
                self.settle(dollars, 0.0)
        return True

    def settle(self, reserved: float, charged: float) -> None:
        """Replace a call's reservation by its charge when it has ended, before it is recorded."""
        self._in_flight -= 1
        self.unrecorded += charged - reserved
        self._wake()

    def recorded(self, charged: float) -> None:
        """Count this much of the ended calls' charges as written to disk."""
        self.charged += charged
        self.unrecorded -= charged
        self._noted = max(self._noted - charged, 0.0)
        if _LEAST < _BEHIND * self.unrecorded < self._noted:
            self._note(self.unrecorded * _AHEAD)

    async def close(self) -> None:
        """Write what may have been billed for calls that were abandoned."""
        self._note(self.unrecorded if self.unrecorded > _LEAST else 0.0)
        if self._noting is not None:
            await self._noting

    def _fits(self, dollars: float) -> bool:
        if self.limit is None:
            return True
        return self.counted + dollars <= self.limit * (1 - _SLACK)

    async def _cover(self) -> None:
        if self.unrecorded > self._noted:
            ahead = self.unrecorded * _AHEAD
            if self.limit is not None:  # calls in flight never reserve more than this
                ahead = max(min(ahead, self.limit - self.charged), self.unrecorded)
            self._note(ahead)
        if self._noting is not None:
            await asyncio.shield(self._noting)  # others wait for it too

    def _note(self, dollars: float) -> None:
        if dollars != self._noted and self._expose is not None:
            self._noting = self._expose(dollars - self._noted)
            self._noted = dollars

    def _wake(self) -> None:
        waiting, self._waiting = self._waiting, deque()
        for turn in waiting:
            if not turn.done():
                turn.set_result(None)


@runtime_checkable
class Asker(Protocol):
    """Something that calls targets, for example `prefill_router.client.Upstream`."""

    async def ask(self, target: str, prompt: Prompt, /) -> Reply:
        """A target's reply to a prompt.

        Raises:
            UpstreamError: There is no reply, or only part of one.
        """


@final
@dataclass(frozen=True, kw_only=True)
class PaidCall:
    """One call that was made.

    Attributes:
        outcome: The reply, or why there is none.
        bill: Its cost.
        began: When it began, in UTC.
        seconds: Its duration in seconds.
    """

    outcome: Reply | UpstreamError
    bill: CallBill
    began: datetime
    seconds: float


LIMITED = ("rate_limited", "overloaded")
"""Failures by which a provider asks for fewer calls."""


@final
class PaidCalls:
    """Makes calls within a budget and the providers' rate limits; used from one event loop.

    Args:
        pool: The targets.
        asker: The client that makes them.
        ledger: The budget.
        patience_seconds: The longest pause that is kept when a provider asks for one.
    """

    def __init__(
        self, pool: Pool, asker: Asker, ledger: SpendingLedger, *, patience_seconds: float = 600.0
    ) -> None:
        self._asker, self._ledger, self._patience = asker, ledger, patience_seconds
        served = {name: pool.provider_of(name) for name in pool.names}
        gates = {provider: ProviderGate(provider) for provider in set(served.values())}
        self._gates = {name: gates[provider] for name, provider in served.items()}

    async def make(
        self,
        target: Target,
        prompt: Prompt,
        *,
        tokens: int,
        wanted: Callable[[], bool],
        begin: Callable[[float], Awaitable[None]] | None = None,
        ask: Callable[[], Awaitable[Reply]] | None = None,
    ) -> PaidCall | None:
        """Make one call as soon as it may begin; a cancelled call may still be billed.

        Args:
            target: The target to call.
            prompt: The prompt.
            tokens: Expected tokens, input and output together.
            wanted: Returns whether the call is still wanted when its turn comes.
            begin: Called with the most that the call can cost, in US dollars, just before it.
            ask: Makes the call, in place of the client's plain question; the target's options
                must bound it.

        Returns:
            The call; None where it is no longer wanted, or what it can cost doesn't fit the budget.
        """
        gate, most = self._gates[target.name], bound(target, prompt)
        reserved = most.dollars or 0.0
        await gate.enter()
        try:
            if not wanted() or not await self._ledger.reserve(reserved):
                return None
            charged = 0.0
            try:
                await gate.pace(tokens)
                if begin is not None:
                    await begin(reserved)
                charged = reserved
                began, start = datetime.now(UTC), gate.now()
                outcome = await _outcome(ask() if ask else self._asker.ask(target.name, prompt))
                seconds = gate.now() - start
                bill = bill_of(target, prompt, most, outcome)
                charged = bill.charged
            finally:
                self._ledger.settle(reserved, charged)
            self._heed(gate, outcome, most, tokens, start)
            return PaidCall(outcome=outcome, bill=bill, began=began, seconds=seconds)
        finally:
            gate.leave()

    def _heed(
        self,
        gate: ProviderGate,
        outcome: Reply | UpstreamError,
        most: CallBound,
        tokens: int,
        start: float,
    ) -> None:
        """Adjust the provider's concurrency and pacing to this outcome."""
        if isinstance(outcome, Reply):
            gate.widen()
            used = (outcome.usage.input_tokens or 0) + (outcome.usage.output_tokens or 0)
            if 0 < used <= most.input_tokens + most.output_tokens:
                gate.correct(used - tokens)
        elif outcome.failure in LIMITED:
            gate.narrow(start)
            if outcome.retry_after is not None and outcome.retry_after <= self._patience:
                gate.pause(outcome.retry_after)


async def _outcome(call: Awaitable[Reply]) -> Reply | UpstreamError:
    try:
        return await call
    except UpstreamError as error:
        return error
