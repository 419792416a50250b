"""What metrics read of the gateway's parts when they are asked for."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, final

from prefill_router.gateway.telemetry.drift import Drift

BreakerState = Literal["closed", "half_open", "open"]
Numbers = Mapping[str, float]


@final
@dataclass(frozen=True, kw_only=True)
class BudgetLeft:
    """What is left of a budget.

    Attributes:
        key: Whose; empty for the whole gateway's.
        per: In each hour or day.
        dollars: How many it has.
        left: How many are left, not below 0.
    """

    key: str
    per: Literal["hour", "day"]
    dollars: float
    left: float


def _nothing() -> Numbers:
    return {}


def _none() -> None:
    return None


@final
@dataclass(frozen=True, kw_only=True)
class Readings:
    """Where the numbers are read that nobody counts request by request.

    Each is called when metrics are asked for, on the event loop, and must be quick. Names become
    label values, so they must be few and never a client's.

    Attributes:
        in_flight: Requests under way.
        streams: Streams open.
        held_bytes: Bytes of requests' bodies that are held.
        queue: Requests that wait for a forecast.
        fallback_share: Of the last minute's decisions, those without a forecast.
        lam: The lam in force where a request names none, after budgets; None for none.
        breakers: The state of each target's breaker.
        forecasts: Counters of forecasting by name, such as `batches`, `cache_hits`, `restarts`.
        receipts: Counters of receipts by name, such as `kept`, `lost`.
        receipts_waiting: Receipts that wait to be kept.
        budgets: What is left of each budget.
        drift: How far requests have drifted; None while that can't be told.
        router: What is told of the router: `fingerprint`, `policy`, `encoder`, ...
    """

    in_flight: Callable[[], int] = lambda: 0
    streams: Callable[[], int] = lambda: 0
    held_bytes: Callable[[], int] = lambda: 0
    queue: Callable[[], int] = lambda: 0
    fallback_share: Callable[[], float] = lambda: 0.0
    lam: Callable[[], float | None] = _none
    breakers: Callable[[], Mapping[str, BreakerState]] = lambda: {}
    forecasts: Callable[[], Numbers] = _nothing
    receipts: Callable[[], Numbers] = _nothing
    receipts_waiting: Callable[[], int] = lambda: 0
    budgets: Callable[[], Sequence[BudgetLeft]] = lambda: ()
    drift: Callable[[], Drift | None] = _none
    router: Callable[[], Mapping[str, str]] = lambda: {}
