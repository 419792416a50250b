"""Calls that cost money: what each costs, and a budget that is never exceeded.

No call begins unless the most that it can cost fits the budget. What counts against the limit is
the recorded costs with what is at risk, and the most that calls in flight can cost. Where that
last sum is written to disk before it grows (*exposure*), a process that is killed leaves a record
of how much may have been billed without an answer.
"""

import asyncio
import json
import math
import unicodedata
from collections import deque
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from decimal import Decimal
from typing import Literal, Protocol, final, runtime_checkable

from prefill_router.data import Prompt, prompt_text
from prefill_router.endpoints.client import MAX_TOKENS_FIELDS
from prefill_router.endpoints.reply import Reply, Usage
from prefill_router.endpoints.retries import ProviderGate
from prefill_router.errors import UpstreamError
from prefill_router.targets import Pool, Target

_MILLION = 1_000_000
_TEMPLATE_TOKENS = 1024
"""Allowance for what a chat template or provider adds to a conversation, e.g. a system prompt."""
_MESSAGE_TOKENS = 64
"""Allowance for what a chat template adds to one message."""
_BYTES_PER_TOKEN = 4
_MOST_BYTES_PER_TOKEN = 32
"""The most bytes per token, on average, of any text but one character repeated."""

CostSource = Literal["reported", "usage", "estimate", "none"]


@final
@dataclass(frozen=True, kw_only=True)
class CallBound:
    """The most that one call can use.

    Attributes:
        input_tokens: Tokens of the prompt.
        output_tokens: Tokens of the answer, reasoning included.
        dollars: Cost in US dollars; None where the target's prices are unknown.
    """

    input_tokens: int
    output_tokens: int
    dollars: float | None


def cost_of(usage: Usage, target: Target) -> float | None:
    """The cost of reported tokens at a target's prices, in US dollars, rounded once.

    Cached tokens cost `cached_input_price` and reasoning ones `reasoning_price`, where these are
    given. None where prices or counts are unknown, or the counts contradict each other.
    """
    if target.input_price is None or target.output_price is None or any(_contradictions(usage)):
        return None
    cached, reasoning = usage.cached_tokens or 0, usage.reasoning_tokens or 0
    parts = (
        ((usage.input_tokens or 0) - cached, target.input_price),
        (cached, _or(target.cached_input_price, target.input_price)),
        ((usage.output_tokens or 0) - reasoning, target.output_price),
        (reasoning, _or(target.reasoning_price, target.output_price)),
    )
    return float(sum(n * Decimal(repr(price)) for n, price in parts) / _MILLION)


def reported_cost(usage: Usage) -> float | None:
    """The cost of a call in US dollars as the provider reports it (OpenRouter's `usage.cost`).

    For a call with the user's own provider key (`is_byok`), that provider's charge is added.
    """
    cost = _dollars(usage.reported.get("cost"))
    details = usage.reported.get("cost_details")
    if cost is None or usage.reported.get("is_byok") is not True or not isinstance(details, dict):
        return cost
    return cost + (_dollars(details.get("upstream_inference_cost")) or 0.0)


def bound(target: Target, prompt: Prompt) -> CallBound:
    """The most that one call can use and cost.

    A tokenizer makes at most one token per byte of the text, as given or in a Unicode normal
    form; an allowance for templates is added. Output ends at the request's maximum number of
    tokens, to which some providers add a `thinking_budget` for reasoning.
    """
    text = prompt_text(prompt)
    extra = json.dumps(dict(target.request.extra_body))
    messages = 1 if isinstance(prompt, str) else len(prompt)
    given = _most_bytes(text) + len(extra) + _MESSAGE_TOKENS * messages + _TEMPLATE_TOKENS
    own = target.request.extra_body
    limits = [own[name] for name in MAX_TOKENS_FIELDS if name in own]
    written = max(limits, default=target.request.max_tokens)
    written = (written + own.get("thinking_budget", 0)) * own.get("n", 1)
    return CallBound(
        input_tokens=given, output_tokens=written, dollars=_dearest(given, written, target)
    )


def plausible(usage: Usage, limit: CallBound) -> str:
    """Why reported token counts are missing or can't be true; empty where they are plausible."""
    found = list(_contradictions(usage))
    for name, most in (
        ("input_tokens", limit.input_tokens),
        ("output_tokens", limit.output_tokens),
    ):
        count = getattr(usage, name)
        if count is not None and count > most:
            found.append(f"{name} is {count}, more than the {most} possible")
    return "; ".join(found)


def estimated_usage(prompt: Prompt, reply: Reply) -> Usage:
    """Estimated tokens of a call with none reported: a quarter of the bytes, rounded up.

    Reasoning that wasn't returned isn't counted; `bound` gives the most that a call can cost.
    """
    given, reasoning = _quarter(prompt_text(prompt)), _quarter(reply.reasoning)
    return Usage(
        input_tokens=given,
        output_tokens=_quarter(reply.text) + reasoning,
        reasoning_tokens=reasoning,
    )


