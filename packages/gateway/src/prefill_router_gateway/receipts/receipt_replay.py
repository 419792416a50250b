"""Replays recorded requests: what another lam, other prices or another router would have chosen.

The gateway's own code decides, on the data in receipts. Where conversations keep their target, each
setting has its own memory of conversations, in which answers end at their recorded times.
"""

import heapq
import math
from collections.abc import Hashable, Iterable, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import TYPE_CHECKING, Any, final

import numpy as np
from numpy.typing import NDArray

from prefill_router.cost import CostScale
from prefill_router.data import Prompt, prompt_key
from prefill_router.errors import DataError
from prefill_router.progress import Progress
from prefill_router.targets import Pool
from prefill_router_gateway.decide import (
    Allowance,
    CachePrices,
    CostScores,
    RequestEstimate,
    Sessions,
    TargetChooser,
)
from prefill_router_gateway.receipts.explanation import AffinityRule, affinity_rule_of
from prefill_router_gateway.receipts.replay_table import (
    PerCell,
    PerRequest,
    Recorded,
    TargetColumns,
)
from prefill_router_gateway.receipts.rows import prompt_of
from prefill_router_gateway.records import Receipt, RoutingRequest
from prefill_router_gateway.settings import (
    GatewaySettings,
    LatencySettings,
    RoutingSettings,
    SessionSettings,
    TrafficSettings,
)

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
            f"no request can be decided again: {why or 'there are no receipts'}; give receipts "
            "of routed requests with a forecast"
        )


def replay_setting(
    recorded: Recorded, name: str, columns: TargetColumns, *, cost: PerRequest | None = None
) -> ReplaySetting:
    """The result of a choice of targets.

    Args:
        recorded: The requests.
        name: The setting's name.
        columns: The column of each request's target.
        cost: The estimated US dollars of each; by default, estimates with nothing cached.
    """
    point = recorded.point(columns)
    estimated = point.cost * len(recorded)
    if cost is not None and recorded.priced.all():
        estimated = float(cost.sum())
    same = (columns == recorded.chosen) & ~np.isnan(recorded.observed)
    return ReplaySetting(
        name=name,
        requests=len(recorded),
        changed=int((columns != recorded.chosen).sum()),
        accuracy=point.accuracy,
        estimated_cost=estimated,
        observed_cost=float(recorded.observed[same].sum()) if same.any() else math.nan,
        observed=int(same.sum()),
        moves=recorded.moves(recorded.chosen, columns),
    )


def at_prices(recorded: Recorded, receipts: Iterable[Receipt], pool: Pool) -> Recorded:
    """The requests at a pool's prices.

    Receipts lack the data that Equation 1 was fitted on, so it is fitted again on the receipts. It
    takes each target's median output tokens, and its median ratio of reported to estimated input
    tokens, over the requests that it answered. The cost scale is the range of the new estimates.

    Raises:
        ConfigError: The pool doesn't have one of the targets.
        DataError: A target has no prices, or no receipt has its output tokens.
    """
    prices = [pool[name] for name in recorded.targets]
    outputs, ratios = _measure_usage(receipts, recorded.targets)
    cost = np.empty_like(recorded.estimated_cost)
    for k, target in enumerate(prices):
        if target.input_price is None or target.output_price is None:
            raise DataError(f"target {target.name!r} has no prices in the pool; give both prices")
        if np.isnan(outputs[k]) and target.output_price:
            raise DataError(
                f"no receipt has output tokens of target {target.name!r}, so its cost at other "
                "prices is unknown; replay with --router, which estimates the output tokens"
            )
        written = 0.0 if not target.output_price else outputs[k] * target.output_price
        read = recorded.input_tokens * ratios[k] * target.input_price
        cost[:, k] = (read + written) / _MILLION
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
    ids = set(recorded.ids)
    prompts = {
        r.choice.id: prompt_of(r.prompt)
        for r in receipts
        if r.prompt is not None and r.choice.id in ids
    }
    rows = np.array([i for i, name in enumerate(recorded.ids) if name in prompts], dtype=np.int64)
    lacking = len(recorded) - len(rows)
    if not len(rows):
        raise DataError(
            "no receipt has its prompt, which another router must read; to keep prompts, put this "
            "in the gateway's settings: receipts: {prompts: true}"
        )
    part = recorded.select(rows)
    if not set(part.targets) & set(router.pool.names):
        raise DataError(
            f"the router chooses among {list(router.pool.names)}; the receipts have "
            f"{list(part.targets)}"
        )
    forecasts = _forecast_prompts(part, [prompts[name] for name in part.ids], router, progress)
    correctness = np.stack([forecast.correctness for forecast in forecasts])
    replayed = part.again(
        correctness=_map_columns(correctness, router.pool.names, part.targets),
        estimated_cost=_map_columns(
            router.estimated_cost(forecasts), router.pool.names, part.targets
        ),
        priced=not router.costs.is_free,
        scale=router.costs.scale,
        policy=router.policy,
    )
    return replayed, lacking


