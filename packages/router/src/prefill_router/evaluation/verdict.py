"""Is a router worth using? A verdict over its curve, by comparison with rules that read no request.

At each point of the curve the router is compared, at equal cost, with the best fixed mix of targets
and with price alone (`references`), and with the best single target itself. The points are the
setting that the router is used at, the setting that is as accurate as the best target, and budgets
that are shares of the best target's price. All settings and references are chosen on other rows
than the judged ones. Every difference is paired, and all points are judged on the same rows: those
where the outcomes of all sides are known.

A router is worth it if it beats the fixed mix at its setting or over the budgets: without a router
there is nothing better. The verdict also says whether it beats price alone, which needs the
router's cost estimates but no encoder. It isn't worth it if a gain of one point over the fixed mix
is excluded at all of these points, and at its most accurate setting. Of the two tests the first one
counts by Holm's correction.

A judged part has one set of settings and references. A cross-validation has one for each fold, so
that no row is judged by anything that was learned from it.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, final

import numpy as np
from jaxtyping import Bool, Float, Int, Shaped
from numpy.typing import NDArray

from prefill_router.errors import ConfigError
from prefill_router.evaluation.bootstrap import (
    Bootstrap,
    Estimate,
    PerResample,
    Weights,
    divide,
    plain,
)
from prefill_router.evaluation.fixed_mix import FixedChoice
from prefill_router.evaluation.judged_predictions import PerQuery, Trial
from prefill_router.evaluation.metrics import NO_PAIR, PairRankings
from prefill_router.evaluation.operating_points import MARGIN, paired_mean
from prefill_router.evaluation.references import RateChoice, References, ReferenceTable
from prefill_router.evaluation.scores import interval, worded
from prefill_router.policy import OperatingPoints
from prefill_router.short_repr import short_repr

Word = Literal["worth it", "can't tell", "not worth it"]
WORTH = 0.01
"""A gain of accuracy that can't reach this counts as none: one percentage point."""
HALF = 0.5
"""Where fewer than this share of the labelled queries can be compared, the verdict is open."""
NORMAL = 1.96
"""Standard errors on each side of a 95 % interval."""
_HOLM = 2.2414
"""Standard errors on each side of the first of two intervals that hold together in 95 %."""
_LAM = 0.5
"""The lam that is judged where no setting was chosen on train rows."""


