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
    ones = np.ones(len(pool))
    return CostEstimator(
        pool,
        median_output=output * ones,
        token_ratio=ratio * ones,
        least_input=least * ones,
        most_input=1000 * ones,
        fixed=np.nan * ones,
    )


@dataclass
class Parts:
    """The parts of a router that a decider uses."""

    costs: CostEstimator
    policy: Policy = field(default_factory=Lambda)
    reference_accuracy: np.ndarray | None = None
    fingerprint: str = "0123456789abcdef"

    @property
    def pool(self) -> Pool:
        return self.costs.pool


def parts(*targets: Target, policy: Policy | None = None, prior: Any = None) -> Parts:
    costs = estimator(Pool(targets))
    accuracy = None if prior is None else np.array(prior, dtype=float)
    return Parts(costs, policy or Lambda(), accuracy)


THREE_TARGETS = parts(
    target("small", price=0.1), target("middle", price=1.0), target("large", price=5.0)
)


@dataclass
class DeciderSetup:
    """A decider, and the parts that outlive it."""

    decider: Decider
    sessions: Sessions
    budgets: Budgets
    open_breakers: set[str]
    messages: list[str]

    def decide(self, forecast: Any = None, **fields: Any) -> RoutingDecision:
        return self.decider.decide(build_question(**fields), forecast)


def set_up_decider(
    router: Parts = THREE_TARGETS,
    *,
    limited: Callable[[str, int], bool] | None = None,
    speeds: TargetSpeeds | None = None,
    pool: Pool | None = None,
    **settings: Any,
) -> DeciderSetup:
    gateway_settings = GatewaySettings(**settings)
    sessions, budgets = Sessions(gateway_settings.sessions), Budgets(gateway_settings.budgets)
    breakers: set[str] = set()
    messages: list[str] = []
    decider = Decider(
        router,
        gateway_settings,
        sessions=sessions,
        budgets=budgets,
        breaker_open=breakers.__contains__,
        limited=limited,
        speeds=speeds,
        pool=pool,
        warn=messages.append,
    )
    return DeciderSetup(decider, sessions, budgets, breakers, messages)


def build_question(**fields: Any) -> RoutingRequest:
    return RoutingRequest(
        **{"endpoint": "chat", "at": AT, "text_bytes": 400, "scored_bytes": 400, **fields}
    )


def build_forecast(*p: float, tokens: int = 100, novelty: float | None = None) -> Forecast:
    return Forecast(np.array(p, dtype=float), tokens, False, novelty)


def outcome(
    name: str | None, *, tokens: tuple[int, int] = (0, 0), kind: Any = "answered", **fields: Any
) -> RequestOutcome:
    usage = Usage(input_tokens=tokens[0], output_tokens=tokens[1]) if any(tokens) else None
    return RequestOutcome(kind=kind, target=name, status=200, attempts=(), usage=usage, **fields)
