"""Makes calls that cost money, within a budget and the providers' rate limits."""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Protocol, final, runtime_checkable

from prefill_router.data import Prompt
from prefill_router.endpoints.bills import CallBill, bill_of
from prefill_router.endpoints.prices import CallBound, bound
from prefill_router.endpoints.rate_limits import ProviderGate
from prefill_router.endpoints.reply import Reply
from prefill_router.endpoints.spending import SpendingLedger
from prefill_router.errors import UpstreamError
from prefill_router.targets import Pool, Target


@runtime_checkable
class Asker(Protocol):
    """Something that calls targets, for example `prefill_router.endpoints.Upstream`."""

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
        providers = {name: pool.provider_of(name) for name in pool.names}
        gates = {provider: ProviderGate(provider) for provider in set(providers.values())}
        self._gates = {name: gates[provider] for name, provider in providers.items()}

    async def make(
        self,
        target: Target,
        prompt: Prompt,
        *,
        tokens: int,
        is_wanted: Callable[[], bool],
        begin: Callable[[float], Awaitable[None]] | None = None,
        ask: Callable[[], Awaitable[Reply]] | None = None,
    ) -> PaidCall | None:
        """Make one call as soon as it may begin; a cancelled call may still be billed.

        Args:
            target: The target to call.
            prompt: The prompt.
            tokens: Expected tokens, input and output together.
            is_wanted: Returns whether the call is still wanted when its turn comes.
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
            if not is_wanted() or not await self._ledger.reserve(reserved):
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
            self._adjust_gate(gate, outcome, most, tokens, start)
            return PaidCall(outcome=outcome, bill=bill, began=began, seconds=seconds)
        finally:
            gate.leave()

    def _adjust_gate(
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