@final
@dataclass(frozen=True)
class ReferenceGain:
    """A reference for the router, and the router's gain over it at equal mean cost.

    Attributes:
        accuracy: The reference's accuracy.
        gain: The router's accuracy minus the reference's, with its interval.
        error: The standard error of the gain.
        hidden: The part of the gain that answers without labels may account for. It is how much
            more often the labels of the router's choices are missing than those of the reference's,
            where that is significant, and otherwise 0.
    """

    accuracy: float
    gain: Estimate
    error: float
    hidden: float = 0.0

    def exceeds(self, least: float, errors: float = NORMAL) -> bool:
        """Whether the gain, less what missing answers hide, is significantly above this."""
        return self.gain.value - self.hidden - errors * self.error > least

    def excludes(self, most: float) -> bool:
        """Whether the gain is significantly below this."""
        return self.gain.upper < most

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON."""
        hidden = {"hidden_by_missing_answers": self.hidden} if self.hidden else {}
        return {"gain": self.gain.to_dict(), "accuracy": plain(self.accuracy), **hidden}


@final
@dataclass(frozen=True)
class CurvePoint:
    """The router at one point of its curve.

    Attributes:
        name: `setting`, `level`, `cheapest`, `accurate` (the most accurate setting), or a share of
            the best target's price, as a number.
        lam: The lam; the mean of the folds' in a cross-validation.
        accuracy: The share of the queries that it gets right, or its mean score.
        cost: Its mean cost, US dollars; NaN where unknown.
        best_accuracy: The best single target's accuracy.
        best_cost: The best single target's mean cost, US dollars.
        loss: The router's accuracy minus the best single target's.
        mix: The comparison with the best fixed mix.
        price: The comparison with price alone; None where no cost is known.
        domains: The comparison with price and domain alone; None where there is one domain.
    """

    name: str
    lam: float
    accuracy: float
    cost: float
    best_accuracy: float
    best_cost: float
    loss: Estimate
    mix: ReferenceGain
    price: ReferenceGain | None
    domains: ReferenceGain | None

    @property
    def cost_share(self) -> float:
        """Its cost as a share of the best single target's."""
        return self.cost / self.best_cost if self.best_cost > 0 else math.nan

    @property
    def is_as_accurate(self) -> bool:
        """Whether it is significantly no less accurate than the best target less the margin."""
        return self.loss.lower > -MARGIN

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON."""
        others = {"best_mix": self.mix, "price_alone": self.price, "best_by_domain": self.domains}
        return {
            "name": self.name,
            "lam": self.lam,
            "accuracy": plain(self.accuracy),
            "mean_cost": plain(self.cost),
            "best_accuracy": plain(self.best_accuracy),
            "best_cost": plain(self.best_cost),
            "cost_share": plain(self.cost_share),
            "loss": self.loss.to_dict(),
            **{name: None if gain is None else gain.to_dict() for name, gain in others.items()},
        }


@short_repr
@final
@dataclass(frozen=True)
class Verdict:
    """The verdict on a router.

    Attributes:
        word: The verdict in two or three words.
        because: The reason, as a sentence.
        lam: The router's setting.
        queries: How many queries were judged.
        compared: On how many of them all sides are compared.
        best: The best single target.
        curve: The points, the setting first.
        budgets: The mean gains over the budgets, by reference; empty where no cost is known.
        choice_auc: How well the probabilities identify which of two targets is right.
        needed: About how many judged queries would decide what is open; 0 where nothing is.
        binary: Whether labels are right or wrong, and not scores between.
    """

    word: Word
    because: str
    lam: float
    queries: int
    compared: int
    best: str
    curve: tuple[CurvePoint, ...]
    budgets: dict[str, ReferenceGain]
    choice_auc: Estimate
    needed: int = 0
    binary: bool = True

    @property
    def setting(self) -> CurvePoint:
        """The router at its setting."""
        return self.curve[0]

    def point(self, name: str) -> CurvePoint | None:
        """The point of a name; None where it couldn't be judged."""
        return next((point for point in self.curve if point.name == name), None)

    @property
    def lines(self) -> tuple[str, ...]:
        """The router along its curve: up to four lines of a few sentences each."""
        places = (
            ("setting", f"at its setting, lam {self.lam:.3g}"),
            ("level", "as accurate as the best"),
            ("0.5", "at the setting for half of the best's price"),
            ("cheapest", "at the setting for the cheapest target's price"),
        )
        pairs = ((self.point(name), place) for name, place in places)
        return tuple(
            self._describe(point, place)
            for point, place in pairs
            if point is not None and not math.isnan(point.accuracy)
        )

    def _describe(self, point: CurvePoint, place: str) -> str:
        share, right = point.cost_share, _word_accuracy(point.accuracy, binary=self.binary)
        if point.name == "level":
            saved = "" if math.isnan(share) else f"saves {100 * (1 - share):.0f} %, "
            doubt = "" if point.is_as_accurate else ". It may lose more than a point"
            return f"{place}: {saved}{right}, {points(point.loss)} against {self.best}{doubt}"
        price = "" if math.isnan(share) else f", for {100 * share:.0f} % of its price"
        return (
            f"{place}: {right} instead of {100 * point.best_accuracy:.1f} with {self.best} "
            f"({points(point.loss)}){price}. {_describe_references(point)}"
        )

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON."""
        return {
            "word": self.word,
            "because": self.because,
            "lam": self.lam,
            "queries": self.queries,
            "compared": self.compared,
            "best": self.best,
            "lines": list(self.lines),
            "curve": [point.to_dict() for point in self.curve],
            "budgets": {name: gain.to_dict() for name, gain in self.budgets.items()},
            "choice_auc": self.choice_auc.to_dict(),
            "queries_needed": self.needed,
        }


def _word_accuracy(accuracy: float, *, binary: bool) -> str:
    return f"{100 * accuracy:.1f} of 100 {'right' if binary else 'points'}"


def _describe_references(point: CurvePoint) -> str:
    if point.price is None:
        return f"The best fixed choice has {100 * point.mix.accuracy:.1f}"
    return (
        f"For the same money a fixed mix has {100 * point.mix.accuracy:.1f} "
        f"({points(point.mix.gain)}), price alone {100 * point.price.accuracy:.1f} "
        f"({points(point.price.gain)})"
    )


@final
@dataclass(frozen=True, eq=False)
class JudgedPart:
    """Rows that are judged by one router, and what was chosen on its train rows.

    Attributes:
        trial: The router on rows that it didn't learn from.
        references: What it is compared with.
        points: Its settings; lam 0.5 is judged without them.
        lam: Another setting than the one in `points`.
    """

    trial: Trial
    references: References
    points: OperatingPoints | None = None
    lam: float | None = None

    @property
    def setting(self) -> float:
        """The lam that is judged."""
        if self.lam is not None:
            return self.lam
        return _LAM if self.points is None else self.points.setting

    @property
    def lams(self) -> dict[str, float | None]:
        """The lam of each point of the curve."""
        if self.points is None:
            return {"setting": self.setting}
        budgets = {f"{share:g}": lam for share, lam in self.points.budgets}
        points = self.points
        settings = {"level": points.level, "cheapest": points.cheapest, "accurate": points.accurate}
        return {"setting": self.setting, **settings, **budgets}

    def lam_of(self, name: str) -> float:
        """The lam of a point.

        Raises:
            ConfigError: The router has no such point.
        """
        lam = self.lams.get(name)
        if lam is None:
            raise ConfigError(f"the router has no setting {name!r}; it has {list(self.lams)}")
        return lam

    @property
    def best(self) -> int:
        """The column of the best single target, as far as train rows tell."""
        if self.points is not None:
            return self.trial.targets.index(self.points.best)
        return self.references.mix.corners[-1]

    def at(self, lam: float) -> "Outcomes":
        """The label and the cost of each row at one setting."""
        choice = self.trial.path.at(lam)
        return (
            self.trial.of_choice(self.trial.correct, choice),
            self.trial.of_choice(self.trial.paid, choice),
        )


@final
@dataclass(frozen=True)
class PricePoint:
    """Price alone at one mean cost.

    Attributes:
        mean_cost: Mean observed cost, US dollars per query.
        accuracy: Mean label.
    """

    mean_cost: float
    accuracy: float

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON."""
        return {"mean_cost": plain(self.mean_cost), "accuracy": plain(self.accuracy)}


