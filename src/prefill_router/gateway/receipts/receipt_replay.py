"""What another lam, other prices or another router would have chosen, and at what cost."""

import math
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import TYPE_CHECKING, Any, final

import numpy as np
from numpy.typing import NDArray

from prefill_router.cost import CostScale
from prefill_router.data import Prompt, prompt_key
from prefill_router.errors import DataError
from prefill_router.gateway.receipts.replay_table import (
    PerCell,
    PerRequest,
    Recorded,
    TargetColumns,
)
from prefill_router.gateway.receipts.rows import prompt_of
from prefill_router.gateway.records import Receipt
from prefill_router.gateway.settings import LatencySettings
from prefill_router.progress import Progress
from prefill_router.targets import Pool

if TYPE_CHECKING:
    from prefill_router.router import Forecast, Router


_MILLION = 1e6


@final
@dataclass(frozen=True, kw_only=True)
class ReplaySetting:
    """The result of recorded requests at one setting.

    Attributes:
        name: The setting's name.
        requests: The number of requests that were decided again.
        changed: The number of them that would have had another target.
        accuracy: Mean predicted probability of the chosen targets; NaN where unknown.
        estimated_cost: Estimated US dollars of all requests; NaN where unknown.
        observed_cost: Observed US dollars of the requests that keep their target and have a known
            cost; NaN where there are none.
        observed: The number of these.
        moves: The changes of target, from, to and how many, the most frequent first.
    """

    name: str
    requests: int
    changed: int
    accuracy: float
    estimated_cost: float
    observed_cost: float
    observed: int
    moves: list[tuple[str, str, int]] = field(default_factory=list)

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON."""
        figures = ("accuracy", "estimated_cost", "observed_cost")
        unknown = {name: None for name in figures if math.isnan(getattr(self, name))}
        return asdict(self) | unknown


@final
@dataclass(frozen=True, eq=False)
class Replay:
    """Recorded requests, decided again.

    Attributes:
        recorded: The requests, as they are decided now.
        settings: The settings: first as it was, then those that were tried.
        notes: Remarks on the figures.
        sessions: Whether conversations kept their target as in the gateway; otherwise each request
            was decided by itself.
    """

    recorded: Recorded
    settings: tuple[ReplaySetting, ...]
    notes: tuple[str, ...] = ()
    sessions: bool = False


LATENCY = "with this latency"
"""The name of the setting with other settings of latency."""


def replay(
    recorded: Recorded,
    lams: Sequence[float],
    *,
    latency: LatencySettings | None = None,
    notes: Sequence[str] = (),
) -> Replay:
    """Decide recorded requests again.

    Args:
        recorded: The requests.
        lams: The trade-offs to try; each request's own is tried too.
        latency: Settings of latency to try, at each request's own lam; None for none.
        notes: Remarks on the figures.

    Raises:
        DataError: No request can be decided again, or none has predicted waiting for `latency`; the
            message says why.
        ConfigError: A lam is outside [0, 1].
    """
    check_any(recorded)
    own = recorded.at_own_lam()
    settings = [
        replay_setting(recorded, "as it was", recorded.chosen),
        replay_setting(recorded, "at its own lam", own),
        *(replay_setting(recorded, f"lam = {lam:g}", recorded.at(lam)) for lam in lams),
    ]
    if latency is not None:
        tried = recorded.with_latency(latency).at_own_lam()
        settings.append(replay_setting(recorded, LATENCY, tried))
    return Replay(recorded, tuple(settings), tuple(notes))


def check_any(recorded: Recorded) -> None:
    """Check that there are requests that can be decided again.

    Raises:
        DataError: There are none; the message says why.
    """
    if not len(recorded):
        why = "; ".join(f"{count} {reason}" for reason, count in recorded.left_out.items())
        raise DataError(
            f"no request can be decided again: {why or 'there are no receipts'}; receipts of "
            "routed requests with a forecast are needed"
        )


def replay_setting(
    recorded: Recorded, name: str, who: TargetColumns, *, cost: PerRequest | None = None
) -> ReplaySetting:
    """The result of a choice of targets.

    Args:
        recorded: The requests.
        name: The setting's name.
        who: The column of each request's target.
        cost: The estimated US dollars of each; by default, estimates with nothing cached.
    """
    point = recorded.point(who)
    estimated = point.cost * len(recorded)
    if cost is not None and recorded.priced.all():
        estimated = float(cost.sum())
    same = (who == recorded.chosen) & ~np.isnan(recorded.observed)
    return ReplaySetting(
        name=name,
        requests=len(recorded),
        changed=int((who != recorded.chosen).sum()),
        accuracy=point.accuracy,
        estimated_cost=estimated,
        observed_cost=float(recorded.observed[same].sum()) if same.any() else math.nan,
        observed=int(same.sum()),
        moves=recorded.moves(recorded.chosen, who),
    )


def at_prices(recorded: Recorded, receipts: Iterable[Receipt], pool: Pool) -> Recorded:
    """The requests at a pool's prices.

    Receipts lack the data that Equation 1 was fitted on, so it is fitted again on the receipts:
    each target's median output tokens, and its median ratio of reported to estimated input tokens,
    over the requests that it answered. The cost scale is the range of the new estimates.

    Raises:
        ConfigError: The pool doesn't have one of the targets.
        DataError: A target has no prices, or no receipt has its output tokens.
    """
    prices = [pool[name] for name in recorded.targets]
    outputs, ratios = _habits(receipts, recorded.targets)
    cost = np.empty_like(recorded.estimated_cost)
    for k, target in enumerate(prices):
        if target.input_price is None or target.output_price is None:
            raise DataError(f"target {target.name!r} has no prices in the pool; give both prices")
        if np.isnan(outputs[k]) and target.output_price:
            raise DataError(
                f"no receipt has output tokens of target {target.name!r}, so its cost at other "
                "prices is unknown; replay with --router, which has learned its output lengths"
            )
        written = 0.0 if not target.output_price else outputs[k] * target.output_price
        given = recorded.input_tokens * ratios[k] * target.input_price
        cost[:, k] = (given + written) / _MILLION
    return recorded.again(
        estimated_cost=np.where(np.isnan(recorded.estimated_cost), np.nan, cost),
        scale=CostScale(float(cost.min()), float(cost.max())) if cost.size else None,
    )


def by_router(
    recorded: Recorded,
    receipts: Iterable[Receipt],
    router: "Router",
    *,
    progress: Progress | None = None,
) -> tuple[Recorded, int]:
    """The requests with another router's forecasts; it reads the prompts that were kept.

    Returns:
        The requests whose prompts were kept, and the number of the others. Targets that the router
        doesn't know are never chosen.

    Raises:
        DataError: No prompt was kept, or the router knows none of the targets.
        PromptError: A prompt can't be encoded.
    """
    wanted = set(recorded.ids)
    prompts = {
        r.choice.id: prompt_of(r.prompt)
        for r in receipts
        if r.prompt is not None and r.choice.id in wanted
    }
    rows = np.array([i for i, name in enumerate(recorded.ids) if name in prompts], dtype=np.int64)
    lacking = len(recorded) - len(rows)
    if not len(rows):
        raise DataError(
            "no receipt has its prompt, which another router must read; to keep prompts, put this "
            "in the gateway's settings: receipts: {prompts: true}"
        )
    part = recorded.select(rows)
    shared = [name for name in part.targets if name in router.pool.names]
    if not shared:
        raise DataError(
            f"the router chooses among {list(router.pool.names)}; the receipts have "
            f"{list(part.targets)}"
        )
    forecasts = _forecasts(part, [prompts[i] for i in part.ids], router, progress)
    named = {name: k for k, name in enumerate(router.pool.names)}
    columns = [named.get(name, -1) for name in part.targets]

    def of_receipts(table: PerCell) -> PerCell:
        """Map a table of the router's targets to the receipts' columns; NaN where unknown."""
        unknown = np.full((len(table), 1), np.nan)
        return np.concatenate([table, unknown], axis=1)[:, columns]

    again = part.again(
        correctness=of_receipts(np.stack([forecast.correctness for forecast in forecasts])),
        estimated_cost=of_receipts(router.estimated_cost(forecasts)),
        priced=not router.costs.is_free,
        scale=router.costs.scale,
        policy=router.policy,
    )
    return again, lacking


def _forecasts(
    part: Recorded, prompts: Sequence[Prompt], router: "Router", progress: Progress | None
) -> "list[Forecast]":
    """The router's forecast of each request; equal prompts are read once."""
    keys = [prompt_key(prompt) for prompt in prompts]
    distinct = dict(zip(keys, prompts, strict=True))
    found = router.forecast_many(list(distinct.values()), progress=progress)
    each = dict(zip(distinct, found, strict=True))
    # The recorded count is used, since the whole request is longer than what the encoder reads.
    return [
        replace(each[key], tokens=int(tokens) or each[key].tokens)
        for key, tokens in zip(keys, part.input_tokens, strict=True)
    ]


def _habits(
    receipts: Iterable[Receipt], targets: Sequence[str]
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Each target's median output tokens, and its median ratio of input tokens to estimates."""
    outputs: dict[str, list[float]] = {name: [] for name in targets}
    ratios: dict[str, list[float]] = {name: [] for name in targets}
    for receipt in receipts:
        usage, name = receipt.outcome.usage, receipt.outcome.target
        if usage is None or name not in outputs or receipt.outcome.kind != "answered":
            continue
        if usage.output_tokens is not None and usage.output_tokens >= 0:
            outputs[name].append(usage.output_tokens)
        given = -1 if usage.input_tokens is None else usage.input_tokens
        if given >= 0 and receipt.choice.input_tokens > 0:
            ratios[name].append(given / receipt.choice.input_tokens)
    return (
        np.array([np.median(outputs[n]) if outputs[n] else np.nan for n in targets]),
        np.array([np.median(ratios[n]) if ratios[n] else 1.0 for n in targets]),
    )
