"""Which targets may answer a request, what each would cost, and the errors where none may.

Costs are those of Equation 1, scores those of Equation 2. Of a request's text only the length is
known here. A client gets an error where no target may answer, or the one that it needs can't.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Literal, final, get_args

import numpy as np
from jaxtyping import Float
from numpy.typing import NDArray

from prefill_router.cost import CostEstimator, CostScale
from prefill_router.endpoints import estimate_tokens
from prefill_router.money import dollars, list_price
from prefill_router.policy import score
from prefill_router.router import Forecast
from prefill_router.targets import ENDPOINTS, Ability, Endpoint, Pool, Target
from prefill_router_gateway.errors import TOO_LONG, RefusalError
from prefill_router_gateway.records import HEADER, CacheMark, FallbackReason, RoutingRequest

PerTarget = Float[NDArray[np.float64], " target"]
_MILLION = 1e6
RESERVE_TOKENS = 256
"""Tokens reserved for the answer in a target's context, where the client sets no limit."""

Obstacle = Literal["call", "endpoint", "need", "context", "key", "request", "cost", "breaker"]
"""Why a target may not answer.

- `call`: the pool has no endpoint for it; `endpoint`: it doesn't serve this endpoint;
- `need`: it lacks an ability; `context`: the request is too long for it;
- `key`: the client's key may not use it; `request`: the client rules it out;
- `cost`: it would cost more than the client allows; `breaker`: it failed too often recently.
"""


@final
@dataclass(frozen=True)
class Exclusion:
    """Why one target may not answer.

    Attributes:
        obstacle: The kind of reason.
        words: The reason in a few words.
        context: The tokens of its context, where the request is too long for it; otherwise 0.
        needed: The tokens that the request needs there.
    """

    obstacle: Obstacle
    words: str
    context: int = 0
    needed: int = 0


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
    """A pool's targets with their capabilities."""

    def __init__(self, pool: Pool) -> None:
        self._members = tuple(_make_candidate(pool, name) for name in pool.names)
        self._target_of = pool.target_of

    def target_of(self, deployment: str) -> str:
        """The target that a remembered deployment belongs to; a target's name stays as it is."""
        return self._target_of.get(deployment, deployment)

    def find_barred(self, question: RoutingRequest) -> dict[str, Exclusion]:
        """The targets that can't answer however short the request is."""
        exclusions = {}
        for member in self._members:
            why = _why_closed(member, question)
            if why is None and (lacking := question.needs - member.accepts):
                why = Exclusion("need", f"doesn't accept {', '.join(sorted(lacking))}")
            if why is not None:
                exclusions[member.name] = why
        return exclusions

    def find_unable(
        self,
        question: RoutingRequest,
        tokens: int,
        *,
        barred: Mapping[str, Exclusion] | None = None,
    ) -> dict[str, Exclusion]:
        """The targets that can't answer, or that the client's key may not use.

        Args:
            question: The request.
            tokens: Its estimated input tokens.
            barred: The result of `find_barred`, where it was called before.
        """
        barred = self.find_barred(question) if barred is None else barred
        needed = tokens + written_tokens(question)
        exclusions = dict(barred)
        for member in self._members:
            most = member.context
            if most is not None and needed > most and member.name not in barred:
                why = f"its context has {most} tokens, about {needed} are needed"
                exclusions[member.name] = Exclusion("context", why, context=most, needed=needed)
        return exclusions if len(exclusions) == len(barred) else self._in_order(exclusions)

    def add_unwanted(
        self, question: RoutingRequest, cost: PerTarget | None, excluded: Mapping[str, Exclusion]
    ) -> dict[str, Exclusion]:
        """`excluded`, and the targets that the client rules out by name or by cost.

        Args:
            question: The request.
            cost: Every target's estimated cost in US dollars; None where prices are unknown.
            excluded: The targets that can't answer.
        """
        exclusions = dict(excluded)
        if question.allow is None and not question.exclude and question.max_cost is None:
            return exclusions
        for member in self._members:
            name, allowed = member.name, question.allow
            if name in exclusions:
                continue
            why = _why_too_expensive(member, question, cost)
            if name in question.exclude or (allowed is not None and name not in allowed):
                why = Exclusion("request", "ruled out by the request")
            if why is not None:
                exclusions[name] = why
        return exclusions

    def why_unusable(
        self, question: RoutingRequest, cost: PerTarget | None, name: str
    ) -> Exclusion | None:
        """Why a target that the client named can't be used; None where it can.

        Its abilities and context length aren't checked: the client chose it knowingly.
        """
        member = next(m for m in self._members if m.name == name)
        return _why_closed(member, question) or _why_too_expensive(member, question, cost)

    def add_broken(
        self, excluded: Mapping[str, Exclusion], breaker_open: Callable[[str], bool]
    ) -> dict[str, Exclusion]:
        """`excluded`, and the targets with an open breaker, unless no target would be left."""
        names = [m.name for m in self._members if m.name not in excluded]
        failing = {name for name in names if breaker_open(name)}
        if not failing or len(failing) == len(names):
            return dict(excluded)
        return {
            **excluded,
            **{n: Exclusion("breaker", "breaker open") for n in names if n in failing},
        }

    def _in_order(self, exclusions: Mapping[str, Exclusion]) -> dict[str, Exclusion]:
        return {m.name: exclusions[m.name] for m in self._members if m.name in exclusions}

    def columns_left(self, excluded: Mapping[str, Exclusion]) -> list[int]:
        """The columns of the targets that aren't excluded, in the pool's order."""
        return [m.column for m in self._members if m.name not in excluded]