def trace_price(parts: Sequence[JudgedPart]) -> tuple[PricePoint, ...]:
    """Price alone by rising cost, on the rows whose outcomes are known; empty without costs."""
    if not parts or all(np.isnan(part.trial.observed_cost).all() for part in parts):
        return ()
    table = _make_tables(parts, free=False)["price"]
    rows = table.is_known & np.concatenate([part.trial.compared for part in parts])
    cost, accuracy = table.cost[rows], table.label[rows]
    if not rows.any() or np.isnan(cost).any():
        return ()
    pairs = zip(cost.mean(axis=0).tolist(), accuracy.mean(axis=0).tolist(), strict=True)
    return tuple(PricePoint(*pair) for pair in sorted(set(pairs)))


def judge(
    parts: Sequence[JudgedPart],
    *,
    lam: float | None = None,
    resamples: int = 1000,
    seed: int = 0,
    choice_auc: Estimate | None = None,
) -> Verdict:
    """Compare a router with its references along its curve.

    Args:
        parts: The judged rows; one part for each fold of a cross-validation.
        lam: The router's own setting, to be named; that of the first part if not given.
        resamples: Bootstrap resamples for the interval of the choice AUC.
        seed: Random seed of the resamples.
        choice_auc: The choice AUC, where it is known.

    Raises:
        ConfigError: The references are of other targets than the router.
    """
    for part in parts:
        if part.references.targets != part.trial.targets:
            raise ConfigError(
                f"the references are of the targets {list(part.references.targets)}, the router of "
                f"{list(part.trial.targets)}; fit it again"
            )
    rows = _Rows.of(parts)
    if choice_auc is None:
        choice_auc = _measure_choice_auc(parts, resamples, seed)
    refusal = _find_refusal(parts)
    curve: tuple[CurvePoint, ...] = ()
    if rows.count and not refusal:
        curve = tuple(rows.measure(name) for name in rows.at_points)
    budgets = rows.average([point.name for point in curve if _is_budget(point.name)])
    word, because, unsettled = _decide(rows, curve, budgets, refusal)
    needed = _count_needed(rows.count, curve, budgets, unsettled)
    own = parts[0].setting if lam is None else lam
    sentences = (
        because,
        _describe_domains(curve),
        _describe_choice_auc(choice_auc),
        f"About {needed:,} judged queries would decide it" if needed else "",
    )
    return Verdict(
        word,
        ". ".join(filter(None, sentences)),
        own,
        sum(len(part.trial) for part in parts),
        rows.count,
        parts[0].trial.targets[parts[0].best],
        curve or (_make_unknown_point(own, refusal or _NONE),),
        budgets,
        choice_auc,
        needed,
        rows.binary,
    )


