"""Which targets may answer a request, and why the others may not."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Literal, final

from prefill_router.gateway.deciding.costs import PerTarget
from prefill_router.gateway.deciding.question import Question
from prefill_router.gateway.words import Ability, Endpoint
from prefill_router.targets import ENDPOINTS, Pool

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
class Excluded:
    """Why one target can't answer, or isn't to.

    Attributes:
        obstacle: The kind of reason.
        words: The same in a few words.
    """

    obstacle: Obstacle
    words: str


@final
@dataclass(frozen=True)
class _Member:
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
        self._members = tuple(_member(pool, name) for name in pool.names)

    def cannot(self, question: Question, tokens: int) -> dict[str, Excluded]:
        """The targets that can't answer, or that the client's key may not use.

        Args:
            question: The request.
            tokens: Its estimated input tokens.
        """
        needed = tokens + written_tokens(question)
        found = ((m.name, _obstacle(m, question, needed)) for m in self._members)
        return {name: obstacle for name, obstacle in found if obstacle is not None}

    def unwanted(
        self, question: Question, cost: PerTarget | None, excluded: Mapping[str, Excluded]
    ) -> dict[str, Excluded]:
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

    def unusable(self, question: Question, cost: PerTarget | None, name: str) -> Excluded | None:
        """Why a target that the client named can't be used; None where it can.

        What it accepts and holds isn't looked at: the client knows what it names.
        """
        member = next(m for m in self._members if m.name == name)
        return _closed(member, question) or _too_dear(member, question, cost)

    def broken(
        self, excluded: Mapping[str, Excluded], breaker_open: Callable[[str], bool]
    ) -> dict[str, Excluded]:
        """`excluded`, and the targets whose breaker is open, unless nobody would be left."""
        names = [m.name for m in self._members if m.name not in excluded]
        failing = {name for name in names if breaker_open(name)}
        if not failing or len(failing) == len(names):
            return dict(excluded)
        return {
            **excluded,
            **{n: Excluded("breaker", "breaker open") for n in names if n in failing},
        }

    def left(self, excluded: Mapping[str, Excluded]) -> list[int]:
        """The columns of the targets that aren't excluded, in the pool's order."""
        return [m.column for m in self._members if m.name not in excluded]


def written_tokens(question: Question) -> int:
    """Tokens that an answer may have: the client's limit, or room for a common one."""
    if question.endpoint == "embeddings":
        return 0
    return RESERVE_TOKENS if question.max_tokens is None else question.max_tokens


def _member(pool: Pool, name: str) -> _Member:
    target = pool[name]
    has_endpoint = target.provider is not None or target.base_url is not None
    serves = pool.serves(name) if has_endpoint or target.serves is not None else ENDPOINTS
    return _Member(
        name=name,
        column=pool.indices([name])[0],
        serves=frozenset(serves),
        has_endpoint=has_endpoint,
        accepts=frozenset(target.accepts),
        context=target.context_tokens,
    )


def _obstacle(member: _Member, question: Question, tokens: int) -> Excluded | None:
    closed = _closed(member, question)
    if closed is not None:
        return closed
    lacking = question.needs - member.accepts
    if lacking:
        return Excluded("need", f"doesn't accept {', '.join(sorted(lacking))}")
    if member.context is not None and tokens > member.context:
        return Excluded("context", f"holds {member.context} tokens, about {tokens} are needed")
    return None


def _closed(member: _Member, question: Question) -> Excluded | None:
    if question.key_targets is not None and member.name not in question.key_targets:
        return Excluded("key", "not allowed by the key")
    if question.to_call and not member.has_endpoint:
        return Excluded("call", "has no endpoint")
    if question.endpoint not in member.serves:
        return Excluded("endpoint", f"doesn't serve {question.endpoint}")
    return None


def _ruled_out(name: str, question: Question) -> Excluded | None:
    allowed = question.allow is None or name in question.allow
    if allowed and name not in question.exclude:
        return None
    return Excluded("request", "ruled out by the request")


def _too_dear(member: _Member, question: Question, cost: PerTarget | None) -> Excluded | None:
    most = question.max_cost
    if most is None or cost is None or cost[member.column] <= most:
        return None
    return Excluded("cost", f"about {cost[member.column]:.3g} dollars, above {most:.3g}")
