"""A small router without networks, and a decider over it, for tests of deciding."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from prefill_router.cost import CostEstimator
from prefill_router.endpoints import Usage
from prefill_router.policy import Lambda, Policy
from prefill_router.router import Forecast
from prefill_router.targets import Pool, Target
from prefill_router_gateway import RoutingRequest
from prefill_router_gateway.decide import Budgets, Decider, Sessions, TargetSpeeds
from prefill_router_gateway.records import RequestOutcome, RoutingDecision
from prefill_router_gateway.settings import GatewaySettings

AT = 1_790_000_000.0
URL = "http://127.0.0.1:1/v1"


def target(name: str, *, price: float | None = 1.0, **options: Any) -> Target:
    prices = {} if price is None else {"input_price": price, "output_price": 4 * price}
    return Target(name=name, **{**prices, "base_url": URL, **options})


def estimator(pool: Pool, *, output: float = 100, ratio: float = 1, least: float = 0) -> Any:
    one = np.ones(len(pool))
    return CostEstimator(
        pool,
        median_output=output * one,
        token_ratio=ratio * one,
        least_input=least * one,
        most_input=1000 * one,
        fixed=np.nan * one,
    )


@dataclass
class Parts:
    """What a decider needs of a router."""

    costs: CostEstimator
    policy: Policy = field(default_factory=Lambda)
    reference_accuracy: np.ndarray | None = None
    fingerprint: str = "0123456789abcdef"

    @property
    def pool(self) -> Pool:
        return self.costs.pool


def parts(*targets: Target, policy: Policy | None = None, prior: Any = None) -> Parts:
    costs = estimator(Pool(targets))
    known = None if prior is None else np.array(prior, dtype=float)
    return Parts(costs, policy or Lambda(), known)


THREE = parts(target("small", price=0.1), target("middle", price=1.0), target("large", price=5.0))


@dataclass
class World:
    """A decider, with all that outlives it within reach."""

    decider: Decider
    sessions: Sessions
    budgets: Budgets
    open_breakers: set[str]
    told: list[str]

    def decide(self, forecast: Any = None, **question: Any) -> RoutingDecision:
        return self.decider.decide(ask(**question), forecast)


def world(
    router: Parts = THREE,
    *,
    limited: Callable[[str, int], bool] | None = None,
    speeds: TargetSpeeds | None = None,
    pool: Pool | None = None,
    **settings: Any,
) -> World:
    read = GatewaySettings(**settings)
    sessions, budgets = Sessions(read.sessions), Budgets(read.budgets)
    breakers: set[str] = set()
    told: list[str] = []
    decider = Decider(
        router,
        read,
        sessions=sessions,
        budgets=budgets,
        breaker_open=breakers.__contains__,
        limited=limited,
        speeds=speeds,
        pool=pool,
        warn=told.append,
    )
    return World(decider, sessions, budgets, breakers, told)


def ask(**known: Any) -> RoutingRequest:
    return RoutingRequest(
        **{"endpoint": "chat", "at": AT, "text_bytes": 400, "scored_bytes": 400, **known}
    )


def forecast(*p: float, tokens: int = 100, novelty: float | None = None) -> Forecast:
    return Forecast(np.array(p, dtype=float), tokens, False, novelty)


def outcome(
    name: str | None, *, tokens: tuple[int, int] = (0, 0), kind: Any = "answered", **known: Any
) -> RequestOutcome:
    usage = Usage(input_tokens=tokens[0], output_tokens=tokens[1]) if any(tokens) else None
    return RequestOutcome(kind=kind, target=name, status=200, attempts=(), usage=usage, **known)