_NONE = "no query has the outcomes of all sides"


def _is_budget(name: str) -> bool:
    return name.startswith("0.")


Outcomes = tuple[PerQuery, PerQuery]
"""The label and the cost of each row."""
RowNumbers = Int[NDArray[np.int64], " row"]
PerRow = Float[NDArray[np.float64], " row"]
Differ = Callable[[Outcomes, PerQuery, RowNumbers], PerRow]


@final
@dataclass(frozen=True, eq=False)
class _Rows:
    """The judged rows of all parts, one after another.

    Attributes:
        at_points: The router's label and cost, US dollars, of each row at each point.
        by_fold: For each fold, the same with its setting in the place of all others', and the label
            of its best single target on all rows. Empty for a single part.
        lams: The mean lam of each point.
        best: The label and the cost of the best single target.
        references: The references' tables, by name.
        compared: The rows on which all sides are compared.
        with_label: How many rows have any label.
        binary: Whether all labels are 0 or 1.
        conversations: The conversation of each row, as `RoutingDataset.conversations`.
    """

    at_points: dict[str, Outcomes]
    by_fold: list[tuple[dict[str, Outcomes], PerQuery]]
    lams: dict[str, float]
    best: tuple[PerQuery, PerQuery]
    references: dict[str, ReferenceTable]
    compared: Bool[NDArray[np.bool_], " query"]
    with_label: int
    binary: bool
    conversations: Shaped[NDArray[np.str_], " query"] | None = None

    @classmethod
    def of(cls, parts: Sequence[JudgedPart]) -> "_Rows":
        names = [n for n in parts[0].lams if all(part.lams.get(n) is not None for part in parts)]
        free = all(np.isnan(part.trial.observed_cost).all() for part in parts)
        if free:
            names = names[:1]
        own = {name: [part.lam_of(name) for part in parts] for name in names}
        at_points = {name: _join_rows(parts, lams) for name, lams in own.items()}
        best = [
            np.concatenate([table[:, part.best] for part, table in zip(parts, side, strict=True)])
            for side in (
                [part.trial.correct for part in parts],
                [part.trial.observed_cost for part in parts],
            )
        ]
        references = _make_tables(parts, free=free)
        compared = np.logical_and.reduce([table.is_known for table in references.values()])
        labels, costs = zip(*at_points.values(), strict=True)
        needed = [*labels, best[0], *([] if free else [*costs, best[1]])]
        compared &= ~np.isnan(np.stack(needed)).any(axis=0)
        label = np.concatenate([part.trial.observed for part in parts])
        lams = {name: float(np.mean(each)) for name, each in own.items()}
        return cls(
            at_points,
            _move_folds(parts, own) if len(parts) > 1 else [],
            lams,
            (best[0], best[1]),
            references,
            compared,
            int((~np.isnan(label)).any(axis=1).sum()),
            bool(np.isin(label[~np.isnan(label)], (0, 1)).all()),
            _join_conversations(parts),
        )

    @property
    def count(self) -> int:
        """On how many rows all sides are compared."""
        return int(self.compared.sum())

    def measure(self, name: str) -> CurvePoint:
        """The router at one point."""
        label, cost = self._select_compared(self.at_points[name])
        rows = np.flatnonzero(self.compared)
        best, price = (values[rows] for values in self.best)
        gains = {reference: self.gain([name], reference) for reference in self.references}
        return CurvePoint(
            name,
            self.lams[name],
            float(label.mean()),
            float(cost.mean()),
            float(best.mean()),
            float(price.mean()),
            _make_interval(*self._estimate([name], _compare_to_best)),
            gains["mix"],
            gains.get("price"),
            gains.get("domains"),
        )

    def gain(self, names: Sequence[str], reference: str) -> ReferenceGain:
        """The mean gain over a reference at some points."""
        table = self.references[reference]

        def differ(outcomes: Outcomes, _: PerQuery, rows: RowNumbers) -> PerRow:
            label, cost = (values[rows] for values in outcomes)
            return table.spend(rows, float(cost.mean())).differences(label, cost)

        mean, error = self._estimate(names, differ)
        labels = [self._select_compared(self.at_points[name])[0] for name in names]
        reached = float(np.mean([label.mean() for label in labels]))
        hidden = float(np.mean([self.estimate_hidden(name, reference) for name in names]))
        return ReferenceGain(reached - mean, _make_interval(mean, error), error, hidden)

    def _select_compared(self, outcomes: Outcomes) -> tuple[PerRow, PerRow]:
        rows = np.flatnonzero(self.compared)
        return outcomes[0][rows], outcomes[1][rows]

    def _estimate(self, names: Sequence[str], differ: Differ) -> tuple[float, float]:
        """The mean of some differences over points, and its standard error.

        Folds choose settings and a best single target of their own, and so does the router that is
        kept. How much the difference varies with these choices is a part of the error: the variance
        over folds, and a fifth more, since their mean varies as well.
        """
        rows = np.flatnonzero(self.compared)
        each = [differ(self.at_points[name], self.best[0], rows) for name in names]
        groups = None if self.conversations is None else self.conversations[rows].tolist()
        mean, error = paired_mean(np.mean(each, axis=0), groups)
        means = [
            np.mean([self._average_difference(outcomes[name], best, differ) for name in names])
            for outcomes, best in self.by_fold
        ]
        if not means:
            return mean, error
        return mean, math.sqrt(error**2 + float(np.var(means, ddof=1)) * (1 + 1 / len(means)))

    def _average_difference(self, outcomes: Outcomes, best: PerQuery, differ: Differ) -> float:
        """The mean difference on the compared rows whose outcomes are known at other settings."""
        rows = self.compared & ~np.isnan(outcomes[0]) & ~np.isnan(best)
        if not np.isnan(outcomes[1]).all():
            rows &= ~np.isnan(outcomes[1])
        return float(differ(outcomes, best, np.flatnonzero(rows)).mean()) if rows.any() else 0.0

    def estimate_hidden(self, name: str, reference: str) -> float:
        """How much more often the router's labels are missing than the reference's, if surely."""
        label, cost = self.at_points[name]
        is_lacking = np.isnan(label).astype(np.float64)
        if not is_lacking.any() or not self.count:
            return 0.0
        table, spent = self.references[reference], cost[self.compared].mean()
        paid = table.cost[self.compared].mean(axis=0)
        level = -1 if np.isnan(paid).any() else int(np.argmin(np.abs(paid - spent)))
        groups = None if self.conversations is None else self.conversations.tolist()
        mean, error = paired_mean(is_lacking - np.isnan(table.label[:, level]), groups)
        return mean if mean > NORMAL * error else 0.0

    def average(self, names: Sequence[str]) -> dict[str, ReferenceGain]:
        """The mean gain over several points, by reference."""
        return {reference: self.gain(names, reference) for reference in self.references if names}


