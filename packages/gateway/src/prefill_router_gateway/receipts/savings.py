"""What routing saved against one target alone, with what it cost and the quality beside it.

The target is the baseline, which each receipt names. A request that another target answered would
have cost the baseline its observed cost, multiplied by the ratio of the two targets' estimates.

The database makes the sums, by groups of whole conversations: the last two digits of a
conversation's name, which is a hash, give up to 256 groups. Intervals are from a bootstrap over
these groups, since requests of one conversation aren't independent.
"""

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import asdict, dataclass
from typing import Any, Final, Literal, NamedTuple, final

import numpy as np
from jaxtyping import Float
from numpy.typing import NDArray

from prefill_router.database import Database, Dialect
from prefill_router.errors import DataError
from prefill_router.money import dollars
from prefill_router_gateway.receipts.labels import TABLE_OF, AnswerLabel, SideAnswer
from prefill_router_gateway.receipts.reader import Conditions, pages
from prefill_router_gateway.receipts.rows import named_values
from prefill_router_gateway.receipts.store import FEEDBACK, RECEIPTS, open_store
from prefill_router_gateway.records import APART, Receipt
from prefill_router_gateway.settings import SavingsSettings

ChosenBy = Literal["receipts", "named"]
_LATEST = 1000
"""Receipts by which the targets are known."""


