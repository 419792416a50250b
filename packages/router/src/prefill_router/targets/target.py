"""A target: one language model that requests can be routed to, and its request parameters.

It may be served by several endpoints.
"""

import json
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Any, Final, final

from prefill_router.errors import ConfigError
from prefill_router.targets.effort import check_effort, effort_in_name, name_with_effort
from prefill_router.targets.provider import (
    ABILITIES,
    ENDPOINTS,
    Ability,
    Endpoint,
    check_address,
    check_variable,
)

PRICES: Final = (
    "input_price",
    "output_price",
    "cached_input_price",
    "reasoning_price",
    "cache_write_price",
    "cache_write_hour_price",
)
"""The names of a target's prices, and of an endpoint's."""
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")


@final
@dataclass(frozen=True, kw_only=True)
class TargetEndpoint:
    """One of several endpoints that serve the same target.

    Attributes:
        name: Its name, unique in the target: letters, digits, dots, hyphens and underscores.
        provider: The name of the pool's provider that it is.
        base_url: The base URL of its API, where the pool lists no provider for it.
        api_key_env: The name of the environment variable that holds the key; never the key.
        model: Its own name for the model; None for that of the target.
        weight: Its share of the conversations, relative to the others of its priority.
        priority: Endpoints of a higher number are called only where those of a lower one can't be.
        input_price: As in `Target`; an endpoint without any price has those of its target.
        output_price: As in `Target`.
        cached_input_price: As in `Target`.
        reasoning_price: As in `Target`.
        cache_write_price: As in `Target`.
        cache_write_hour_price: As in `Target`.
    """

    name: str
    provider: str | None = None
    base_url: str | None = None
    api_key_env: str | None = None
    model: str | None = None
    weight: float = 1.0
    priority: int = 0
    input_price: float | None = None
    output_price: float | None = None
    cached_input_price: float | None = None
    reasoning_price: float | None = None
    cache_write_price: float | None = None
    cache_write_hour_price: float | None = None

    def __post_init__(self) -> None:
        if not _NAME.fullmatch(self.name):
            raise ConfigError(
                f"an endpoint has the name {self.name!r}; use letters, digits, dots, hyphens and "
                "underscores, such as east-1"
            )
        if self.provider is None and self.base_url is None:
            raise ConfigError(f"endpoint {self.name!r} has neither a provider nor a base_url")
        if isinstance(self.weight, bool) or not (math.isfinite(self.weight) and self.weight > 0):
            raise ConfigError(
                f"endpoint {self.name!r} has the weight {self.weight}; it must be a number "
                "above 0. For an endpoint that is called only when others fail, raise its "
                "priority"
            )

    def to_dict(self) -> dict[str, Any]:
        """Plain values, without defaults."""
        return {f.name: v for f in fields(self) if (v := getattr(self, f.name)) != f.default}


MOST_TOKENS = 128_000
"""The paper's limit on output tokens (its section on correctness labels)."""
_OURS = ("messages", "model", "stream", "stream_options")
_NUMBERS = ("max_tokens", "max_completion_tokens", "thinking_budget", "n")


@final
@dataclass(frozen=True, kw_only=True)
class RequestOptions:
    """The parameters of a target's requests. None leaves the provider's own default.

    Attributes:
        max_tokens: The most tokens of an answer, including reasoning.
        reasoning_effort: An effort such as `high`, for targets that have the parameter.
        enable_thinking: Whether to reason, for targets with that switch.
        thinking_budget: The most tokens of reasoning, for targets that have such a limit.
        temperature: The sampling temperature.
        top_p: The probability mass that nucleus sampling keeps.
        top_k: The number of most likely tokens that sampling keeps.
        seed: The seed of sampling, where the provider accepts one.
        extra_body: Further fields of the request body, sent unchanged.
    """

    max_tokens: int = MOST_TOKENS
    reasoning_effort: str | None = None
    enable_thinking: bool | None = None
    thinking_budget: int | None = None
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    seed: int | None = None
    extra_body: Mapping[str, Any] = field(default_factory=dict, hash=False)

    def __post_init__(self) -> None:
        if self.max_tokens < 1:
            raise ConfigError(f"max_tokens is {self.max_tokens}; at least 1 is needed")
        if self.thinking_budget is not None and self.thinking_budget < 1:
            raise ConfigError(f"thinking_budget is {self.thinking_budget}; at least 1 is needed")
        for what in ("temperature", "top_p"):
            value = getattr(self, what)
            if value is not None and not (math.isfinite(value) and value >= 0):
                raise ConfigError(f"{what} is {value}; it must be a number, 0 or more")
        ours = sorted(set(self.extra_body) & set(_OURS))
        if ours:
            raise ConfigError(f"extra_body sets {ours}, which prefill-router sets; leave them out")
        try:
            json.dumps(dict(self.extra_body), allow_nan=False)
        except (TypeError, ValueError) as error:
            raise ConfigError(f"extra_body isn't JSON: {error}") from None
        for name in _NUMBERS:
            number = self.extra_body.get(name, 1)
            if isinstance(number, bool) or not isinstance(number, int) or number < 1:
                raise ConfigError(
                    f"extra_body sets {name} to {number!r}; it must be a whole number above 0, "
                    "since it bounds what a call can cost"
                )

    @property
    def has_reasoning(self) -> bool:
        """Whether they say how much a model should think."""
        chosen = (self.reasoning_effort, self.enable_thinking, self.thinking_budget)
        return any(value is not None for value in chosen)

    def to_dict(self) -> dict[str, Any]:
        """Plain values, without those left to the provider."""
        plain = {k: v for k, v in vars(self).items() if v is not None and k != "extra_body"}
        return {**plain, **({"extra_body": dict(self.extra_body)} if self.extra_body else {})}