def written_tokens(question: RoutingRequest) -> int:
    """Tokens reserved for the answer: the client's limit, or a default length."""
    if question.endpoint == "embeddings":
        return 0
    return RESERVE_TOKENS if question.max_tokens is None else question.max_tokens


def _make_candidate(pool: Pool, name: str) -> _Candidate:
    target = pool[name]
    return _Candidate(
        name=name,
        column=pool.indices([name])[0],
        serves=_served_endpoints(pool, name),
        has_endpoint=target.provider is not None or target.base_url is not None,
        accepts=frozenset(target.accepts),
        context=target.context_tokens,
    )


def _why_closed(member: _Candidate, question: RoutingRequest) -> Exclusion | None:
    if question.key_targets is not None and member.name not in question.key_targets:
        return Exclusion("key", "not allowed by the key")
    if question.to_call and not member.has_endpoint:
        return Exclusion("call", "has no endpoint")
    lost = question.untranslatable if "chat" in member.serves else None
    if question.endpoint not in member.serves and lost != "":
        more = f", and a chat can't say {lost}" if lost else ""
        return Exclusion("endpoint", f"doesn't serve {question.endpoint}{more}")
    return None


def _why_too_expensive(
    member: _Candidate, question: RoutingRequest, cost: PerTarget | None
) -> Exclusion | None:
    most = question.max_cost
    if most is None or cost is None or cost[member.column] <= most:
        return None
    return Exclusion(
        "cost", f"about {dollars(float(cost[member.column]))}, above {list_price(most)}"
    )


def request_tokens(question: RoutingRequest, read: int | None) -> int:
    """Estimated input tokens of the whole request, in the encoder's tokens.

    Args:
        question: The request.
        read: The tokens that the encoder read, whose tokens per byte are assumed for the rest.
            None where it read nothing; then 4 bytes per token are assumed.
    """
    if read is None or not question.scored_bytes:
        return max(read or 0, estimate_tokens(question.text_bytes))
    return math.ceil(read * max(1.0, question.text_bytes / question.scored_bytes))


@final
@dataclass(frozen=True, kw_only=True, eq=False)
class CachePrices:
    """What the providers' caches change about the costs of a request, per target.

    Attributes:
        written: US dollars that an input token costs more since it is written to the cache.
        saved: US dollars that a token from the cache costs less than one that isn't in it.
        seconds: For how long the cache holds it.
    """

    written: PerTarget
    saved: PerTarget
    seconds: PerTarget

    def over(self, requests: float) -> "CachePrices":
        """The same on average over so many requests, all but the first of which are in the cache.

        So only the first is written, and only there a cache from before them saves something.
        """
        first = 1 / requests
        written = self.written - (1 - first) * self.saved
        return CachePrices(written=written, saved=first * self.saved, seconds=self.seconds)


class CostScores:
    """Adjusts estimated costs for the provider's cache, and scores them by Equation 2.

    Args:
        scale: The cost scale of Equation 2.
        cache: What the caches change about the costs of all requests.
        ratio: Tokens of each target per token of the encoder.
    """

    def __init__(self, scale: CostScale, *, cache: CachePrices, ratio: PerTarget) -> None:
        self._scale, self._cache, self.ratio = scale, cache, ratio

    def cache(self, question: RoutingRequest) -> CachePrices:  # noqa: ARG002  # one for all here
        """What the caches change about the costs of a request."""
        return self._cache

    def with_cache(
        self, question: RoutingRequest, cost: PerTarget, column: int, *, tokens: int, cached: int
    ) -> PerTarget:
        """The costs where one target has part of the request in its cache.

        Args:
            question: The request.
            cost: Costs with nothing cached, in US dollars.
            column: The column of that target.
            tokens: Tokens of the request, in the encoder's tokens.
            cached: Tokens that the target has cached, in its own tokens; capped at the request's.
        """
        own = tokens * float(self.ratio[column])
        less = cost.copy()
        less[column] -= min(float(cached), own) * self.cache(question).saved[column]
        return less

    def normalise(self, cost: PerTarget) -> PerTarget:
        """Costs on the scale of the train rows."""
        return self._scale.normalise(cost)

    def scores(self, correctness: PerTarget, cost: PerTarget, lam: float) -> PerTarget:
        """Every target's score (Equation 2) at these costs, US dollars."""
        p, c = correctness[None, :], self._scale.normalise(cost)[None, :]
        scores: PerTarget = score(p, c, lam)[0]
        return scores