def _contradictions(usage: Usage) -> Iterator[str]:
    for name in ("input_tokens", "output_tokens", "cached_tokens", "reasoning_tokens"):
        count = getattr(usage, name)
        if count is None and name in ("input_tokens", "output_tokens"):
            yield f"{name} is missing"
        elif count is not None and count < 0:
            yield f"{name} is {count}"
    for part, whole in (("cached_tokens", "input_tokens"), ("reasoning_tokens", "output_tokens")):
        low, high = getattr(usage, part), getattr(usage, whole)
        if low is not None and high is not None and low > high:
            yield f"{part} is {low}, more than {whole}, {high}"


def _most_bytes(text: str) -> int:
    """The size of a text in bytes, the largest of its forms that tokenizers may read."""
    if text.isascii():
        return len(text)
    forms = (text, unicodedata.normalize("NFC", text), unicodedata.normalize("NFKC", text))
    return max(len(form.encode("utf-8", "surrogatepass")) for form in forms)


def _dearest(given: int, written: int, target: Target) -> float | None:
    if target.input_price is None or target.output_price is None:
        return None
    low = max(target.input_price, _or(target.cached_input_price, 0.0))
    high = max(target.output_price, _or(target.reasoning_price, 0.0))
    return float((given * Decimal(repr(low)) + written * Decimal(repr(high))) / _MILLION)


def _or(value: float | None, other: float) -> float:
    return other if value is None else value


def _dollars(value: object) -> float | None:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    return float(value) if 0 <= value <= _MILLION else None


def _quarter(text: str) -> int:
    return -(-len(text.encode("utf-8", "surrogatepass")) // _BYTES_PER_TOKEN)


@final
@dataclass(frozen=True, kw_only=True)
class CallBill:
    """The cost of one call.

    Attributes:
        cost: US dollars, as far as known; None where there are no prices.
        at_risk: The most US dollars that it may have cost beyond that; 0 where the cost is known.
        source: Where the cost comes from.
        note: What was implausible; empty if nothing.
    """

    cost: float | None
    at_risk: float = 0.0
    source: CostSource = "none"
    note: str = ""

    @property
    def charged(self) -> float:
        """US dollars that count against a spending limit."""
        return (self.cost or 0.0) + self.at_risk


def bill_of(
    target: Target, prompt: Prompt, most: CallBound, outcome: Reply | UpstreamError
) -> CallBill:
    """The bill of a call.

    For an answer it is the provider's reported cost, or the price of its reported tokens. Where
    these can't be true the cost is an estimate, and the rest of the bound is at risk. For a
    failure it is zero where nothing was billed; otherwise the bound is at risk.
    """
    if isinstance(outcome, UpstreamError):
        return _bill_of_failure(target, prompt, most, outcome)
    reply = outcome
    odd = plausible(reply.usage, most) or _too_few(prompt, reply)
    reported = reported_cost(reply.usage)
    if reported is not None and (most.dollars is None or reported <= most.dollars * (1 + 1e-9)):
        risk = 0.0 if not odd else _rest(most, reported)
        return CallBill(cost=reported, at_risk=risk, source="reported", note=odd)
    if reported is not None:
        odd = "; ".join(filter(None, (odd, f"its cost is reported as {reported:g} dollars")))
    if not target.has_price:
        return CallBill(cost=None, note=odd)
    if not odd:
        return CallBill(cost=cost_of(reply.usage, target), source="usage")
    return _estimate(target, prompt, most, reply, odd)


def _bill_of_failure(
    target: Target, prompt: Prompt, most: CallBound, error: UpstreamError
) -> CallBill:
    """Zero where nothing was billed; otherwise an estimate, with the rest of the bound at risk."""
    if error.billed == "no":
        return CallBill(cost=0.0 if target.has_price else None)
    if not target.has_price:
        return CallBill(cost=None, note="it may have been billed")
    if isinstance(error.partial, Reply):
        return _estimate(target, prompt, most, error.partial, "it may have been billed")
    return CallBill(
        cost=0.0, at_risk=_rest(most, 0.0), source="estimate", note="it may have been billed"
    )


def _estimate(target: Target, prompt: Prompt, most: CallBound, reply: Reply, note: str) -> CallBill:
    cost = cost_of(estimated_usage(prompt, reply), target) or 0.0
    if most.dollars is not None:
        cost = min(cost, most.dollars)
    return CallBill(cost=cost, at_risk=_rest(most, cost), source="estimate", note=note)


def _too_few(prompt: Prompt, reply: Reply) -> str:
    """Which token count is too small for the text that was read or written; empty if none."""
    read, written = prompt_text(prompt), reply.text + reply.reasoning
    for name, text in (("input_tokens", read), ("output_tokens", written)):
        size, count = len(text.encode("utf-8", "surrogatepass")), getattr(reply.usage, name)
        if count is not None and size > _MOST_BYTES_PER_TOKEN * count:
            return f"{name} is {count}, for {size} bytes"
    return ""


def _rest(most: CallBound, cost: float) -> float:
    """What remains of the bound, in US dollars; rounded up, so that the sum is never less."""
    if most.dollars is None:
        return 0.0
    rest = max(most.dollars - cost, 0.0)
    return math.nextafter(rest, math.inf) if rest else 0.0


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
