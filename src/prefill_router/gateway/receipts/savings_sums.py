"""The sums over receipts that savings are estimated from, made by the database.

They are by groups of whole conversations: the last two digits of a conversation's name, which is a
hash, give up to 256 groups. Intervals are from a bootstrap over these groups, since requests of one
conversation aren't independent.
"""

from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass
from typing import Any, Final, Literal, NamedTuple, final

import numpy as np
from jaxtyping import Float
from numpy.typing import NDArray

from prefill_router.gateway.receipts.labels import TABLE_OF, AnswerLabel, SideAnswer
from prefill_router.gateway.receipts.store import FEEDBACK, RECEIPTS, Store, open_store
from prefill_router.gateway.records import APART

PerGroup = Float[NDArray[np.float64], "group sum"]
FEWEST_GROUPS = 10
_RESAMPLES = 2000
CHARGES: Final = "receipt_charges"
"""The table of the learner's charges; it has no texts, and what was spent stays spent."""
_Cost = tuple[Literal["judges", "side answers"], str, str, str]
"""What for, and where it is: a table, its column, and which rows."""


@final
@dataclass(frozen=True)
class SavingsEstimate:
    """An estimate with its 95 % interval.

    Attributes:
        value: The estimate; None where unknown.
        low: The low end; None where unknown.
        high: The high end; None where unknown.
    """

    value: float | None = None
    low: float | None = None
    high: float | None = None

    def less(self, amount: float) -> "SavingsEstimate":
        """The estimate less a known amount."""
        ends = (self.value, self.low, self.high)
        return SavingsEstimate(*(None if end is None else end - amount for end in ends))


@final
@dataclass(frozen=True, kw_only=True)
class Deduction:
    """What routing itself cost.

    Attributes:
        kind: What for.
        dollars: US dollars, without items of unknown cost; None if it isn't counted.
        items: How many forecasts, scores or answers.
        unknown: How many of them have no known cost.
    """

    kind: Literal["encoder", "judges", "side answers"]
    dollars: float | None
    items: int
    unknown: int = 0


_WHY_APART = """CASE WHEN outcome = 'routed' THEN 'dry_run'
    WHEN answered_by IS NULL THEN 'unanswered'
    WHEN reason IN ('named', 'tool_loop', 'stored', 'share', 'fallback') THEN reason
    WHEN tool_loop = 1 THEN 'tool_loop' WHEN fallback IS NOT NULL THEN 'fallback' END"""
_GROUP = "substr(COALESCE(session, id), length(COALESCE(session, id)) - 1)"
_SPENT_THERE = """CASE WHEN less < estimated_cost AND less_there < there
    THEN cost * (there - less_there) / (estimated_cost - less)
    WHEN estimated_cost > 0 THEN cost * there / estimated_cost ELSE there END"""
"""As `cost_elsewhere`."""


def _discounts(store: Store) -> str:
    """What the cached tokens saved, and would save at the baseline, which its two `?` name."""
    number, here = store.cache_number.format, "answered_by"
    there = f"{number('?', 0)} / NULLIF({number(here, 0)}, 0) * {number('?', 1)}"
    return ", ".join(
        f"CASE WHEN cached_tokens > 0 THEN cached_tokens * {saved} END AS {name}"
        for saved, name in ((number(here, 1), "less"), (there, "less_there"))
    )


class GroupSums(NamedTuple):
    """Sums over requests, or an array of each."""

    requests: Any
    spent: Any
    there: Any = 0.0
    forecasts: Any = 0.0
    chance: Any = 0.0
    chance_there: Any = 0.0
    uncached: Any = 0.0


@final
class SavingsSums:
    """The sums over receipts.

    Attributes:
        groups: The sums over compared requests, a row per group.
        total: Their sums over all groups.
        unpriced: As in `Savings`.
        apart: As in `Savings`.
        forecasts: The number of forecasts, of all requests.
        forecast_seconds: How long requests waited for them.
    """

    def __init__(self, store: Store, baseline: str, since: float) -> None:
        number, key = store.json_number, store.json_key(baseline)
        rows = store.select(
            f"""WITH one AS (SELECT {_GROUP} AS part, {_WHY_APART} AS why, target, answered_by,
                session, cost, estimated_cost, probability, forecast_seconds,
                {number.format("estimated_costs")} AS there, {_discounts(store)},
                {number.format("correctness")} AS chance FROM {RECEIPTS} WHERE at >= ?),
            kept AS (SELECT one.*, CASE WHEN why IS NOT NULL THEN why
                WHEN cost IS NULL OR (answered_by <> ? AND estimated_cost IS NULL) THEN 'unpriced'
                WHEN answered_by <> ? AND there IS NULL THEN 'unpriced there' ELSE 'compared' END
                AS kind FROM one)
            SELECT kind, part, CASE WHEN kind = 'unpriced' THEN target END, count(*), sum(cost),
                sum(CASE WHEN answered_by = ? THEN cost ELSE {_SPENT_THERE} END),
                count(probability + chance),
                sum(CASE WHEN chance IS NOT NULL THEN probability END),
                sum(CASE WHEN probability IS NOT NULL THEN chance END),
                count(CASE WHEN answered_by <> ? THEN session END),
                count(forecast_seconds), sum(forecast_seconds)
            FROM kept GROUP BY 1, 2, 3 ORDER BY 1, 2, 3""",
            [key, baseline, baseline, key, since, *[baseline] * 4],
        )
        self.unpriced, apart = dict[str, int](), dict[str, tuple[int, float]]()
        for kind, _, target, count, cost, *_ in rows:
            if kind in APART:
                before = apart.get(kind, (0, 0.0))
                apart[kind] = before[0] + count, before[1] + (cost or 0.0)
            elif kind != "compared":
                name = target or baseline
                self.unpriced[name] = self.unpriced.get(name, 0) + count
        self.apart = {kind: apart[kind] for kind in APART if kind in apart}
        some = [[value or 0.0 for value in row[3:10]] for row in rows if row[0] == "compared"]
        self.groups = np.array(some, dtype=np.float64).reshape(-1, len(GroupSums._fields))
        self.total = GroupSums(*self.groups.sum(axis=0))
        self.forecasts = sum(row[10] for row in rows)
        self.forecast_seconds = sum(row[11] or 0.0 for row in rows)