_HOUR = 3600.0


def _cache_effect(
    target: Target, cache_seconds: float, mark: CacheMark | None, *, by_marks: bool
) -> tuple[float, float, float]:
    """What a target's cache changes about a request's cost: the fields of `CachePrices`.

    Args:
        target: The target.
        cache_seconds: The seconds for which it is assumed to cache a prompt.
        mark: For how long the request asks to be cached.
        by_marks: Whether it caches only what requests mark.
    """
    price, minutes = target.input_price, target.cache_write_price
    if price is None:
        return 0.0, 0.0, cache_seconds
    read_price = price if target.cached_input_price is None else target.cached_input_price
    hour = minutes if target.cache_write_hour_price is None else target.cache_write_hour_price
    by_marks = by_marks and bool(minutes or hour)
    if by_marks and mark is None:
        return 0.0, 0.0, cache_seconds
    is_long = by_marks and mark == "hour"
    # price lists also have 0, where nothing is charged for writing
    write = (hour if is_long else minutes) or price
    seconds = max(cache_seconds, _HOUR) if is_long else cache_seconds
    return (write - price) / _MILLION, (write - read_price) / _MILLION, seconds


def _served_endpoints(pool: Pool, name: str) -> frozenset[Endpoint]:
    """The endpoints that a target serves; all where it has none of its own."""
    target = pool[name]
    has_endpoint = target.provider is not None or target.base_url is not None
    return frozenset(pool.serves(name) if has_endpoint or target.serves is not None else ENDPOINTS)


@final
class RequestCosts(CostScores):
    """Also estimates the costs of a request, by a router's estimator.

    A target that has a price of writing to its cache, and serves Anthropic's messages, caches only
    what a request marks. Other targets cache by themselves.

    Args:
        estimator: Estimates the costs without caches.
        cache_seconds: The seconds for which providers are assumed to cache a prompt.
    """

    def __init__(self, estimator: CostEstimator, *, cache_seconds: float) -> None:
        recorded, pool = set(estimator.recorded_targets), estimator.pool

        def prices(mark: CacheMark | None) -> CachePrices:
            each = [
                (0.0, 0.0, cache_seconds)
                if t.name in recorded
                else _cache_effect(
                    t, cache_seconds, mark, by_marks="messages" in _served_endpoints(pool, t.name)
                )
                for t in pool
            ]
            names = ("written", "saved", "seconds")
            return CachePrices(**dict(zip(names, np.array(each).T, strict=True)))

        self._caches = {mark: prices(mark) for mark in (None, *get_args(CacheMark))}
        super().__init__(estimator.scale, cache=self._caches[None], ratio=estimator.token_ratio)
        self._estimator = estimator
        self.has_prices = not estimator.is_free

    def cache(self, question: RoutingRequest) -> CachePrices:
        """What the caches change about the costs of a request, as it marks what is cached."""
        prices, requests = self._caches[question.cache_mark], question.agent.expected_requests
        return prices if requests == 1 else prices.over(requests)

    def estimate(
        self, question: RoutingRequest, tokens: int, *, expected: PerTarget | None = None
    ) -> PerTarget:
        """Every target's estimated cost in US dollars, with nothing cached.

        What it costs to write the request to a cache is part of it. Where an agent is expected to
        send several requests for an ask, it is their mean: the others read the first from a cache.

        An answer is assumed to have the forecast's length, or without a forecast the target's
        median length on the train rows, and no more than the client's limit.

        Args:
            question: The request.
            tokens: Its input tokens, in the encoder's tokens.
            expected: The forecast's output tokens per target, the mean or a high quantile.
        """
        most = 0 if question.endpoint == "embeddings" else question.max_tokens
        counts = np.array([tokens], dtype=np.float64)
        written = None if expected is None else expected[None, :]
        cost: PerTarget = self._estimator.estimate(counts, most_output=most, expected=written)[0]
        return cost + tokens * self.ratio * self.cache(question).written

    def output_tokens(self, question: RoutingRequest, expected: PerTarget | None) -> PerTarget:
        """Every target's output tokens as `estimate` assumes them; NaN where unknown."""
        median = self._estimator.median_output
        tokens = median if expected is None else np.where(np.isnan(expected), median, expected)
        return tokens if question.max_tokens is None else np.minimum(tokens, question.max_tokens)


