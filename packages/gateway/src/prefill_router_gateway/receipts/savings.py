"""What routing saved against one target alone, with what it cost and the quality beside it.

A request that another target answered would have cost the baseline its observed cost, multiplied
by the ratio of the two targets' estimates, as in `SingleTargetCosts`.

The database makes the sums, by groups of whole conversations: the last two digits of a
conversation's name, which is a hash, give up to 256 groups. Intervals are from a bootstrap over
these groups, since requests of one conversation aren't independent.
"""

from collections.abc import Callable, Iterator, Mapping
from contextlib import closing
from dataclasses import asdict, dataclass
from typing import Any, Final, Literal, NamedTuple, final

import numpy as np
from jaxtyping import Float
from numpy.typing import NDArray

from prefill_router.errors import DataError
from prefill_router_gateway.receipts.labels import TABLE_OF, AnswerLabel, SideAnswer
from prefill_router_gateway.receipts.reader import Conditions, pages
from prefill_router_gateway.receipts.rows import named_values
from prefill_router_gateway.receipts.store import FEEDBACK, RECEIPTS, Store, open_store
from prefill_router_gateway.records import APART, Receipt
from prefill_router_gateway.settings import SavingsSettings

ChosenBy = Literal["named", "train accuracy", "expected accuracy"]
_LATEST = 1000
"""Receipts by which the targets, and without a router the best of them, are known."""


@final
@dataclass(frozen=True, kw_only=True)
class RequestSaving:
    """What one request would have cost at the baseline.

    Attributes:
        baseline: The baseline.
        cost: US dollars; observed if the baseline answered, otherwise estimated.
        low: The low end of its 95 % interval; None where the baseline answered too few requests.
        high: The high end, likewise.
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
            return f"at the baseline {self.baseline} it cost ${self.cost:.3g}"
        about = "interval unknown"
        if self.low is not None and self.high is not None:
            about = f"95 % from ${self.low:.3g} to ${self.high:.3g}"
        change = f"${abs(self.saved):.3g} {'more' if self.saved >= 0 else 'less'}"
        cost = f"it would have cost ${self.cost:.3g} ({about}), {change}"
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


@final
@dataclass(frozen=True, kw_only=True)
class Savings:
    """The savings of the requests that the router decided, against one target alone.

    Attributes:
        since: The start, in seconds since 1970.
        baseline: The target of the comparison.
        chosen_by: How it was chosen.
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
        uncached: Compared requests in conversations that the baseline didn't answer; its cache
            might have made them cheaper, which isn't counted.
        unpriced: Requests that can't be compared since their target, or the baseline, has no known
            cost, by that target.
        apart: Requests and US dollars that the router didn't decide, by reason (see `APART`).
    """

    since: float
    baseline: str
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
    uncached: int
    unpriced: Mapping[str, int]
    apart: Mapping[str, tuple[int, float]]

    def notes(self) -> Iterator[str]:
        """What the figures leave out, in sentences."""
        if self.requests and self.saved.low is None:
            found = f"here are {self.groups}"
            yield f"no intervals: they need {FEWEST_GROUPS} groups of conversations, {found}"
        for target, count in self.unpriced.items():
            yield f"not compared, no cost known for {target}: {_requests(count)}"
        for kind, (count, cost) in self.apart.items():
            yield f"counted apart, {APART[kind]}: {_requests(count)}, ${cost:.4g}"
        for one in self.deducted:
            if one.dollars is None and one.items:
                yield f"the {one.kind} isn't counted: no price is set ({one.items:,} forecasts)"
            if one.unknown:
                yield f"{one.kind}: {one.unknown:,} of {one.items:,} have no known cost"
        if self.uncached:
            yield (
                f"{_requests(self.uncached)} of conversations were answered elsewhere: with the "
                f"earlier turns in its cache, {self.baseline} might have been cheaper, which "
                "isn't counted"
            )
        if self.also_ratio is not None:
            yield (
                f"{self.baseline} was also asked {self.also_asked:,} of the requests: they cost "
                f"{self.also_ratio:.2f} times what is estimated here"
            )

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON."""
        apart = {kind: {"requests": n, "cost": cost} for kind, (n, cost) in self.apart.items()}
        listed = {"deducted": [asdict(one) for one in self.deducted], "notes": list(self.notes())}
        return asdict(self) | listed | {"unpriced": dict(self.unpriced), "apart": apart}


def _requests(count: int) -> str:
    return f"{count:,} request{'' if count == 1 else 's'}"