MOST_PRICE: Final = 1e5
"""US dollars per million tokens; a higher price is a mistake, such as another unit."""


@final
@dataclass(frozen=True, kw_only=True)
class Target:
    """One language model that requests can be routed to.

    Attributes:
        name: Its name, unique in the pool. With an effort it ends in it, such as `large:low`.
        effort: How much it thinks before it answers: one of `EFFORTS`, or a budget of thinking
            tokens. None leaves it to the provider, and to `request`. A name that ends in one of
            `EFFORTS` sets it, where neither `model` nor `request` says otherwise.
        input_price: US dollars per million input tokens; None where unknown.
        output_price: US dollars per million output tokens; None where unknown.
        cached_input_price: The price of input tokens read from the provider's cache; None where
            they cost as much as others.
        reasoning_price: The price of reasoning tokens; None where they cost as much as output.
        cache_write_price: The price of input tokens that are written to the provider's cache, for
            some minutes; None where they cost as much as others.
        cache_write_hour_price: The same for an hour; None where it is the same price.
        provider: The name of the pool's provider that serves it.
        base_url: The base URL of its API, where the pool lists no provider for it.
        api_key_env: The name of the environment variable that holds the key; never the key.
        model: The endpoint's own name for it, where that differs from `name`.
        request: The parameters of its requests.
        accepts: What it supports besides plain text; what isn't listed isn't supported.
        context_tokens: Its context window, prompt plus answer; None for no known limit.
        serves: The API endpoints that it serves; None for those of its provider's dialect.
        endpoints: Where it is served, if at several addresses; `provider`, `base_url`
            and `api_key_env` are then those of the first.
    """

    name: str
    effort: str | None = None
    input_price: float | None = None
    output_price: float | None = None
    cached_input_price: float | None = None
    reasoning_price: float | None = None
    cache_write_price: float | None = None
    cache_write_hour_price: float | None = None
    provider: str | None = None
    base_url: str | None = None
    api_key_env: str | None = None
    model: str | None = None
    request: RequestOptions = field(default_factory=RequestOptions)
    accepts: tuple[Ability, ...] = ()
    context_tokens: int | None = None
    serves: tuple[Endpoint, ...] | None = None
    endpoints: tuple[TargetEndpoint, ...] = ()

    def __post_init__(self) -> None:
        if not self.name.strip():
            raise ConfigError("a target has an empty name; give it one")
        self._take_effort()
        if self.endpoints:
            self._take_first_endpoint()
        check_variable(self.api_key_env, f"target {self.name!r}")
        if self.base_url is not None:
            check_address(self.base_url, f"target {self.name!r}")
        self._check_prices()
        self._check_abilities()
        if self.provider is not None and (self.base_url or self.api_key_env):
            raise ConfigError(
                f"target {self.name!r} has both a provider and its own endpoint; keep one of them"
            )

    def _check_prices(self) -> None:
        low, high, *special = (getattr(self, name) for name in PRICES)
        for price in (low, high, *special):
            if price is not None and not (math.isfinite(price) and price >= 0):
                raise ConfigError(
                    f"target {self.name!r} has the price {price}; prices are US dollars per "
                    "million tokens, finite and not negative"
                )
            if price is not None and (isinstance(price, bool) or price > MOST_PRICE):
                raise ConfigError(
                    f"target {self.name!r} has the price {price}; a price must be a number of US "
                    f"dollars per million tokens, at most {MOST_PRICE:,.0f}"
                )
        if (self.input_price is None) != (self.output_price is None):
            raise ConfigError(
                f"target {self.name!r} has only one price; give both the input and the output "
                "price, or neither"
            )
        if any(price is not None for price in special) and self.input_price is None:
            raise ConfigError(
                f"target {self.name!r} has only a price of caching or reasoning; give its input "
                "and output price too"
            )

    def _take_effort(self) -> None:
        """Read the effort in the name, and name the model without it."""
        effort = self._find_effort if self.effort is None else self.effort
        if effort is None:
            return
        check_effort(effort, f"target {self.name!r}")
        object.__setattr__(self, "effort", effort)
        if not re.search(rf".:{effort}(?!\w)", self.name):
            raise ConfigError(
                f"target {self.name!r} has the effort {effort!r}, which its name lacks; name it "
                f"{self.name}:{effort}, or list its efforts as efforts: [{effort}]"
            )
        if effort_in_name(self.base) is not None:
            raise ConfigError(f"target {self.name!r} has two efforts in its name; keep one of them")
        if self.request.has_reasoning:
            raise ConfigError(
                f"target {self.name!r} has an effort, and its request sets its reasoning too; "
                "keep one of them"
            )
        if self.model is None:
            object.__setattr__(self, "model", self.base)

    @property
    def _find_effort(self) -> str | None:
        """The effort in the name, unless a model or its reasoning is given as another."""
        model = self.name.rpartition(":")[0]
        is_another = self.model not in (None, model) or self.request.has_reasoning
        return None if is_another else effort_in_name(self.name)

    def _take_first_endpoint(self) -> None:
        names = [endpoint.name for endpoint in self.endpoints]
        if len(set(names)) < len(names):
            raise ConfigError(f"target {self.name!r} has the endpoints {names}; name each once")
        first = self.deployments[0]  # all are made, and so checked
        for what in ("provider", "base_url", "api_key_env"):
            if getattr(self, what) not in (None, getattr(first, what)):
                raise ConfigError(
                    f"target {self.name!r} has both endpoints and a {what}; give the {what} of "
                    "each endpoint instead"
                )
            object.__setattr__(self, what, getattr(first, what))

    def _check_abilities(self) -> None:
        for what, words, accepted in (
            ("accepts", self.accepts, ABILITIES),
            ("serves", self.serves or (), ENDPOINTS),
        ):
            unknown = sorted(set(words) - set(accepted))
            if unknown:
                raise ConfigError(
                    f"target {self.name!r} {what} {unknown}; known are {', '.join(accepted)}"
                )
        if self.context_tokens is not None and self.context_tokens < 1:
            raise ConfigError(
                f"target {self.name!r} has context_tokens {self.context_tokens}; at least 1 is "
                "needed"
            )

    @property
    def base(self) -> str:
        """Its name without the effort; all efforts of a model have the same."""
        if self.effort is None:
            return self.name
        before, _, after = self.name.rpartition(f":{self.effort}")
        return before + after

    @property
    def has_price(self) -> bool:
        """Whether its prices are known."""
        return self.input_price is not None

    @property
    def deployments(self) -> tuple["Target", ...]:
        """Each of its endpoints as a target, named such as `large@east`; or itself."""
        return tuple(map(self._at_endpoint, self.endpoints)) or (self,)

    def with_effort(self, effort: str) -> "Target":
        """The same model with this effort, as a target of its own.

        Raises:
            ConfigError: There is no such effort, or the target has one already.
        """
        if self.effort is not None:
            raise ConfigError(f"target {self.name!r} has an effort already; keep one of them")
        return replace(self, name=name_with_effort(self.name, effort), effort=effort)

    def with_prices_of(self, other: "Target") -> "Target":
        """The same target at the prices of another."""
        return replace(self, **{name: getattr(other, name) for name in PRICES})

    def at_first(self) -> "Target":
        """The target at its first endpoint alone, with its prices there."""
        return replace(self.deployments[0], name=self.name) if self.endpoints else self

    def _at_endpoint(self, endpoint: TargetEndpoint) -> "Target":
        changes = {k: getattr(endpoint, k) for k in ("provider", "base_url", "api_key_env")}
        prices = {name: getattr(endpoint, name) for name in PRICES}
        if any(price is not None for price in prices.values()):
            changes |= prices
        return replace(
            self,
            name=f"{self.name}@{endpoint.name}",
            model=endpoint.model or self.model or self.name,
            endpoints=(),
            **changes,
        )

    def to_dict(self) -> dict[str, Any]:
        """Plain values, without what isn't known."""
        apart = {"request", "endpoints"}
        if self.endpoints:
            apart |= {"provider", "base_url", "api_key_env"}  # those of the first
        values = {
            k: _to_plain(v) for k, v in vars(self).items() if v not in (None, ()) and k not in apart
        }
        request = {} if self.request == RequestOptions() else {"request": self.request.to_dict()}
        served = [endpoint.to_dict() for endpoint in self.endpoints]
        return {**values, **request, **({"endpoints": served} if served else {})}


def _to_plain(value: Any) -> Any:
    return list(value) if isinstance(value, tuple) else value