@final
@dataclass(frozen=True, kw_only=True, eq=False)
class RequestEstimate:
    """The estimates of a request that its target is chosen by.

    Attributes:
        tokens: Its estimated input tokens, in the encoder's tokens.
        cost: Every target's estimated cost with nothing cached, in US dollars.
        high: The 90th percentile of each target's cost, in US dollars, or without a forecast the
            estimate; of this request alone. None where it is `cost`.
        correctness: Every target's predicted probability of a correct answer; None without a
            forecast.
        written: Every target's expected output tokens; None without a forecast.
        novelty: As in `Forecast`.
        fallback: Why there is no forecast, or why it isn't trusted; None where it is used.
    """

    tokens: int
    cost: PerTarget
    high: PerTarget | None = None
    correctness: PerTarget | None = None
    written: PerTarget | None = None
    novelty: float | None = None
    fallback: FallbackReason | None = None

    @property
    def high_cost(self) -> PerTarget:
        """The 90th percentile of each target's cost in US dollars, or else the estimate."""
        return self.cost if self.high is None else self.high

    @property
    def trusted_correctness(self) -> PerTarget | None:
        """The probabilities, where the forecast is trusted; else None."""
        return self.correctness if self.fallback is None else None


def request_estimate(
    question: RoutingRequest,
    forecast: Forecast | FallbackReason | None,
    *,
    costs: RequestCosts,
    targets: int,
    novelty: float,
) -> RequestEstimate:
    """Estimate a request from its forecast.

    Args:
        question: The request.
        forecast: The forecast, or why there is none; None where none was requested.
        costs: The router's costs.
        targets: The number of the router's targets.
        novelty: Forecasts of requests whose novelty is above this quantile of the train rows
            aren't trusted; 1 trusts all.
    """
    alone = question
    if question.agent.expected_requests != 1:
        alone = replace(question, agent=replace(question.agent, expected_requests=1.0))
    if not isinstance(forecast, Forecast):
        tokens, output, high_output = request_tokens(question, None), None, None
    else:
        tokens = request_tokens(question, forecast.tokens)
        output, high_output = forecast.output, forecast.output_high
        p = forecast.correctness
        if p.shape != (targets,) or not np.isfinite(p).all():  # of another router, or invalid
            forecast, output, high_output = "encoder_down", None, None
    cost = costs.estimate(question, tokens, expected=output)
    is_same = alone is question and high_output is output
    high = cost if is_same else costs.estimate(alone, tokens, expected=high_output)
    if not isinstance(forecast, Forecast):
        return RequestEstimate(tokens=tokens, cost=cost, high=high, fallback=forecast)
    is_novel = novelty < 1 and forecast.novelty is not None and forecast.novelty > novelty
    return RequestEstimate(
        tokens=tokens,
        cost=cost,
        high=high,
        correctness=p,
        written=forecast.output,
        novelty=forecast.novelty,
        fallback="novel" if is_novel else None,
    )


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


_PERMANENT: frozenset[Obstacle] = frozenset(("context", "call", "endpoint", "need", "key"))
"""What stays so for a conversation; where a context is among it, a shorter one can be answered."""


def no_eligible_target(question: RoutingRequest, excluded: Mapping[str, Exclusion]) -> RefusalError:
    """The error that says for every target why it may not answer, and what would help.

    Targets that the client's key may not use aren't named, unless there are no others.
    """
    visible = {
        name: exclusion for name, exclusion in excluded.items() if exclusion.obstacle != "key"
    } or dict(excluded)
    groups: dict[Obstacle, list[str]] = {}
    for name, why in visible.items():
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
    message = f"no target may answer this request. {'; '.join(parts)}"
    if "context" in groups and groups.keys() <= _PERMANENT:
        longest = max(visible.values(), key=lambda why: why.context)
        sizes = f"{longest.needed} tokens > {longest.context} maximum"
        message = f"{TOO_LONG}: {sizes}. {message}"
        return RefusalError(message, code="context_length_exceeded")
    return RefusalError(message, code="no_eligible_target")


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
        "is so old that the gateway no longer remembers it; call its target directly"
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
