"""Which targets may answer a request, and why the others may not.

And what a client is told where no target may answer.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Literal, final

from prefill_router.gateway.decide.routing_request import PerTarget, RoutingRequest
from prefill_router.gateway.errors import RefusalError
from prefill_router.gateway.types import HEADER
from prefill_router.targets import ENDPOINTS, Ability, Endpoint, Pool

RESERVE_TOKENS = 256
"""Room for an answer in a target's context, where the client sets no limit."""

Obstacle = Literal["call", "endpoint", "need", "context", "key", "request", "cost", "breaker"]
"""What keeps a target from answering.

- `call`: the pool names no endpoint of it; `endpoint`: it doesn't serve this call;
- `need`: it lacks an ability; `context`: the request is too long for it;
- `key`: the client's key may not use it; `request`: the client rules it out;
- `cost`: it would cost more than the client allows; `breaker`: it failed too often just now.
"""


@final
@dataclass(frozen=True)
class Exclusion:
    """Why one target can't answer, or isn't to.

    Attributes:
        obstacle: The kind of reason.
        words: The same in a few words.
    """

    obstacle: Obstacle
    words: str


@final
@dataclass(frozen=True)
class _Candidate:
    name: str
    column: int
    serves: frozenset[Endpoint]
    has_endpoint: bool
    accepts: frozenset[Ability]
    context: int | None


@final
class Candidates:
    """A pool's targets, with what each can do at hand."""

    def __init__(self, pool: Pool) -> None:
        self._members = tuple(_candidate(pool, name) for name in pool.names)

    def cannot(self, question: RoutingRequest, tokens: int) -> dict[str, Exclusion]:
        """The targets that can't answer, or that the client's key may not use.

        Args:
            question: The request.
            tokens: Its estimated input tokens.
        """
        needed = tokens + written_tokens(question)
        found = ((m.name, _obstacle(m, question, needed)) for m in self._members)
        return {name: obstacle for name, obstacle in found if obstacle is not None}

    def unwanted(
        self, question: RoutingRequest, cost: PerTarget | None, excluded: Mapping[str, Exclusion]
    ) -> dict[str, Exclusion]:
        """`excluded`, and the targets that the client rules out: by name, or by what they cost.

        Args:
            question: The request.
            cost: Every target's estimated cost, US dollars; None where prices are unknown.
            excluded: The targets that can't answer.
        """
        ruled = dict(excluded)
        if question.allow is None and not question.exclude and question.max_cost is None:
            return ruled
        for member in self._members:
            if member.name not in ruled:
                why = _ruled_out(member.name, question) or _too_dear(member, question, cost)
                if why is not None:
                    ruled[member.name] = why
        return ruled

    def unusable(
        self, question: RoutingRequest, cost: PerTarget | None, name: str
    ) -> Exclusion | None:
        """Why a target that the client named can't be used; None where it can.

        What it accepts and holds isn't looked at: the client knows what it names.
        """
        member = next(m for m in self._members if m.name == name)
        return _closed(member, question) or _too_dear(member, question, cost)

    def broken(
        self, excluded: Mapping[str, Exclusion], breaker_open: Callable[[str], bool]
    ) -> dict[str, Exclusion]:
        """`excluded`, and the targets whose breaker is open, unless nobody would be left."""
        names = [m.name for m in self._members if m.name not in excluded]
        failing = {name for name in names if breaker_open(name)}
        if not failing or len(failing) == len(names):
            return dict(excluded)
        return {
            **excluded,
            **{n: Exclusion("breaker", "breaker open") for n in names if n in failing},
        }

    def left(self, excluded: Mapping[str, Exclusion]) -> list[int]:
        """The columns of the targets that aren't excluded, in the pool's order."""
        return [m.column for m in self._members if m.name not in excluded]


def written_tokens(question: RoutingRequest) -> int:
    """Tokens that an answer may have: the client's limit, or room for a common one."""
    if question.endpoint == "embeddings":
        return 0
    return RESERVE_TOKENS if question.max_tokens is None else question.max_tokens


def _candidate(pool: Pool, name: str) -> _Candidate:
    target = pool[name]
    has_endpoint = target.provider is not None or target.base_url is not None
    serves = pool.serves(name) if has_endpoint or target.serves is not None else ENDPOINTS
    return _Candidate(
        name=name,
        column=pool.indices([name])[0],
        serves=frozenset(serves),
        has_endpoint=has_endpoint,
        accepts=frozenset(target.accepts),
        context=target.context_tokens,
    )


def _obstacle(member: _Candidate, question: RoutingRequest, tokens: int) -> Exclusion | None:
    closed = _closed(member, question)
    if closed is not None:
        return closed
    lacking = question.needs - member.accepts
    if lacking:
        return Exclusion("need", f"doesn't accept {', '.join(sorted(lacking))}")
    if member.context is not None and tokens > member.context:
        return Exclusion("context", f"holds {member.context} tokens, about {tokens} are needed")
    return None


def _closed(member: _Candidate, question: RoutingRequest) -> Exclusion | None:
    if question.key_targets is not None and member.name not in question.key_targets:
        return Exclusion("key", "not allowed by the key")
    if question.to_call and not member.has_endpoint:
        return Exclusion("call", "has no endpoint")
    if question.endpoint not in member.serves:
        return Exclusion("endpoint", f"doesn't serve {question.endpoint}")
    return None


def _ruled_out(name: str, question: RoutingRequest) -> Exclusion | None:
    allowed = question.allow is None or name in question.allow
    if allowed and name not in question.exclude:
        return None
    return Exclusion("request", "ruled out by the request")


def _too_dear(
    member: _Candidate, question: RoutingRequest, cost: PerTarget | None
) -> Exclusion | None:
    most = question.max_cost
    if most is None or cost is None or cost[member.column] <= most:
        return None
    return Exclusion("cost", f"about {cost[member.column]:.3g} dollars, above {most:.3g}")


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
