"""What is recorded of one request: its receipt, and through it metrics, log and traces."""

import time
from typing import TYPE_CHECKING, Any, final
from urllib.parse import quote

from prefill_router.data import Prompt
from prefill_router.gateway.choice import Choice
from prefill_router.gateway.outcome import Attempt, Outcome
from prefill_router.gateway.receipts import Receipt
from prefill_router.gateway.serving.incoming import Incoming
from prefill_router.gateway.serving.live import Live
from prefill_router.gateway.telemetry import Trace
from prefill_router.gateway.words import HEADER
from prefill_router.upstream import cost_of, reported_cost

if TYPE_CHECKING:
    from prefill_router.gateway.serving.gateway import Gateway

Header = tuple[bytes, bytes]
_PREFIX = HEADER.encode()
_TARGET, _ID, _REASON = _PREFIX + b"target", _PREFIX + b"decision-id", _PREFIX + b"reason"
_LAM, _MS, _FALLBACK = _PREFIX + b"lam", _PREFIX + b"decision-ms", _PREFIX + b"fallback"
_PROBABILITY, _COST = _PREFIX + b"probability", _PREFIX + b"estimated-cost"
_LONGEST_NAME = 200
_RETRIES = _PREFIX + b"retries"
_NO_RETRY = ("answered", "refused", "breaker_open")  # nobody was asked in vain


@final
class Recording:
    """What is recorded of one request that was decided on.

    Args:
        gateway: Keeps the receipt.
        live: By what it was decided.
        incoming: The request.
        choice: The decision.
        decision_seconds: How long it took.
        forecast_seconds: How long the forecast was waited for; None where it wasn't.
        trace: The request's span; None for none.
    """

    def __init__(
        self,
        gateway: "Gateway",
        live: Live,
        incoming: Incoming,
        choice: Choice,
        *,
        decision_seconds: float,
        forecast_seconds: float | None,
        trace: Trace | None = None,
    ) -> None:
        self._gateway, self._live, self._choice = gateway, live, choice
        self._question, self._scored = incoming.question, incoming.scored
        envelope = incoming.envelope  # isn't kept: its texts are freed while the answer comes
        self._requested, self._stream = envelope.model[:_LONGEST_NAME], envelope.stream
        self._prompt = _plain(incoming.prompt) if live.settings.receipts.prompts else None
        self._decision_seconds, self._forecast_seconds = decision_seconds, forecast_seconds
        self._trace = trace

    def reply_headers(self, target: str | None, attempts: tuple[Attempt, ...]) -> list[Header]:
        """The gateway's own headers of the answer.

        Args:
            target: Who answers; None for nobody.
            attempts: What was tried.
        """
        choice = self._choice
        headers = [
            (_ID, choice.id.encode()),
            (_REASON, choice.reason.encode()),
            (_MS, b"%.2f" % (1e3 * self._decision_seconds)),
            (_RETRIES, b"%d" % sum(a.end not in _NO_RETRY for a in attempts)),
        ]
        if choice.lam is not None:
            headers.append((_LAM, b"%g" % choice.lam))
        if choice.fallback is not None:
            headers.append((_FALLBACK, choice.fallback.encode()))
        if target is not None:
            headers.append(target_header(target))
            if target in choice.correctness:
                headers.append((_PROBABILITY, b"%.4f" % choice.correctness[target]))
            if target in choice.estimated_cost:
                headers.append((_COST, b"%.3g" % choice.estimated_cost[target]))
        return headers

    def named(self, target: str, response: str) -> None:
        """Remember who keeps a response that still comes: it may be cancelled meanwhile."""
        self._gateway.sessions.keep(response, target=target, key=self._question.key)

    async def finished(self, outcome: Outcome) -> None:
        """Record how it ended; the receipt is kept when this returns, or it took too long."""
        receipt = self._receipt(outcome)
        self._live.decider.answered(
            self._choice,
            outcome,
            cost=receipt.cost,
            at=time.time(),
            stored=receipt.endpoint == "responses",
        )
        if self._trace is not None:
            self._trace.end(receipt)
        await self._gateway.keep(receipt)

    def _receipt(self, outcome: Outcome) -> Receipt:
        question, loaded = self._question, self._live.loaded
        decided = self._choice.reason != "named"
        cost, is_estimated = self._cost(outcome)
        return Receipt(
            choice=self._choice,
            outcome=outcome,
            at=question.at,
            router=loaded.light.fingerprint if decided else "",
            policy=loaded.light.policy.kind if decided else "",
            endpoint=question.endpoint,
            requested=self._requested,
            stream=self._stream,
            key=question.key,
            scored=self._scored,
            cost=cost,
            cost_is_estimated=is_estimated,
            decision_seconds=self._decision_seconds,
            forecast_seconds=self._forecast_seconds,
            prompt=self._prompt,
            details=self._details() if decided else {},
        )

    def _details(self) -> dict[str, Any]:
        alone = self._choice.session is None
        return self._live.details if alone else self._live.session_details

    def _cost(self, outcome: Outcome) -> tuple[float | None, bool]:
        """Observed cost, US dollars, and whether it is an estimate.

        What the provider says, or else what its counts cost. Where these can't be true, or aren't
        known yet, it is what the decision expected: budgets have no gap then.
        """
        usage, target = outcome.usage, outcome.target
        if target is None or (usage is None and not outcome.usage_is_estimated):
            return None, outcome.usage_is_estimated
        cost = None if usage is None else reported_cost(usage)
        if cost is None and usage is not None:
            cost = cost_of(usage, self._live.loaded.pool[target])
        if cost is not None:
            return cost, outcome.usage_is_estimated
        expected = self._choice.estimated_cost.get(target)
        return expected, outcome.usage_is_estimated or expected is not None


def target_header(name: str) -> Header:
    """Who answers; percent-encoded where the name has what headers can't hold, or not unharmed."""
    return _TARGET, (name if name.isascii() and name.isprintable() else quote(name)).encode()


def _plain(prompt: Prompt | None) -> str | list[dict[str, str]] | None:
    if prompt is None or isinstance(prompt, str):
        return prompt
    return [{"role": turn.role, "content": turn.content} for turn in prompt]