def _compare_to_best(outcomes: Outcomes, best: PerQuery, rows: RowNumbers) -> PerRow:
    """How much more often the router is right than the best single target."""
    difference: PerRow = outcomes[0][rows] - best[rows]
    return difference


def _move_folds(
    parts: Sequence[JudgedPart], own: Mapping[str, Sequence[float]]
) -> list[tuple[dict[str, Outcomes], PerQuery]]:
    """For each fold, the outcomes of all rows as if all folds had chosen what it has chosen."""
    at: dict[float, Outcomes] = {}
    for lam in dict.fromkeys(lam for lams in own.values() for lam in lams):
        at[lam] = _join_rows(parts, [lam] * len(parts))
    best = {
        column: np.concatenate([part.trial.correct[:, column] for part in parts])
        for column in {part.best for part in parts}
    }
    return [
        ({name: at[lams[place]] for name, lams in own.items()}, best[part.best])
        for place, part in enumerate(parts)
    ]


def _join_rows(parts: Sequence[JudgedPart], lams: Sequence[float]) -> Outcomes:
    """The labels and costs of all parts, each at one setting."""
    tables = [part.at(lam) for part, lam in zip(parts, lams, strict=True)]
    label, cost = (np.concatenate(side) for side in zip(*tables, strict=True))
    return label, cost