@final
@dataclass(frozen=True, kw_only=True)
class RequestSaving:
    """What one request would have cost at the baseline.

    Attributes:
        baseline: The baseline.
        cost: US dollars; observed if the baseline answered, otherwise estimated.
        low: The low end of its 95 % interval; None where the baseline answered too few requests.
        high: The high end; None under the same conditions.
        saved: `cost` less the observed cost.
    """

    baseline: str
    cost: float
    low: float | None
    high: float | None
    saved: float

    def sentence(self) -> str:
        """In words; without an interval where the baseline answered too few requests."""
        if self.low == self.high == self.cost:
            return f"at the baseline {self.baseline} it cost {dollars(self.cost)}"
        about = "interval unknown"
        if self.low is not None and self.high is not None:
            about = f"95 % from {dollars(self.low)} to {dollars(self.high)}"
        change = f"{dollars(abs(self.saved))} {'more' if self.saved >= 0 else 'less'}"
        cost = f"it would have cost {dollars(self.cost)} ({about}), {change}"
        return f"at the baseline {self.baseline} {cost}"


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
    WHEN reason IN ('named', 'turn', 'state', 'tool_loop', 'stored', 'share', 'fallback',
        'escalation')
    THEN reason
    WHEN tool_loop = 1 THEN 'tool_loop' WHEN fallback IS NOT NULL THEN 'fallback' END"""
_OPENING = '%"opening":true%'
"""What the details of a first request that is recognised by its text alone are like."""
_GROUP = "substr(COALESCE(session, id), length(COALESCE(session, id)) - 1)"
_SPENT_THERE = """CASE WHEN less < estimated_cost AND less_there < there
    THEN cost * (there - less_there) / (estimated_cost - less)
    WHEN estimated_cost > 0 THEN cost * there / estimated_cost ELSE there END"""
"""As `cost_elsewhere`."""


_JSON_NUMBER: Mapping[Dialect, str] = {
    "sqlite": "CAST(json_extract({}, ?) AS REAL)",
    "postgresql": "CAST(CAST({} AS json) ->> CAST(? AS TEXT) AS DOUBLE PRECISION)",
}
"""The number at a key of a JSON object in the column `{}`; its `?` is a `_json_key`."""
_CACHE_NUMBER: Mapping[Dialect, str] = {
    "sqlite": "CAST(json_extract(details, '$.cache.' || json_quote({}) || '[{}]') AS REAL)",
    "postgresql": (
        "CAST(CAST(details AS json) -> 'cache' -> CAST({} AS TEXT) ->> {} AS DOUBLE PRECISION)"
    ),
}
"""One of the numbers that the details have of the cache of target `{}`: 0 or 1."""


def _json_key(store: Database, name: str) -> str:
    """A key of a JSON object; for SQLite a path, escaped as in the columns."""
    return f"$.{json.dumps(name)}" if store.dialect == "sqlite" else name


def _discounts(store: Database) -> str:
    """What the cached tokens saved, and would save at the baseline, which its two `?` name."""
    number, here = _CACHE_NUMBER[store.dialect].format, "answered_by"
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


Sums = dict[str, NDArray[np.float64]]
"""`GroupSums` by group."""


@final
class SavingsSums:
    """The sums over receipts, each compared with the baseline that it names.

    Args:
        store: The receipts.
        since: Only requests from this time on, in seconds since 1970.
        against: The target that all are compared with instead; None for each receipt's own.

    Attributes:
        baselines: The compared requests by baseline, the most frequent first.
        groups: The sums over compared requests, a row per group.
        total: Their sums over all groups.
        unpriced: As in `Savings`.
        unnamed: As in `Savings`.
        apart: As in `Savings`.
        forecasts: The number of forecasts, of all requests.
        forecast_seconds: How long requests waited for them.
    """

    def __init__(self, store: Database, since: float, against: str | None = None) -> None:
        self.baselines, self.unpriced = dict[str, int](), dict[str, int]()
        self.unnamed, self.forecasts, self.forecast_seconds = 0, 0, 0.0
        apart, sums = dict[str, tuple[int, float]](), Sums()
        for baseline in baselines_of(store, since) if against is None else [against]:
            for row in _select_sums(store, baseline, since, of_all=against is not None):
                self._add_row(baseline, row, apart, sums)
        self.apart = {kind: apart[kind] for kind in APART if kind in apart}
        self.groups = np.array([*sums.values()]).reshape(-1, len(GroupSums._fields))
        self.total = GroupSums(*self.groups.sum(axis=0))
        self.baselines = dict(sorted(self.baselines.items(), key=lambda item: (-item[1], item[0])))

    def _add_row(
        self,
        baseline: str | None,
        row: tuple[Any, ...],
        apart: dict[str, tuple[int, float]],
        sums: Sums,
    ) -> None:
        kind, part, target, *values, forecasts, seconds = row
        self.forecasts += forecasts
        self.forecast_seconds += seconds or 0.0
        count, cost = values[0], values[1] or 0.0
        if kind in APART:
            requests, spent = apart.get(kind, (0, 0.0))
            apart[kind] = requests + count, spent + cost
        elif baseline is None:
            self.unnamed += count
        elif kind == "compared":
            self.baselines[baseline] = self.baselines.get(baseline, 0) + count
            amounts = np.array([value or 0.0 for value in values], dtype=np.float64)
            sums[part] = sums.get(part, np.zeros_like(amounts)) + amounts
        else:
            lacking = target or baseline
            self.unpriced[lacking] = self.unpriced.get(lacking, 0) + count


def baselines_of(store: Database, since: float) -> list[str | None]:
    """The baselines that receipts name; None among them where some name none."""
    rows = store.select(
        f"SELECT DISTINCT baseline FROM {RECEIPTS} WHERE at >= ? ORDER BY baseline", [since]
    )
    return [baseline for (baseline,) in rows]


def _condition_of(baseline: str | None, since: float, *, of_all: bool) -> tuple[str, list[Any]]:
    """The condition on receipts of one baseline, or on all, with its values."""
    if of_all:
        return "at >= ?", [since]
    if baseline is None:
        return "at >= ? AND baseline IS NULL", [since]
    return "at >= ? AND baseline = ?", [since, baseline]


def _select_sums(
    store: Database, baseline: str | None, since: float, *, of_all: bool
) -> list[tuple[Any, ...]]:
    """Rows of kind, group, target without a cost, `GroupSums`, forecasts, and their seconds."""
    name, (condition, values) = baseline or "", _condition_of(baseline, since, of_all=of_all)
    number, key = _JSON_NUMBER[store.dialect], _json_key(store, name)
    return store.select(
        f"""WITH request AS (SELECT {_GROUP} AS part, {_WHY_APART} AS why, target, answered_by,
            cost, estimated_cost, probability, forecast_seconds,
            {number.format("estimated_costs")} AS there, {_discounts(store)},
            {number.format("correctness")} AS chance FROM {RECEIPTS} WHERE {condition}),
        compared AS (SELECT request.*, CASE WHEN why IS NOT NULL THEN why
            WHEN cost IS NULL OR (answered_by <> ? AND estimated_cost IS NULL) THEN 'unpriced'
            WHEN answered_by <> ? AND there IS NULL THEN 'unpriced there' ELSE 'compared' END
            AS kind FROM request)
        SELECT kind, part, CASE WHEN kind = 'unpriced' THEN target END, count(*), sum(cost),
            sum(CASE WHEN answered_by = ? THEN cost ELSE {_SPENT_THERE} END),
            count(probability + chance),
            sum(CASE WHEN chance IS NOT NULL THEN probability END),
            sum(CASE WHEN probability IS NOT NULL THEN chance END),
            count(forecast_seconds), sum(forecast_seconds)
        FROM compared GROUP BY 1, 2, 3 ORDER BY 1, 2, 3""",
        [key, name, name, key, *values, *[name] * 3],
    )


def switched_conversations(store: Database, since: float, against: str | None = None) -> int:
    """How many conversations another target than the baseline continued, each counted once.

    A request continues a conversation if an earlier one is of it that didn't name its target. A
    first request that is recognised by its text alone continues none: others may begin alike.
    """
    baseline, values = ("baseline", []) if against is None else ("CAST(? AS TEXT)", [against])
    ((count,),) = store.select(
        f"""WITH turn AS (SELECT session, answered_by, cost, details, {_WHY_APART} AS why,
            {baseline} AS alone, row_number() OVER (PARTITION BY session ORDER BY at, id) AS place
            FROM {RECEIPTS} WHERE at >= ? AND session IS NOT NULL AND reason <> 'named')
        SELECT count(DISTINCT session) FROM turn WHERE place > 1 AND why IS NULL
            AND cost IS NOT NULL AND answered_by <> alone AND details NOT LIKE ?""",
        [*values, since, _OPENING],
    )
    return int(count)


def estimate(groups: PerGroup, of: Callable[[GroupSums], Any]) -> SavingsEstimate:
    """An estimate from sums, with the quantiles of a bootstrap over groups."""
    with np.errstate(divide="ignore", invalid="ignore"):
        value = float(of(GroupSums(*groups.sum(axis=0)))) if len(groups) else np.nan
        if not np.isfinite(value):
            return SavingsEstimate()
        if len(groups) < FEWEST_GROUPS:
            return SavingsEstimate(value)
        size, random = len(groups), np.random.default_rng(0)
        sums = random.multinomial(size, np.full(size, 1 / size), size=_RESAMPLES) @ groups
        values = of(GroupSums(*sums.T))
    low, high = np.quantile(values[np.isfinite(values)], [0.025, 0.975]).tolist()
    return SavingsEstimate(value, low, high)


def learning_costs(store: Database, since: float) -> Iterator[Deduction]:
    """What scores and side answers cost; nothing where their tables haven't been made.

    By the learner's charges where it has any: these stay when answers are deleted, and have the
    calls that brought nothing.
    """
    kinds: tuple[_Cost, ...] = (
        ("judges", TABLE_OF[AnswerLabel], "cost", "source <> 'user'"),
        ("side answers", TABLE_OF[SideAnswer], "cost", "1 = 1"),
    )
    tables = store.existing([CHARGES, *(table for _, table, *_ in kinds)])
    if CHARGES in tables:
        kinds = (
            ("judges", CHARGES, "dollars", "purpose <> 'side'"),
            ("side answers", CHARGES, "dollars", "purpose = 'side'"),
        )
    for kind, table, cost, condition in kinds:
        if table in tables:
            sums = f"SELECT sum({cost}), count(*), count({cost}) FROM {table}"
            ((dollars, items, priced),) = store.select(
                f"{sums} WHERE at >= ? AND {condition}", [since]
            )
            unknown = items - priced
            yield Deduction(kind=kind, dollars=dollars or 0.0, items=items, unknown=unknown)


def read_costs(url: str) -> list[Deduction]:
    """What all scores and side answers cost; raises as `open_store`."""
    with closing(open_store(url, create=False)) as store:
        return list(learning_costs(store, 0.0))


def score_sums(store: Database, since: float) -> PerGroup:
    """Scored answers and the sum of their scores, by group; sources of an answer are averaged."""
    labels = TABLE_OF[AnswerLabel]
    union = f" UNION ALL SELECT id, target, source, at, score FROM {labels}"
    rows = store.select(
        f"""WITH rating AS (SELECT id, NULL AS target, source, at, score FROM {FEEDBACK}
            {union if store.existing([labels]) else ""}),
        latest AS (SELECT rating.id, {_GROUP.replace("id)", "rating.id)")} AS part, rating.score,
            row_number() OVER (PARTITION BY rating.id, source ORDER BY rating.at DESC) AS place
            FROM rating JOIN {RECEIPTS} AS r ON r.id = rating.id WHERE r.at >= ?
            AND ({_WHY_APART}) IS NULL
            AND (rating.target IS NULL OR rating.target = answered_by)),
        answer AS (SELECT id, part, avg(score) AS score FROM latest WHERE place = 1
            GROUP BY id, part)
        SELECT part, count(*), sum(score) FROM answer GROUP BY part ORDER BY part""",
        [since],
    )
    return np.array([row[1:] for row in rows], dtype=np.float64).reshape(-1, 2)


def also_asked_of(
    store: Database, since: float, against: str | None = None
) -> tuple[int, float | None]:
    """Requests whose baseline was asked on the side, and their cost by the estimate."""
    if not store.existing([TABLE_OF[SideAnswer]]):
        return 0, None
    baselines = baselines_of(store, since) if against is None else [against]
    rows = [
        _measure_side_answers(store, baseline, since, of_all=against is not None)
        for baseline in baselines
        if baseline is not None
    ]
    paid, estimated = sum(row[1] for row in rows), sum(row[2] for row in rows)
    return sum(row[0] for row in rows), paid / estimated if estimated else None


def _measure_side_answers(
    store: Database, baseline: str, since: float, *, of_all: bool
) -> tuple[int, float, float]:
    """Requests that one baseline was asked on the side, what they cost, and their estimate."""
    number = _JSON_NUMBER[store.dialect].format("estimated_costs")
    condition, values = _condition_of(baseline, since, of_all=of_all)
    ((count, paid, estimated),) = store.select(
        f"""WITH side AS (SELECT id, cost AS paid FROM {TABLE_OF[SideAnswer]} WHERE target = ?),
        receipt AS (SELECT * FROM {RECEIPTS} WHERE {condition}),
        request AS (SELECT paid, cost, estimated_cost, {number} AS there, {_discounts(store)}
            FROM side JOIN receipt ON receipt.id = side.id WHERE
            paid IS NOT NULL AND cost IS NOT NULL AND estimated_cost > 0)
        SELECT count(there), sum(CASE WHEN there IS NOT NULL THEN paid END), sum({_SPENT_THERE})
            FROM request""",
        [baseline, *values, _json_key(store, baseline), baseline, baseline],
    )
    return count, paid or 0.0, estimated or 0.0


@final
@dataclass(frozen=True, kw_only=True)
class Savings:
    """The savings of the requests that the router decided, against one target alone.

    Attributes:
        since: The start, in seconds since 1970.
        baseline: The target of the comparison, or several, in words.
        baselines: The compared requests by the baseline that their receipts name.
        chosen_by: Whether receipts name it, or who asks.
        requests: The compared requests.
        groups: The groups of conversations that were resampled.
        spent: Their observed cost in US dollars.
        at_baseline: Their estimated cost at the baseline.
        saved: `at_baseline` less `spent`.
        share: `saved` as a share of `at_baseline`.
        deducted: What routing itself cost in this time.
        net: `saved` less all of that.
        expected: Mean predicted probability of a correct answer by the targets that answered.
        expected_baseline: The same of the baseline, for the same requests.
        expected_gain: Their difference.
        observed: Mean score of the answers that were scored, by labels and feedback.
        scored: The number of these.
        also_asked: Requests of other targets' that the baseline was asked on the side.
        also_ratio: What these cost there, by the estimate; None without any.
        switched: Conversations that another target than the baseline continued; the baseline's
            cache might have made them cheaper, which isn't counted.
        unpriced: Requests that can't be compared since their target, or the baseline, has no known
            cost, by that target.
        unnamed: Requests that can't be compared since their receipts name no baseline.
        apart: Requests and US dollars that the router didn't decide, by reason (see `APART`).
    """

    since: float
    baseline: str
    baselines: Mapping[str, int]
    chosen_by: ChosenBy
    requests: int
    groups: int
    spent: float
    at_baseline: float
    saved: SavingsEstimate
    share: SavingsEstimate
    deducted: tuple[Deduction, ...]
    net: SavingsEstimate
    expected: float | None
    expected_baseline: float | None
    expected_gain: SavingsEstimate
    observed: SavingsEstimate
    scored: int
    also_asked: int
    also_ratio: float | None
    switched: int
    unpriced: Mapping[str, int]
    unnamed: int
    apart: Mapping[str, tuple[int, float]]

    def notes(self) -> Iterator[str]:
        """What the figures leave out, in sentences."""
        if self.requests and self.saved.low is None:
            need = f"they need {FEWEST_GROUPS} groups of conversations"
            yield f"no intervals: {need}, here are {self.groups}"
        for target, count in self.unpriced.items():
            yield f"not compared, no cost known for {target}: {_count_words(count)}"
        if self.unnamed:
            yield (
                f"not compared, no baseline in the receipt: {_count_words(self.unnamed)}; name a "
                "target to compare all with"
            )
        for kind, (count, cost) in self.apart.items():
            yield f"counted apart, {APART[kind]}: {_count_words(count)}, {dollars(cost)}"
        for deduction in self.deducted:
            kind, items, unknown = deduction.kind, deduction.items, deduction.unknown
            if deduction.dollars is None and items:
                yield f"the {kind} isn't counted: no price is set ({items:,} forecasts)"
            if unknown:
                yield f"{kind}: {unknown:,} of {items:,} have no known cost"
        if self.switched:
            were = "conversation was" if self.switched == 1 else "conversations were"
            yield (
                f"{self.switched:,} {were} continued by another target: with the earlier turns in "
                f"its cache, {self.baseline} might have been cheaper, which isn't counted"
            )
        if self.also_ratio is not None:
            yield (
                f"{self.baseline} was also asked {self.also_asked:,} of the requests: they cost "
                f"{self.also_ratio:.2f} times what is estimated here"
            )

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON."""
        apart = {kind: {"requests": n, "cost": cost} for kind, (n, cost) in self.apart.items()}
        listed = {
            "deducted": [asdict(deduction) for deduction in self.deducted],
            "notes": list(self.notes()),
        }
        counts = {"baselines": dict(self.baselines), "unpriced": dict(self.unpriced)}
        return asdict(self) | listed | counts | {"apart": apart}


