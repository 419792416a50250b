"""The record of a question that is finished, made of its calls."""

from collections.abc import Mapping
from typing import Any

from prefill_router.harness.answer import Answer, CostSource
from prefill_router.harness.collecting.schedule import Question
from prefill_router.targets import Provider, Target
from prefill_router.targets.provider import public_address
from prefill_router.upstream import Reply
from prefill_router.upstream.dialects import request_parameters

_PRICES = ("input_price", "output_price", "cached_input_price", "reasoning_price")


def answer_of(
    question: Question,
    target: Target,
    request: Mapping[str, Any],
    *,
    reply: Reply | None = None,
    missing: str | None = None,
) -> Answer:
    """The record of a question."""
    costs = [bill.cost for bill in question.bills if bill.cost is not None]
    unknown = not costs and (bool(question.bills) or not target.has_price)
    return Answer(
        target=question.target,
        query_id=question.query_id,
        reply=reply,
        missing=missing,
        request=request,
        attempts=tuple(question.attempts),
        prices={p: v for p in _PRICES if (v := getattr(target, p)) is not None},
        cost=None if unknown else sum(costs),
        cost_source=_source(question),
        note="; ".join(dict.fromkeys(bill.note for bill in question.bills if bill.note)),
    )


def request_of(target: Target, provider: Provider) -> Mapping[str, Any]:
    """Whom a target is asked of, and with what beside the prompt; without keys."""
    return {
        "provider": provider.name,
        "base_url": public_address(provider.base_url),
        "dialect": provider.dialect,
        "body": request_parameters(target, provider.dialect),
    }


def _source(question: Question) -> CostSource:
    """An estimate where any part is one."""
    sources: list[CostSource] = [b.source for b in question.bills if b.source != "none"]
    if not sources:
        return "none"
    return "estimate" if "estimate" in sources else sources[-1]