def _join_conversations(parts: Sequence[JudgedPart]) -> Shaped[NDArray[np.str_], " query"] | None:
    """The conversation of each row of all parts; None where there is none."""
    if all(part.trial.conversations is None for part in parts):
        return None
    return np.concatenate(
        [
            np.array(part.trial.conversations or [f"query {i}" for i in part.trial.query_ids])
            for part in parts
        ]
    )


def _make_tables(parts: Sequence[JudgedPart], *, free: bool) -> dict[str, ReferenceTable]:
    """The references' tables by name; those of price only where costs are known."""
    rules: dict[str, list[FixedChoice | RateChoice | None]] = {
        "mix": [part.references.mix for part in parts]
    }
    if not free:
        rules["price"] = [part.references.price for part in parts]
        rules["domains"] = [
            part.references.domains if part.trial.domains else None for part in parts
        ]
    return {
        name: ReferenceTable.of_parts(
            [rule for rule in each if rule is not None], [part.trial for part in parts]
        )
        for name, each in rules.items()
        if None not in each
    }


def _make_interval(mean: float, error: float) -> Estimate:
    return Estimate(mean, mean - NORMAL * error, mean + NORMAL * error)


def _make_unknown_point(lam: float, reason: str) -> CurvePoint:
    nothing = Estimate(math.nan, math.nan, math.nan, reason=reason)
    gain = ReferenceGain(math.nan, nothing, math.nan)
    return CurvePoint("setting", lam, *(math.nan,) * 4, nothing, gain, None, None)


def _find_refusal(parts: Sequence[JudgedPart]) -> str:
    """Why no gain can be estimated, where chance selected the labels; else empty."""
    for part in parts:
        choices = [part.trial.path.at(part.setting), *part.references.mix.choose(part.trial)]
        overlap = part.trial.overlap_of(choices)
        if overlap is not None and overlap.refusal:
            return overlap.refusal
    return ""


def _decide(
    rows: _Rows, curve: Sequence[CurvePoint], budgets: dict[str, ReferenceGain], refusal: str
) -> tuple[Word, str, str]:
    """The verdict, its reason, and the reference that it may equal; empty if none."""
    if refusal:
        return "can't tell", refusal, "mix"
    if rows.count < HALF * rows.with_label or not curve:
        return (
            "can't tell",
            (
                f"only {rows.count:,} of {rows.with_label:,} labelled queries have the outcomes of "
                "the router's choices, the best target and the references"
            ),
            "mix",
        )
    tests = [(" at its setting", _list_gains(curve[0]))]
    if budgets:
        tests.append(
            (", on average over budgets of 20 to 70 % of the best target's price", budgets)
        )
    errors = _HOLM if len(tests) > 1 else NORMAL
    over_mix = [(place, gains) for place, gains in tests if gains["mix"].exceeds(0, errors)]
    over_both = [
        (place, gains)
        for place, gains in over_mix
        if "price" in gains and gains["price"].exceeds(0, errors)
    ]
    place, gains = (over_both or over_mix or tests)[-1]
    because = f"{_describe_gains(gains)}{place}, on {rows.count:,} queries"
    if over_mix:
        if over_both or "price" not in gains:
            return "worth it", because, ""
        return "worth it", because + _PRICE_MAY_DO, "price"
    names = ("setting", "accurate")
    tested = [point.mix for point in curve if point.name in names or _is_budget(point.name)]
    if all(gain.excludes(WORTH) for gain in tested):
        return "not worth it", because, ""
    return "can't tell", because, "mix"


