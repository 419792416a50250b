"""The errors that clients get where no target may answer, or the required one can't."""

from collections.abc import Mapping

from prefill_router.gateway.decide.candidates import Exclusion, Obstacle
from prefill_router.gateway.errors import RefusalError
from prefill_router.gateway.records import RoutingRequest
from prefill_router.gateway.types import HEADER

_ADVICE: dict[Obstacle, str] = {
    "call": "give it a base_url or a provider in the pool file",
    "endpoint": "if it serves this endpoint, say so in the pool file: serves: [{endpoint}]",
    "need": "if it can, say so in the pool file: accepts: [{needs}]",
    "context": "send a shorter request, or lower the maximum number of output tokens",
    "key": "use another key",
    "request": "allow more targets, or exclude fewer",
    "cost": "raise the maximum cost",
    "breaker": "try again later",
}


def no_eligible_target(question: RoutingRequest, excluded: Mapping[str, Exclusion]) -> RefusalError:
    """The error that says for every target why it may not answer, and what would help.

    Targets that the client's key may not use aren't named, unless there are no others.
    """
    shown = {n: e for n, e in excluded.items() if e.obstacle != "key"} or dict(excluded)
    groups: dict[Obstacle, list[str]] = {}
    for name, why in shown.items():
        groups.setdefault(why.obstacle, []).append(f"{name} ({why.words})")
    if set(groups) == {"key"}:
        return RefusalError(
            "the key may not use any target of this gateway; use another key",
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
    """The error for a named target that isn't in the pool, perhaps since a reload."""
    return RefusalError(
        f"there is no target {name!r}; the targets are {list(names)}",
        status=404,
        code="model_not_found",
        param="model",
    )


def named_cannot(question: RoutingRequest, name: str, why: Exclusion) -> RefusalError:
    """The error for a named target that can't answer, is too expensive, or isn't allowed."""
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
    """The error for a stored response that no target is known to keep."""
    return RefusalError(
        "it isn't known which target keeps the response in previous_response_id, and "
        f"{len(serving)} could: name one of {serving} as the model, or send the whole conversation",
        code="unknown_response",
        param="previous_response_id",
    )


def response_of_another() -> RefusalError:
    """The error for a stored response of another key; it reveals nothing about the response."""
    return RefusalError(
        "the response in previous_response_id isn't one of this key's; send the whole conversation "
        "instead",
        code="unknown_response",
        param="previous_response_id",
    )


def response_lost(target: str, why: str) -> RefusalError:
    """The error for a stored response on a target that can't answer any more."""
    return RefusalError(
        f"the response in previous_response_id is kept by the target {target!r}, which can't "
        f"answer: {why}; send the whole conversation instead",
        code="response_lost",
        param="previous_response_id",
    )


def stored_unknown(serving: list[str]) -> RefusalError:
    """The error for a call about a response that no target is known to keep."""
    header = f"{HEADER}allow"
    return _not_found(
        f"it isn't known which target keeps this response, and {len(serving)} could: name one of "
        f"{serving} in the header {header}"
    )


def stored_not_of_key() -> RefusalError:
    """The error for a response that isn't known to be this key's; it reveals nothing else."""
    return _not_found(
        "no response with this id is known to belong to this key: another key received it, or it "
        "is so old that the gateway has forgotten it; call its target directly"
    )


def stored_lost(target: str, why: str) -> RefusalError:
    """The error for a call about a response on a target that can't be called any more."""
    return _not_found(
        f"this response is kept by the target {target!r}, which can't be called: {why}"
    )


def _not_found(message: str) -> RefusalError:
    return RefusalError(message, status=404, code="unknown_response", param="response_id")


def several_embeddings(serving: list[str]) -> RefusalError:
    """The error for embeddings that several targets could make."""
    return RefusalError(
        "embeddings of different targets can't be compared, so they aren't routed; name one of "
        f"{serving} as the model",
        code="target_needed",
        param="model",
    )


def _advice(obstacle: Obstacle, question: RoutingRequest) -> str:
    needs = ", ".join(sorted(question.needs))
    return _ADVICE[obstacle].format(endpoint=question.endpoint, needs=needs)