def _count_words(count: int) -> str:
    return f"{count:,} request{'' if count == 1 else 's'}"


def savings_since(
    url: str, settings: SavingsSettings, *, since: float = 0.0, against: str | None = None
) -> Savings:
    """What routing saved, in one pass over the receipts of each baseline by the database.

    Args:
        url: See `open_store`.
        settings: What the encoder costs.
        since: Only requests from this time on, in seconds since 1970.
        against: The target to compare all with; None for the baseline that each receipt names.

    Raises:
        DataError: No receipt names a baseline, or none has an estimate for the one named here.
        StoreError: The database can't be read, or has no receipts tables.
    """
    read = _read_receipts(url, settings, since, against)
    table, scores, deducted = read.table, read.scores, read.deducted
    total, groups = table.total, table.groups
    saved = estimate(groups, lambda s: total.requests * (s.there - s.spent) / s.requests)
    observed = estimate(scores, lambda s: s.spent / s.requests)
    expected, expected_baseline = (
        float(chance / total.forecasts) if total.forecasts else None
        for chance in (total.chance, total.chance_there)
    )
    return Savings(
        since=since,
        baseline=" and ".join(table.baselines or read.baselines),
        baselines=table.baselines,
        chosen_by="receipts" if against is None else "named",
        requests=int(total.requests),
        groups=len(groups),
        spent=float(total.spent),
        at_baseline=float(total.there),
        saved=saved,
        share=estimate(groups, lambda s: 1 - s.spent / s.there),
        deducted=deducted,
        net=saved.less(sum(deduction.dollars or 0.0 for deduction in deducted)),
        expected=expected,
        expected_baseline=expected_baseline,
        expected_gain=estimate(groups, lambda s: (s.chance - s.chance_there) / s.forecasts),
        observed=observed,
        scored=int(scores[:, 0].sum()),
        also_asked=read.also_asked,
        also_ratio=read.also_ratio,
        switched=read.switched,
        unpriced=table.unpriced,
        unnamed=table.unnamed,
        apart=table.apart,
    )