_PRICE_MAY_DO = (
    ". Reading the requests may add nothing: a rule that knows only the prices isn't surely worse"
)


def _list_gains(point: CurvePoint) -> dict[str, ReferenceGain]:
    gains = {"mix": point.mix, "price": point.price, "domains": point.domains}
    return {name: gain for name, gain in gains.items() if gain is not None}


def _describe_gains(gains: dict[str, ReferenceGain]) -> str:
    words = {"mix": "the best fixed mix", "price": "price alone"}
    pairs = [(gains[name], reference) for name, reference in words.items() if name in gains]
    over = " and ".join(f"{points(gain.gain)} over {reference}" for gain, reference in pairs)
    hidden = max((gain.hidden for gain, _ in pairs), default=0.0)
    if not hidden:
        return over
    return f"{over} (missing answers may hide up to {100 * hidden:.1f} pp of it)"


def _count_needed(
    count: int,
    curve: Sequence[CurvePoint],
    budgets: dict[str, ReferenceGain],
    reference: str,
) -> int:
    """About how many judged queries would tell it from a reference; 0 where none would.

    Errors shrink with the square root. Either a gain is shown, or that it is less than a point.
    """
    sizes = []
    for gains in (_list_gains(curve[0]) if curve else {}, budgets):
        if reference in gains:
            gain = gains[reference]
            effect = max(gain.gain.value, WORTH - gain.gain.value)
            sizes.append(count * (_HOLM * gain.error / effect) ** 2)
    needed = min(sizes, default=0.0)
    if not math.isfinite(needed) or needed <= count:
        return 0
    return int(round(needed, 1 - len(str(int(needed)))))


def _measure_choice_auc(parts: Sequence[JudgedPart], resamples: int, seed: int) -> Estimate:
    """The mean over the parts: between folds, predictions and labels are of other base rates."""
    trials = [part.trial for part in parts]
    pairs = [PairRankings.of(trial.correctness, trial.joint) for trial in trials]
    ends = np.cumsum([len(trial) for trial in trials])

    def average(weights: Weights) -> PerResample:
        pieces = np.split(weights, ends[:-1], axis=1)
        parts_of = zip(pairs, pieces, strict=True)
        scores = [rankings.scores(piece)["choice_auc"] for rankings, piece in parts_of]
        count = (~np.isnan(scores)).sum(axis=0).astype(np.float64)
        return divide(np.nansum(scores, axis=0), count)

    size = int(ends[-1])
    width = max(size, sum(rankings.width for rankings in pairs))
    groups = _join_conversations(parts)
    bootstrap = Bootstrap(size, resamples, seed, width, None if groups is None else groups.tolist())
    return bootstrap.estimate(average, NO_PAIR)


def _describe_choice_auc(choice_auc: Estimate) -> str:
    if math.isnan(choice_auc.value):
        return ""
    spread = interval(choice_auc, "number")
    value = worded(choice_auc.value, "number") + (f" [{spread}]" if spread else "")
    return f"Choice AUC {value} (0.5 is chance)"


def _describe_domains(curve: Sequence[CurvePoint]) -> str:
    """What knowing each request's domain and the prices would bring, in a sentence."""
    if not curve or curve[0].domains is None or curve[0].price is None:
        return ""
    brings = curve[0].domains.accuracy - curve[0].mix.accuracy
    return f"Knowing the domain and the prices alone would bring {worded(brings, 'points')}"


def points(difference: Estimate) -> str:
    """A difference in percentage points, with its interval."""
    spread = interval(difference, "points")
    return worded(difference.value, "points") + (f" [{spread}]" if spread else "")
