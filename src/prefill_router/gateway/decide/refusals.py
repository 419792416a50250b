"""What clients are told where no target may answer, or not the one that must."""

from collections.abc import Mapping

from prefill_router.gateway.decide.candidates import Exclusion, Obstacle
from prefill_router.gateway.errors import RefusalError
from prefill_router.gateway.records import RoutingRequest
from prefill_router.gateway.types import HEADER

_WHAT_WOULD_DO: dict[Obstacle, str] = {
    "call": "give it a base_url or a provider in the pool file",
    "endpoint": "if it serves this call, say so in the pool file: serves: [{endpoint}]",
    "need": "if it can, say so in the pool file: accepts: [{needs}]",
    "context": "send less, or lower the maximum of output tokens",
    "key": "ask with another key",
    "request": "allow more targets, or exclude fewer",
    "cost": "raise the maximum cost",
    "breaker": "try again later",
}


def no_eligible_target(question: RoutingRequest, excluded: Mapping[str, Exclusion]) -> RefusalError:
    """The error that says of every target why it may not answer, and what would do.

    Targets that the client's key may not use are left unnamed, unless there are no others.
    """
    told = {n: e for n, e in excluded.items() if e.obstacle != "key"} or dict(excluded)
    groups: dict[Obstacle, list[str]] = {}
    for name, why in told.items():
        groups.setdefault(why.obstacle, []).append(f"{name} ({why.words})")
    if set(groups) == {"key"}:
        return RefusalError(
            "the key may not use any target of this gateway; ask with another key",
            status=403,
            kind="permission_error",
            code="no_eligible_target",
        )
    parts = [
        f"{', '.join(names)}: {_advice(obstacle, question)}" for obstacle, names in groups.items()
    ]
    return RefusalError(
        f"no target may answer this request. {'; '.join(parts)}", code="no_eligible_target"
    )


def unknown_target(name: str, names: tuple[str, ...]) -> RefusalError:
    """The error of a named target that isn't in the pool, perhaps since a reload."""
    return RefusalError(
        f"there is no target {name!r}; known are {list(names)}",
        status=404,
        code="model_not_found",
        param="model",
    )


def named_cannot(question: RoutingRequest, name: str, why: Exclusion) -> RefusalError:
    """The error of a named target that can't answer this call, is too dear, or isn't allowed."""
    advice = _advice(why.obstacle, question)
    by_key = why.obstacle == "key"
    return RefusalError(
        f"the target {name!r} was named, but can't be used: {why.words}; {advice}",
        status=403 if by_key else 400,
        kind="permission_error" if by_key else "invalid_request_error",
        code="target_not_allowed" if by_key else "no_eligible_target",
        param="model",
    )


def unknown_response(serving: list[str]) -> RefusalError:
    """The error of a stored response that no target is known to keep."""
    return RefusalError(
        "it isn't known which target keeps the response that previous_response_id names, and "
        f"{len(serving)} may: name one of {serving} as the model, or send the whole conversation",
        code="unknown_response",
        param="previous_response_id",
    )


def response_of_another() -> RefusalError:
    """The error of a stored response that belongs to another key; it tells nothing of it."""
    return RefusalError(
        "the response that previous_response_id names isn't one of this key's; send the whole "
        "conversation instead",
        code="unknown_response",
        param="previous_response_id",
    )


def response_lost(target: str, why: str) -> RefusalError:
    """The error of a stored response whose target can't be asked any more."""
    return RefusalError(
        f"the response that previous_response_id names is kept by the target {target!r}, which "
        f"can't answer: {why}; send the whole conversation instead",
        code="response_lost",
        param="previous_response_id",
    )


def stored_unknown(serving: list[str]) -> RefusalError:
    """The error of a call about a response that no target is known to keep."""
    header = f"{HEADER}allow"
    return _not_found(
        f"it isn't known which target keeps this response, and {len(serving)} may: name one of "
        f"{serving} in the header {header}"
    )


def stored_not_of_key() -> RefusalError:
    """The same where keys are asked for, or were; it tells nothing of others' responses."""
    return _not_found(
        "no response of this id is known to be this key's: another key made it, or it was made so "
        "long ago that the gateway no longer knows; ask its target itself"
    )


def stored_lost(target: str, why: str) -> RefusalError:
    """The error of a call about a response whose target can't be asked any more."""
    return _not_found(
        f"this response is kept by the target {target!r}, which can't be asked: {why}"
    )


def _not_found(message: str) -> RefusalError:
    return RefusalError(message, status=404, code="unknown_response", param="response_id")


def several_embeddings(serving: list[str]) -> RefusalError:
    """The error of embeddings that several targets could make."""
    return RefusalError(
        "embeddings of different targets can't be compared, so they aren't routed; name one of "
        f"{serving} as the model",
        code="target_needed",
        param="model",
    )


def _advice(obstacle: Obstacle, question: RoutingRequest) -> str:
    needs = ", ".join(sorted(question.needs))
    return _WHAT_WOULD_DO[obstacle].format(endpoint=question.endpoint, needs=needs)