class _SavingsReading(NamedTuple):
    """What `savings_since` reads of the database: sums by group, and what isn't in them."""

    table: SavingsSums
    baselines: Sequence[str]
    deducted: tuple[Deduction, ...]
    scores: PerGroup
    also_asked: int
    also_ratio: float | None
    switched: int


def _read_receipts(
    url: str, settings: SavingsSettings, since: float, against: str | None
) -> _SavingsReading:
    with closing(open_store(url, create=False)) as store:
        table = SavingsSums(store, since, against)
        baselines = _read_named_baselines(store, since) if against is None else [against]
        if against is not None and not table.groups.size:
            _check_target(store, against, since)
        return _SavingsReading(
            table,
            baselines,
            (_deduct_encoder(table, settings), *learning_costs(store, since)),
            score_sums(store, since),
            *also_asked_of(store, since, against),
            switched_conversations(store, since, against),
        )


def request_saving(url: str, receipt: Receipt, against: str | None = None) -> RequestSaving | None:
    """What one request would have cost at the baseline; None if it can't be compared.

    The interval is the estimate times the ratios, observed to estimated cost, of the baseline's own
    latest answers, divided by their mean. It needs 20 of them.

    Args:
        url: See `open_store`.
        receipt: The request.
        against: The target to compare it with; None for the baseline that the receipt names.

    Raises:
        StoreError: The database can't be read, or has no receipts tables.
    """
    baseline = against or receipt.baseline
    cost = receipt.cost_at(baseline)
    if baseline is None or cost is None or receipt.cost is None:
        return None
    low: float | None = 1.0
    high: float | None = 1.0
    if receipt.outcome.target != baseline:
        with closing(open_store(url, create=False)) as store:
            low, high = _measure_spread(store, baseline)
    return RequestSaving(
        baseline=baseline,
        cost=cost,
        low=None if low is None else cost * low,
        high=None if high is None else cost * high,
        saved=cost - receipt.cost,
    )