def _map_columns(table: PerCell, names: Sequence[str], targets: Sequence[str]) -> PerCell:
    """A table with a column for each target, from one with a column for each name; else NaN."""
    places = {name: k for k, name in enumerate(names)}
    unknown = np.full((len(table), 1), np.nan)
    columns = [places.get(name, -1) for name in targets]
    return np.concatenate([table, unknown], axis=1)[:, columns]


def _forecast_prompts(
    part: Recorded, prompts: Sequence[Prompt], router: "Router", progress: Progress | None
) -> "list[Forecast]":
    """The router's forecast of each request; equal prompts are read once."""
    keys = [prompt_key(prompt) for prompt in prompts]
    distinct = dict(zip(keys, prompts, strict=True))
    forecasts = router.forecast_many(list(distinct.values()), progress=progress)
    by_key = dict(zip(distinct, forecasts, strict=True))
    # The recorded count is used, since the whole request is longer than what the encoder reads.
    return [
        replace(by_key[key], tokens=int(tokens) or by_key[key].tokens)
        for key, tokens in zip(keys, part.input_tokens, strict=True)
    ]


def _measure_usage(
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
        read = -1 if usage.input_tokens is None else usage.input_tokens
        if read >= 0 and receipt.choice.input_tokens > 0:
            ratios[name].append(read / receipt.choice.input_tokens)
    return (
        np.array([np.median(outputs[n]) if outputs[n] else np.nan for n in targets]),
        np.array([np.median(ratios[n]) if ratios[n] else 1.0 for n in targets]),
    )


_HOLDS = ("answered", "disconnected", "routed")
"""The outcomes after which a request's target is the conversation's target."""
_MOST = 10_000_000
_End = tuple[float, int, str, str, int]


def _drop_texts(receipt: Receipt) -> Receipt:
    """A receipt without its prompt; one that named its target moves no conversation."""
    choice = receipt.choice
    if choice.reason == "named":
        choice = replace(choice, session=None)
    return replace(receipt, prompt=None, choice=choice)


def replay_sessions(
    receipts: Iterable[Receipt], lams: Sequence[float], *, latency: LatencySettings | None = None
) -> Replay:
    """Decide recorded requests again, each after the earlier ones of its conversation.

    A request in a tool loop goes to its conversation's target; so does one without a forecast, if
    that target could answer it. Neither is counted, nor are requests for a named target. Requests
    outside the routed share keep their target. Answers have as many tokens as they did, converted
    to the tokens of the target that gives them.

    Args:
        receipts: Receipts in order of their requests' arrival.
        lams: The trade-offs to try; each request's own is tried too.
        latency: Settings of latency to try, at each request's own lam; None for none.

    Raises:
        DataError: No request can be decided again, or no receipt has the settings by which
            conversations keep their target.
        ConfigError: A lam is outside [0, 1].
    """
    rows = [_drop_texts(receipt) for receipt in receipts]
    recorded = Recorded.of(rows)
    check_any(recorded)
    keeping = [None if r.choice.session is None else affinity_rule_of(r) for r in rows]
    lacking = sum(
        rule is None and row.choice.session is not None
        for rule, row in zip(keeping, rows, strict=True)
    )
    if lacking and not any(keeping):
        raise DataError(
            "no receipt has the settings for keeping a conversation's target; replay without "
            "--sessions"
        )
    replayed = _RecordedSessions(recorded, rows, keeping)
    notes = [f"{lacking:,} older receipts lack the settings of conversations"] if lacking else []
    tried = (replayed.at(f"lam = {lam:g}", recorded.at(lam), lam) for lam in lams)
    own = replayed.at("at its own lam", recorded.at_own_lam(), None)
    settings = [replayed.as_it_was(), own, *tried]
    if latency is not None:
        other = recorded.with_latency(latency)
        sessions = _RecordedSessions(other, rows, keeping)
        settings.append(sessions.at(LATENCY, other.at_own_lam(), None))
    return Replay(recorded, tuple(settings), tuple(notes), sessions=True)


@final
class _RecordedSessions:
    """The recorded requests, and their replay at settings."""

    def __init__(
        self,
        recorded: Recorded,
        receipts: Sequence[Receipt],
        keeping: Sequence[AffinityRule | None],
    ) -> None:
        self._recorded, self._receipts, self._keeping = recorded, receipts, keeping
        self._row = {name: row for row, name in enumerate(recorded.ids)}
        self._column = {name: k for k, name in enumerate(recorded.targets)}

    def as_it_was(self) -> ReplaySetting:
        """The recorded choices."""
        rows = {r.choice.id: r.choice for r in self._receipts if r.choice.id in self._row}
        choices = [rows[name] for name in self._recorded.ids]
        cost = np.array([choice.estimated_cost.get(choice.target, 0.0) for choice in choices])
        return replay_setting(self._recorded, "as it was", self._recorded.chosen, cost=cost)

    def at(self, name: str, alone: TargetColumns, lam: float | None) -> ReplaySetting:
        """The replayed choices at a lam.

        Args:
            name: The setting's name.
            alone: The column that the policy chooses for each request by itself.
            lam: The trade-off; None for each request's own.
        """
        world = _ReplayedSessions(self._recorded, alone, lam)
        columns = alone.copy()
        cost: PerRequest = np.zeros(len(alone))
        for receipt, keeping in zip(self._receipts, self._keeping, strict=True):
            row = self._row.get(receipt.choice.id)
            target, dollars = world.decide(receipt, keeping, row)
            world.ends(receipt, keeping, target)
            if row is not None:
                column = columns[row] = self._column[target]
                recorded_cost = self._recorded.estimated_cost[row, column]
                cost[row] = recorded_cost if dollars is None else dollars
        return replay_setting(self._recorded, name, columns, cost=cost)


@final
class _ReplayedSessions:
    """The conversations at one setting, up to the request being decided."""

    def __init__(self, recorded: Recorded, alone: TargetColumns, lam: float | None) -> None:
        self._recorded, self._alone, self._lam = recorded, alone, lam
        self._sessions = Sessions(SessionSettings(most=_MOST))
        self._ends: list[_End] = []
        self._choosers: dict[Hashable, TargetChooser] = {}

    def decide(
        self, receipt: Receipt, keeping: AffinityRule | None, row: int | None
    ) -> tuple[str, float | None]:
        """The target of a request, and its estimated cost with the target's cache.

        Args:
            receipt: The request.
            keeping: The settings that keep its conversation's target; None where unknown.
            row: Its row among the requests that can be decided again; None where it can't.

        Returns:
            The target, and US dollars; None where nothing is cached.
        """
        while self._ends and self._ends[0][0] <= receipt.at:
            end, _, session, target, tokens = heapq.heappop(self._ends)
            self._sessions.record_answer(session, target=target, tokens=tokens, at=end)
        choice, holder = receipt.choice, None
        if keeping is not None:
            self._sessions.use(SessionSettings(seconds=keeping.seconds, most=_MOST))
            state = self._sessions.state(choice.session, receipt.at)
            holder = None if state is None or choice.opening else state.target
        if row is None:
            free = choice.reason not in ("tool_loop", "stored", "state")
            moves = choice.reason == "escalation"  # to a target of its own
            stays = holder is not None and not moves and (not free or holder in choice.order)
            return (holder or choice.target) if stays else choice.target, None
        if choice.reason == "share":
            return choice.target, None
        if holder is None or keeping is None:
            return self._recorded.targets[self._alone[row]], None
        return self._choose(receipt, keeping, row)

    def ends(self, receipt: Receipt, keeping: AffinityRule | None, target: str) -> None:
        """End the request at this target, or at the fallback that answered after it."""
        choice, outcome = receipt.choice, receipt.outcome
        has_outcome = outcome.target is not None or outcome.kind == "routed"
        if choice.session is None or outcome.kind not in _HOLDS or not has_outcome:
            return
        answerer = outcome.target or choice.target
        target_at_end = answerer if target == choice.target else target
        usage = outcome.usage
        counts = () if usage is None else (usage.input_tokens, usage.output_tokens)
        tokens = sum(n for n in counts if n is not None) or choice.input_tokens
        if keeping is not None and target_at_end != answerer:
            tokens = round(
                tokens * keeping.ratio.get(target_at_end, 1.0) / keeping.ratio.get(answerer, 1.0)
            )
        end = receipt.at + outcome.total_seconds
        heapq.heappush(self._ends, (end, len(self._ends), choice.session, target_at_end, tokens))

    def _choose(self, receipt: Receipt, keeping: AffinityRule, row: int) -> tuple[str, float]:
        """Choose as the gateway does where the conversation has a target."""
        choice, names = receipt.choice, tuple(receipt.choice.correctness)
        own = choice.lam or 0.0
        spent = own == 0 and bool(choice.lam_asked)
        lam = Allowance(own, exhausted=spent) if self._lam is None else Allowance(self._lam)
        columns = [self._recorded.targets.index(name) for name in names]
        target_choice = self._make_chooser(names, keeping, row).choose(
            RoutingRequest(endpoint=receipt.endpoint, at=receipt.at, session=choice.session),
            RequestEstimate(
                tokens=choice.input_tokens,
                cost=self._recorded.estimated_cost[row, columns],
                correctness=self._recorded.correctness[row, columns],
            ),
            lam,
            [k for k, name in enumerate(names) if name in choice.order],
            decision=choice.id,
            waits=self._recorded.waits[row],
            limited=[k for k, name in enumerate(names) if name in choice.limited],
        )
        first = target_choice.order[0]
        return names[first], float(target_choice.cost[first])

    def _make_chooser(
        self, names: tuple[str, ...], keeping: AffinityRule, row: int
    ) -> TargetChooser:
        policy, (low, high) = self._recorded.policies[row], self._recorded.scales[row].tolist()
        tables = (keeping.ratio, keeping.saved, keeping.cache_seconds)
        parts = tuple(item for table in tables for item in table.items())
        key = (id(policy), names, low, high, keeping.margin, parts)
        if key not in self._choosers:
            self._choosers[key] = TargetChooser(
                names,
                policy,
                CostScores(
                    CostScale(low, high),
                    cache=CachePrices(
                        written=np.zeros(len(names)),  # recorded costs have it
                        saved=np.array([keeping.saved.get(name, 0.0) for name in names]),
                        seconds=np.array([keeping.cache_seconds.get(name, 0.0) for name in names]),
                    ),
                    ratio=np.array([keeping.ratio.get(name, 1.0) for name in names]),
                ),
                None,
                settings=GatewaySettings.model_construct(  # ignores the environment
                    sessions=SessionSettings(
                        seconds=keeping.seconds,
                        margin=keeping.margin,
                    ),
                    routing=RoutingSettings(),
                    traffic=TrafficSettings(),
                ),
                sessions=self._sessions,
            )
        return self._choosers[key]