def estimate(groups: PerGroup, of: Callable[[GroupSums], Any]) -> SavingsEstimate:
    """An estimate from sums, with the quantiles of a bootstrap over groups."""
    with np.errstate(divide="ignore", invalid="ignore"):
        value = float(of(GroupSums(*groups.sum(axis=0)))) if len(groups) else np.nan
        if not np.isfinite(value):
            return SavingsEstimate()
        if len(groups) < FEWEST_GROUPS:
            return SavingsEstimate(value)
        size, random = len(groups), np.random.default_rng(0)
        drawn = random.multinomial(size, np.full(size, 1 / size), size=_RESAMPLES) @ groups
        found = of(GroupSums(*drawn.T))
    low, high = np.quantile(found[np.isfinite(found)], [0.025, 0.975]).tolist()
    return SavingsEstimate(value, low, high)


def learning_costs(store: Store, since: float) -> Iterator[Deduction]:
    """What scores and side answers cost; nothing where their tables haven't been made.

    By the learner's charges where it has any: these stay when answers are deleted, and have the
    calls that brought nothing.
    """
    kinds: tuple[_Cost, ...] = (
        ("judges", TABLE_OF[AnswerLabel], "cost", "source <> 'user'"),
        ("side answers", TABLE_OF[SideAnswer], "cost", "1 = 1"),
    )
    made = store.existing([CHARGES, *(table for _, table, *_ in kinds)])
    if CHARGES in made:
        kinds = (
            ("judges", CHARGES, "dollars", "purpose <> 'side'"),
            ("side answers", CHARGES, "dollars", "purpose = 'side'"),
        )
    for kind, table, cost, which in kinds:
        if table in made:
            sums = f"SELECT sum({cost}), count(*), count({cost}) FROM {table}"
            ((dollars, items, known),) = store.select(f"{sums} WHERE at >= ? AND {which}", [since])
            unknown = items - known
            yield Deduction(kind=kind, dollars=dollars or 0.0, items=items, unknown=unknown)


def read_costs(url: str) -> list[Deduction]:
    """What all scores and side answers cost; raises as `open_store`."""
    with closing(open_store(url, create=False)) as store:
        return list(learning_costs(store, 0.0))


def score_sums(store: Store, since: float) -> PerGroup:
    """Scored answers and the sum of their scores, by group; sources of an answer are averaged."""
    labels = TABLE_OF[AnswerLabel]
    more = f" UNION ALL SELECT id, target, source, at, score FROM {labels}"
    rows = store.select(
        f"""WITH said AS (SELECT id, NULL AS target, source, at, score FROM {FEEDBACK}
            {more if store.existing([labels]) else ""}),
        latest AS (SELECT said.id, {_GROUP.replace("id)", "said.id)")} AS part, said.score,
            row_number() OVER (PARTITION BY said.id, source ORDER BY said.at DESC) AS place
            FROM said JOIN {RECEIPTS} AS r ON r.id = said.id WHERE r.at >= ?
            AND ({_WHY_APART}) IS NULL
            AND (said.target IS NULL OR said.target = answered_by)),
        answer AS (SELECT id, part, avg(score) AS score FROM latest WHERE place = 1
            GROUP BY id, part)
        SELECT part, count(*), sum(score) FROM answer GROUP BY part ORDER BY part""",
        [since],
    )
    return np.array([row[1:] for row in rows], dtype=np.float64).reshape(-1, 2)


def also_asked_of(store: Store, baseline: str, since: float) -> tuple[int, float | None]:
    """Requests that the baseline was asked on the side, and their cost by the estimate."""
    side = TABLE_OF[SideAnswer]
    if not store.existing([side]):
        return 0, None
    number = store.json_number.format("estimated_costs")
    ((count, paid, estimated),) = store.select(
        f"""WITH asked AS (SELECT id, cost AS paid FROM {side} WHERE target = ?),
        one AS (SELECT paid, cost, estimated_cost, {number} AS there, {_discounts(store)}
            FROM asked JOIN {RECEIPTS} AS r ON r.id = asked.id WHERE
            at >= ? AND paid IS NOT NULL AND cost IS NOT NULL AND estimated_cost > 0)
        SELECT count(there), sum(CASE WHEN there IS NOT NULL THEN paid END), sum({_SPENT_THERE})
            FROM one""",
        [baseline, store.json_key(baseline), baseline, baseline, since],
    )
    return count, paid / estimated if estimated else None