_RATIOS, _FEWEST_RATIOS = 20_000, 20


def _measure_spread(store: Database, baseline: str) -> tuple[float, float] | tuple[None, None]:
    """Where 95 % of a target's costs lie, by the estimate times the mean ratio."""
    rows = store.select(
        "SELECT cost / estimated_cost FROM (SELECT answered_by, outcome, cost, estimated_cost "
        f"FROM {RECEIPTS} ORDER BY at DESC, id DESC LIMIT {_RATIOS}) AS latest WHERE "
        "answered_by = ? AND outcome = 'answered' AND cost IS NOT NULL AND estimated_cost > 0",
        [baseline],
    )
    ratios = np.array([ratio for (ratio,) in rows])
    if len(ratios) < _FEWEST_RATIOS or not ratios.mean() > 0:
        return None, None
    low, high = np.quantile(ratios / ratios.mean(), [0.025, 0.975]).tolist()
    return low, high


def _read_named_baselines(store: Database, since: float) -> list[str]:
    """The baselines that receipts name; refuses where none does."""
    names = [baseline for baseline in baselines_of(store, since) if baseline is not None]
    if not names:
        raise DataError(
            "no receipt in that time names a baseline, so there is nothing to compare with; "
            "give a longer time with --since, or a target with --baseline"
        )
    return names


def _check_target(store: Database, baseline: str, since: float) -> None:
    """Refuse a name that isn't one of the targets, where there are any."""
    columns = ("at", "id", "estimated_costs", "target")
    conditions: Conditions = [("at >= ?", [since])]
    rows = pages(store, columns, conditions, limit=_LATEST, newest_first=True)
    names = {name for _, id_, text, target in rows for name in (*named_values(text, id_), target)}
    if names and baseline not in names:
        raise DataError(
            f"the baseline is {baseline!r}; it must be a target of these receipts: "
            f"{', '.join(sorted(names))}"
        )


def _deduct_encoder(table: SavingsSums, settings: SavingsSettings) -> Deduction:
    dollars = settings.encoder_cost(table.forecasts, table.forecast_seconds)
    return Deduction(kind="encoder", dollars=dollars, items=table.forecasts)