def savings_since(
    url: str, settings: SavingsSettings, *, since: float = 0.0, best: str | None = None
) -> Savings:
    """What routing saved, in one pass over the receipts by the database.

    Args:
        url: See `open_store`.
        settings: The baseline, and what the encoder costs.
        since: Only requests from this time on, in seconds since 1970.
        best: The target with the highest train accuracy, the baseline if none is named; None to
            take the highest mean predicted probability of the latest receipts.

    Raises:
        DataError: No baseline is named or known, or no receipt has an estimate for it.
        StoreError: The database can't be read, or has no receipts tables.
    """
    with closing(open_store(url, create=False)) as store:
        baseline, chosen_by = _baseline(store, since, settings.baseline, best)
        table = SavingsSums(store, baseline, since)
        if not table.groups.size and settings.baseline is not None:
            _check_known(store, baseline, since)
        deducted = (_encoder(table, settings), *learning_costs(store, since))
        scores = score_sums(store, since)
        also_asked, also_ratio = also_asked_of(store, baseline, since)
    total, groups = table.total, table.groups
    saved = estimate(groups, lambda s: total.requests * (s.there - s.spent) / s.requests)
    observed = estimate(scores, lambda s: s.spent / s.requests)
    expected, expected_baseline = (
        float(chance / total.forecasts) if total.forecasts else None
        for chance in (total.chance, total.chance_there)
    )
    return Savings(
        since=since,
        baseline=baseline,
        chosen_by=chosen_by,
        requests=int(total.requests),
        groups=len(groups),
        spent=float(total.spent),
        at_baseline=float(total.there),
        saved=saved,
        share=estimate(groups, lambda s: 1 - s.spent / s.there),
        deducted=deducted,
        net=saved.less(sum(one.dollars or 0.0 for one in deducted)),
        expected=expected,
        expected_baseline=expected_baseline,
        expected_gain=estimate(groups, lambda s: (s.chance - s.chance_there) / s.forecasts),
        observed=observed,
        scored=int(scores[:, 0].sum()),
        also_asked=also_asked,
        also_ratio=also_ratio,
        uncached=int(total.uncached),
        unpriced=table.unpriced,
        apart=table.apart,
    )


def request_saving(
    url: str, receipt: Receipt, settings: SavingsSettings, *, best: str | None = None
) -> RequestSaving | None:
    """What one request would have cost at the baseline; None if it can't be compared.

    The interval is the estimate times the ratios, observed to estimated cost, of the baseline's
    own latest answers, divided by their mean; it needs 20 of them.

    Args:
        url: See `open_store`.
        receipt: The request.
        settings: The baseline.
        best: As for `savings_since`.

    Raises:
        DataError: No baseline is named or known.
        StoreError: The database can't be read, or has no receipts tables.
    """
    with closing(open_store(url, create=False)) as store:
        baseline, _ = _baseline(store, 0.0, settings.baseline, best)
        cost = receipt.cost_at(baseline)
        if cost is None or receipt.cost is None:
            return None
        low, high = (1.0, 1.0) if receipt.outcome.target == baseline else _spread(store, baseline)
    return RequestSaving(
        baseline=baseline,
        cost=cost,
        low=None if low is None else cost * low,
        high=None if high is None else cost * high,
        saved=cost - receipt.cost,
    )


_RATIOS, _FEWEST_RATIOS = 20_000, 20


def _spread(store: Store, baseline: str) -> tuple[float, float] | tuple[None, None]:
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


def _baseline(
    store: Store, since: float, named: str | None, best: str | None
) -> tuple[str, ChosenBy]:
    if named is not None:
        return named, "named"
    if best is not None:
        return best, "train accuracy"
    sums: dict[str, float] = {}
    given: Conditions = [("at >= ?", [since]), ("correctness <> '{}'", [])]
    columns = ("at", "id", "correctness")
    for _, identity, text in pages(store, columns, given, limit=_LATEST, newest_first=True):
        for name, chance in named_values(text, identity).items():
            sums[name] = sums.get(name, 0.0) + chance
    if not sums:
        raise DataError(
            "no receipt in that time has a forecast, so the best single target isn't known; name "
            "a baseline, or take a longer time"
        )
    return max(sums, key=sums.__getitem__), "expected accuracy"


def _check_known(store: Store, baseline: str, since: float) -> None:
    """Refuse a name that isn't one of the targets, where there are any."""
    columns = ("at", "id", "estimated_costs", "target")
    given: Conditions = [("at >= ?", [since])]
    rows = pages(store, columns, given, limit=_LATEST, newest_first=True)
    known = {name for _, i, text, target in rows for name in (*named_values(text, i), target)}
    if known and baseline not in known:
        raise DataError(
            f"the baseline {baseline!r} is no target of these receipts; they have "
            f"{', '.join(sorted(known))}"
        )


def _encoder(table: SavingsSums, settings: SavingsSettings) -> Deduction:
    dollars = settings.encoder_cost(table.forecasts, table.forecast_seconds)
    return Deduction(kind="encoder", dollars=dollars, items=table.forecasts)
