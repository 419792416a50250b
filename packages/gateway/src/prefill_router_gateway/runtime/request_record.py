"""What is said and recorded of a request that was decided on: response headers, and the receipt.

`write_receipt` makes the receipt when a request ends; metrics, log and traces are recorded from it.
"""

import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, Final, final
from urllib.parse import quote

from prefill_router.data import Prompt
from prefill_router.endpoints import cost_of, reported_cost
from prefill_router.targets import Endpoint
from prefill_router_gateway.decide import Sessions, TargetSpeeds
from prefill_router_gateway.guard import SharedPlace
from prefill_router_gateway.protocol import THINKING_HINTS, OpenRouterOptions
from prefill_router_gateway.receipts import ReceiptWriter, RecentRequests, SampleDraft
from prefill_router_gateway.records import (
    HEADER,
    AgentRequest,
    Header,
    Receipt,
    RequestOutcome,
    RoutingDecision,
    RoutingRequest,
    Scored,
)
from prefill_router_gateway.runtime.snapshot import Snapshot
from prefill_router_gateway.shared import SharedState
from prefill_router_gateway.telemetry import Metrics, Trace, log_request

LONGEST_NAME: Final = 200
"""The most characters of a model's name that are kept in receipts."""


@final
@dataclass(frozen=True, kw_only=True)
class Recorders:
    """Where the end of every request is recorded; they survive reloads.

    Attributes:
        metrics: The metrics for Prometheus.
        recent: The requests that ended most recently.
        speeds: How long the targets take.
        writer: Writes receipts.
        shared: What is shared with other replicas; None for a gateway by itself.
    """

    metrics: Metrics
    recent: RecentRequests
    speeds: TargetSpeeds
    writer: ReceiptWriter
    shared: SharedState | None


@final
@dataclass(frozen=True, kw_only=True)
class RoutedRequest:
    """A request that was decided on: all that its receipt needs but the outcome.

    It has neither the body nor its texts, so that these are freed during the answer.

    Attributes:
        question: Its properties for the decision.
        choice: The decision.
        requested: The model that the client named.
        stream: Whether the answer is streamed.
        scored: The part of the request that the encoder read.
        options: What OpenRouter's routing fields ask for; None where there are none.
        prompt: What the encoder read, as plain values; None where prompts aren't kept.
        sample: The request, where it is to be kept with its answer to learn from; None otherwise.
        decision_seconds: The duration of the decision.
        forecast_seconds: The wait for the forecast; None where none was needed.
    """

    question: RoutingRequest
    choice: RoutingDecision
    requested: str
    stream: bool
    scored: Scored
    options: OpenRouterOptions | None
    prompt: str | list[dict[str, str]] | None
    sample: SampleDraft | None
    decision_seconds: float
    forecast_seconds: float | None


def plain_prompt(prompt: Prompt) -> str | list[dict[str, str]]:
    """A prompt as plain values."""
    if isinstance(prompt, str):
        return prompt
    return [{"role": turn.role, "content": turn.content} for turn in prompt]


_PREFIX = HEADER.encode()
_TARGET, _ID, _REASON = _PREFIX + b"target", _PREFIX + b"decision-id", _PREFIX + b"reason"
_LAM, _MS, _FALLBACK = _PREFIX + b"lam", _PREFIX + b"decision-ms", _PREFIX + b"fallback"
_PROBABILITY, _COST = _PREFIX + b"probability", _PREFIX + b"estimated-cost"
_ASKED, _TRANSLATED = _PREFIX + b"asked", _PREFIX + b"translated"
_RETRIES = _PREFIX + b"retries"


def reply_headers(
    live: Snapshot, request: RoutedRequest, target: str | None, *, retries: int | None = None
) -> list[Header]:
    """The gateway's own response headers.

    Args:
        live: The snapshot that decided.
        request: The request.
        target: The target that answers; None for none.
        retries: How many calls followed the first; None where that isn't known yet.
    """
    choice = request.choice
    headers = [
        (_ID, choice.id.encode()),
        (_REASON, choice.reason.encode()),
        (_MS, b"%.2f" % (1e3 * request.decision_seconds)),
    ]
    if retries is not None:
        headers.append((_RETRIES, b"%d" % retries))
    if choice.lam is not None:
        headers.append((_LAM, b"%g" % choice.lam))
    if request.options is not None:
        headers.append((_ASKED, request.options.header))
    if choice.fallback is not None:
        headers.append((_FALLBACK, choice.fallback.encode()))
    if target is not None:
        headers.append(target_header(target))
        if target in live.bodies.chat_only.get(request.question.endpoint, ()):
            headers.append((_TRANSLATED, b"chat"))
        if target in choice.correctness:
            headers.append((_PROBABILITY, b"%.4f" % choice.correctness[target]))
        if target in choice.estimated_cost:
            headers.append((_COST, b"%.3g" % choice.estimated_cost[target]))
    return headers


def target_header(name: str) -> Header:
    """The header with the target's name, percent-encoded where it isn't printable ASCII."""
    return _TARGET, (name if name.isascii() and name.isprintable() else quote(name)).encode()


