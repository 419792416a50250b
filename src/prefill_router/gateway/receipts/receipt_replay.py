"""What another lam, other prices or another router would have chosen, and cost."""

import math
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import TYPE_CHECKING, Any, final

import numpy as np
from numpy.typing import NDArray

from prefill_router.cost import CostScale
from prefill_router.data import Prompt, prompt_key
from prefill_router.errors import DataError
from prefill_router.gateway.receipts.replay_table import PerCell, PerRequest, Recorded, Who
from prefill_router.gateway.receipts.rows import prompt_of
from prefill_router.gateway.records import Receipt
from prefill_router.progress import Progress
from prefill_router.targets import Pool

if TYPE_CHECKING:
    from prefill_router.router import Forecast, Router


_MILLION = 1e6


@final
@dataclass(frozen=True, kw_only=True)
class ReplaySetting:
    """What one setting would have done.

    Attributes:
        name: Of the setting.
        requests: How many were decided again.
        changed: How many of them would have had another target than they had.
        accuracy: Mean probability of the chosen targets; NaN where unknown.
        estimated_cost: Of all requests, US dollars; NaN where unknown.
        observed_cost: Of those whose target is the same and whose cost is known, US dollars; NaN
            where there is none.
        observed: How many these are.
        moves: From whom to whom requests go, and how many, the most frequent first.
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
        told = ("accuracy", "estimated_cost", "observed_cost")
        unknown = {name: None for name in told if math.isnan(getattr(self, name))}
        return asdict(self) | unknown


@final
@dataclass(frozen=True, eq=False)
class Replay:
    """Recorded requests, decided again.

    Attributes:
        recorded: Them, as they are decided now.
        settings: What was, then what would have been.
        notes: What to know about the figures.
        sessions: Whether conversations kept their target, as the gateway has them do; else each
            request was decided by itself.
    """

    recorded: Recorded
    settings: tuple[ReplaySetting, ...]
    notes: tuple[str, ...] = ()
    sessions: bool = False


def replay(recorded: Recorded, lams: Sequence[float], *, notes: Sequence[str] = ()) -> Replay:
    """Decide recorded requests again.

    Args:
        recorded: The requests, with what they are decided by.
        lams: The trade-offs; besides, each request's own is tried.
        notes: What to know about the figures.

    Raises:
        DataError: No request can be decided again; the message says why.
        ConfigError: A lam is outside [0, 1].
    """
    check_any(recorded)
    own = recorded.at_own_lam()
    settings = [
        replay_setting(recorded, "as it was", recorded.chosen),
        replay_setting(recorded, "at its own lam", own),
        *(replay_setting(recorded, f"lam = {lam:g}", recorded.at(lam)) for lam in lams),
    ]
    return Replay(recorded, tuple(settings), tuple(notes))


def check_any(recorded: Recorded) -> None:
    """Check that there is something to decide again.

    Raises:
        DataError: There isn't; the message says why.
    """
    if not len(recorded):
        why = "; ".join(f"{count} {reason}" for reason, count in recorded.left_out.items())
        raise DataError(
            f"no request can be decided again: {why or 'there are no receipts'}; receipts of "
            "routed requests with a forecast are needed"
        )


def replay_setting(
    recorded: Recorded, name: str, who: Who, *, cost: PerRequest | None = None
) -> ReplaySetting:
    """What a choice of targets would have given.

    Args:
        recorded: The requests.
        name: Of the setting.
        who: The column of each one's target.
        cost: What each is estimated to cost there, US dollars; with nothing cached if not given.
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
    """The same requests at a pool's prices.

    Receipts don't hold what Equation 1 was fitted on, so it is done anew: each target's median
    output tokens, and its input tokens for each one that was estimated, are those of the receipts
    that it answered. The scale of costs is the range of the new estimates.

    Raises:
        ConfigError: The pool lacks a target.
        DataError: A target has no prices, or no receipt tells how much it writes.
    """
    prices = [pool[name] for name in recorded.targets]
    outputs, ratios = _habits(receipts, recorded.targets)
    cost = np.empty_like(recorded.estimated_cost)
    for k, target in enumerate(prices):
        if target.input_price is None or target.output_price is None:
            raise DataError(f"target {target.name!r} has no prices in the pool; give it both")
        if np.isnan(outputs[k]) and target.output_price:
            raise DataError(
                f"no receipt tells how many tokens target {target.name!r} writes, so its cost at "
                "other prices isn't known; replay with --router, which learned that"
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
    """The same requests, as another router sees them; it reads the prompts that were kept.

    Returns:
        The requests whose prompts were kept, and how many others there are. Targets that the router
        doesn't know aren't chosen among.

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
            "no receipt holds its prompt, which another router must read; have the gateway keep "
            "them: receipts: {prompts: true}"
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
        """A table of the router's targets in the columns of the receipts; NaN where unknown."""
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
    """What the router expects of each request; a prompt that came often is read once."""
    keys = [prompt_key(prompt) for prompt in prompts]
    distinct = dict(zip(keys, prompts, strict=True))
    found = router.forecast_many(list(distinct.values()), progress=progress)
    each = dict(zip(distinct, found, strict=True))
    # What was asked is more than what the encoder reads, so its own count of tokens is used.
    return [
        replace(each[key], tokens=int(tokens) or each[key].tokens)
        for key, tokens in zip(keys, part.input_tokens, strict=True)
    ]


def _habits(
    receipts: Iterable[Receipt], targets: Sequence[str]
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Each target's median output tokens, and median input tokens for each estimated one."""
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