def remember_stream(
    live: Snapshot,
    sessions: Sessions,
    request: RoutedRequest,
    streamed: tuple[str, str] | None,
) -> None:
    """Remember where a response is being written, since it may be cancelled.

    Args:
        live: The snapshot that decided.
        sessions: What is remembered of conversations.
        request: The request.
        streamed: The deployment that streams the response, and its id; None where unknown.
    """
    endpoint = request.question.endpoint
    if streamed is not None and _is_stored(live, endpoint, streamed[0]):
        deployment, response = streamed
        sessions.keep(response, target=deployment, key=request.question.key)


def _is_stored(live: Snapshot, endpoint: Endpoint, deployment: str | None) -> bool:
    """Whether an answer can be continued by its id: a response that isn't a chat's."""
    chats = live.bodies.chat_only.get(endpoint, ())
    return endpoint == "responses" and deployment not in chats


async def write_receipt(
    recorders: Recorders,
    live: Snapshot,
    request: RoutedRequest,
    outcome: RequestOutcome,
    *,
    trace: Trace | None = None,
    place: SharedPlace | None = None,
) -> None:
    """Record how a request ended; when this returns, the receipt is written or the wait timed out.

    So is what other replicas need to know.

    Args:
        recorders: Where it is recorded.
        live: The snapshot that decided.
        request: The request.
        outcome: How it ended.
        trace: Its span; None where it isn't traced.
        place: Its place among those of its key, to be freed; None where replicas share no limits.
    """
    shared = recorders.shared
    receipt = make_receipt(live, request, outcome, shared)
    live.decider.record_outcome(
        request.choice,
        outcome,
        cost=receipt.cost,
        at=time.time(),
        stored=_is_stored(live, receipt.endpoint, outcome.deployment or outcome.target),
        moves=request.question.agent.kind != "compaction",
    )
    if trace is not None:
        trace.end(receipt)
    if live.settings.routing.latency is not None:
        recorders.speeds.observe(receipt)
    recorders.metrics.observe(receipt)
    recorders.recent.add(receipt)
    log_request(receipt)
    if place is not None:
        place.free()  # now, to be written together with the answer
    shared_write = None if shared is None else shared.request_write()
    sample = request.sample
    if sample is not None and (outcome.kind != "answered" or outcome.tool_calls):
        sample.answer.drop()
    await recorders.writer.keep(receipt, sample)
    if shared_write is not None:
        await shared_write


def make_receipt(
    live: Snapshot, request: RoutedRequest, outcome: RequestOutcome, shared: SharedState | None
) -> Receipt:
    """The receipt of a request that has ended.

    Args:
        live: The snapshot that decided.
        request: The request.
        outcome: How it ended.
        shared: What is shared with other replicas; None for a gateway by itself.
    """
    question, choice = request.question, request.choice
    is_decided = choice.reason != "named"
    cost, is_estimated = _find_cost(live, request, outcome)
    details = live.details if choice.session is None else live.session_details(question)
    if shared is not None:
        details = {**details, **shared.details(question.key)}
    details = details if is_decided else {}
    if request.options is not None:
        details = {**details, "asked": request.options.fields}
    if question.hints and outcome.target in live.bodies.chat_only.get(question.endpoint, ()):
        details = {**details, **_hint_details(question.hints, outcome.sent_hints)}
    if question.agent != AgentRequest():
        details = {**details, "agent": asdict(question.agent)}
    if question.in_tool_loop and not choice.tool_loop:  # it goes on with a turn, at any target
        details = {**details, "in_tool_loop": True}
    return Receipt(
        choice=choice if is_decided else replace(choice, session=question.session),
        outcome=outcome,
        at=question.at,
        router=live.loaded.light.fingerprint if is_decided else "",
        policy=live.policy if is_decided else "",
        endpoint=question.endpoint,
        requested=request.requested,
        stream=request.stream,
        key=question.key,
        scored=request.scored,
        cost=cost,
        cost_is_estimated=is_estimated,
        decision_seconds=request.decision_seconds,
        forecast_seconds=request.forecast_seconds,
        baseline=live.baseline,
        prompt=request.prompt,
        details=details,
    )


def _hint_details(hints: Sequence[str], sent_hints: Mapping[str, Any]) -> dict[str, Any]:
    """Which hints a chat got in other fields, and which it didn't get."""
    left_out = [hint for hint in hints if not (sent_hints and hint in THINKING_HINTS)]
    details = {"left_out": left_out, "sent_hints": dict(sent_hints)}
    return {name: value for name, value in details.items() if value}


def _find_cost(
    live: Snapshot, request: RoutedRequest, outcome: RequestOutcome
) -> tuple[float | None, bool]:
    """The observed cost in US dollars, and whether it is an estimate.

    It is the provider's reported cost, or else the price of its token counts. Where these are
    impossible or not known yet, it is the decision's estimate, so that budgets have no gap.
    """
    usage, target = outcome.usage, outcome.target
    if target is None or (usage is None and not outcome.usage_is_estimated):
        return None, outcome.usage_is_estimated
    cost = None if usage is None else reported_cost(usage)
    if cost is None and usage is not None:
        cost = cost_of(usage, live.targets[outcome.deployment or target])
    if cost is not None:
        return cost, outcome.usage_is_estimated
    expected = request.choice.estimated_cost.get(target)
    return expected, outcome.usage_is_estimated or expected is not None
