"""A router beside others on the same queries, at the same cost.

The peers are the best fixed mix of targets, price alone (`evaluation.references`), and LiteLLM's
local classifiers (`litellm_tiers`). Every rule is learned from rows that aren't judged: a
classifier's tiers get the targets that are best on train rows, for each cost. So a classifier is
shown at its best, better than an operator who assigns targets by hand could use it. Such
assignments by hand (`SETUPS`) are judged as well.

A system that can spend more or less is read at shares of the best single target's cost. Between two
of its settings lie mixes of both, as between those of a reference.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, final

import numpy as np
from jaxtyping import Float, Int
from numpy.typing import NDArray

from prefill_router.data import RoutingDataset
from prefill_router.errors import DataError
from prefill_router.evaluation import (
    NORMAL,
    Choice,
    Estimate,
    JudgedPart,
    MixedReference,
    ReferenceTable,
    Trial,
    envelope_targets,
    known_mean,
    ones,
    paired_mean,
    plain,
    worded,
)
from prefill_router.plotting import Figure
from prefill_router.reporting import (
    BOLD,
    INK,
    Note,
    Report,
    ReportFigure,
    Row,
    Rows,
    Section,
    Table,
    estimate_cell,
    flat,
    legend_below,
    new_figure,
    significance,
    stroke,
    style,
)

SHARES = (0.2, 0.3, 0.5, 0.7)
"""The costs at which systems are compared, as shares of the best single target's."""
CURVE = tuple(np.linspace(0.05, 1.0, 39).round(3).tolist())
"""The shares at which curves are drawn."""
MIX, PRICE, ROUTER = "best fixed mix", "price alone", "router"
SETUPS: Mapping[str, tuple[str, ...]] = {
    "three steps": ("cheap", "middle", "best", "best"),
    "cheap unless complex": ("cheap", "cheap", "best", "best"),
}
"""What an operator would write: a target for each tier, of the cheapest, the best, and one between
them."""
_LEVELS = 65
PerRow = Float[NDArray[np.float64], " row"]


@final
@dataclass(frozen=True)
class PeerPart:
    """Judged rows, and the rows that everything they are judged by was learned from.

    Attributes:
        judged: The router on rows that it didn't learn from.
        train: Train rows: other ones.
    """

    judged: JudgedPart
    train: RoutingDataset


@final
@dataclass(frozen=True, eq=False)
class TierChoice:
    """A target for each tier of a classifier, at each of several costs.

    Attributes:
        tiers: The tier of each query, by its id.
        corners: The target of each tier, at one corner after another.
        costs: The mean cost of each corner on train rows, US dollars, rising.
    """

    tiers: Mapping[str, int]
    corners: tuple[tuple[int, ...], ...]
    costs: tuple[float, ...]

    @classmethod
    def fit(cls, train: RoutingDataset, tiers: Mapping[str, int]) -> "TierChoice":
        """The assignments on the envelope of accuracy over cost: no other is better at its cost.

        Both are sums over the tiers. So the best assignments begin with the cheapest target of each
        tier, and take one step after another along the tiers' own envelopes, the steepest first.
        """
        tier = np.array([tiers[name] for name in train.query_ids])
        targets, steps = [], []
        for number in range(int(tier.max()) + 1):
            rows = tier == number
            corners = []
            if rows.any():
                cost, right = (
                    _average_columns(train.observed_cost[rows]),
                    _average_columns(train.correct[rows]),
                )
                corners = envelope_targets(cost, right)
            targets.append(corners[0] if corners else 0)
            for before, after in pairwise(corners):
                run, rise = cost[after] - cost[before], right[after] - right[before]
                steps.append((rise / run, number, after))
        assignments = [tuple(targets)]
        for _, number, after in sorted(steps, key=lambda step: -step[0]):
            targets[number] = after
            assignments.append(tuple(targets))
        costs = [_average_cost(train, np.array(assignment)[tier]) for assignment in assignments]
        return cls(tiers, tuple(assignments), tuple(costs))

    @classmethod
    def by_hand(
        cls, train: RoutingDataset, tiers: Mapping[str, int], words: Sequence[str]
    ) -> "TierChoice":
        """An assignment that an operator would write (`SETUPS`)."""
        cost, right = _average_columns(train.observed_cost), _average_columns(train.correct)
        corners = envelope_targets(cost, right)
        halfway = (cost[corners[0]] + cost[corners[-1]]) / 2
        middle = min(corners, key=lambda target: abs(cost[target] - halfway))
        target_of_word = {"cheap": corners[0], "middle": middle, "best": corners[-1]}
        return cls(tiers, (tuple(target_of_word[word] for word in words),), (np.nan,))

    def choose(self, trial: Trial) -> Iterator[Choice]:
        """The target of each query, at one corner after another."""
        tier = np.array([self.tiers[name] for name in trial.query_ids])
        for corner in self.corners:
            yield np.array(corner, dtype=np.int64)[tier]


def _average_columns(table: Float[NDArray[np.float64], "query target"]) -> PerRow:
    means: PerRow = known_mean(ones(len(table)), table)[0]
    return means


def _average_cost(train: RoutingDataset, choice: Choice) -> float:
    return float(np.nanmean(train.observed_cost[np.arange(len(train)), choice]))


@final
@dataclass(frozen=True)
class PeerPoint:
    """A system at one cost.

    Attributes:
        share: Its mean cost as a share of the best single target's.
        accuracy: Its accuracy.
        over_mix: Its accuracy minus that of the best fixed mix at the same cost.
        over_price: The same for price alone.
    """

    share: float
    accuracy: float
    over_mix: Estimate
    over_price: Estimate

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON."""
        return {
            "share": plain(self.share),
            "accuracy": plain(self.accuracy),
            "over_mix": self.over_mix.to_dict(),
            "over_price": self.over_price.to_dict(),
        }


@final
@dataclass(frozen=True)
class PeerStudy:
    """All systems on the same queries.

    Attributes:
        best: The best single target, as far as train rows tell.
        best_accuracy: Its accuracy.
        best_cost: Its mean cost, US dollars.
        queries: On how many queries all systems are compared.
        points: Each system at each of `SHARES` that it can spend.
        curves: Each system at those of `CURVE`.
        setups: Systems of one cost: assignments by hand, and the router at its own setting.
    """

    best: str
    best_accuracy: float
    best_cost: float
    queries: int
    points: Mapping[str, tuple[PeerPoint, ...]]
    curves: Mapping[str, tuple[PeerPoint, ...]]
    setups: Mapping[str, PeerPoint]

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON."""
        return {
            "best": self.best,
            "best_accuracy": self.best_accuracy,
            "best_cost": self.best_cost,
            "queries": self.queries,
            "systems": {n: [p.to_dict() for p in points] for n, points in self.points.items()},
            "setups": {name: point.to_dict() for name, point in self.setups.items()},
        }

    def report(self, *, title: str, facts: Mapping[str, str]) -> Report:
        """The page, tables and figure of the study."""
        return Report(
            name=NAME,
            title=title,
            summary=summarise(self),
            facts={**facts, "best single target": self.best},
            parts=[
                ReportFigure("peers", draw(self), _list_curve_rows(self), _CAPTION),
                Section(
                    "Accuracy at equal cost",
                    [Note(BOLD), _tabulate_accuracies(self), _tabulate_gains(self)],
                ),
                Section("Systems of one cost", [_tabulate_setup_points(self)]),
                Section("How to read it", [_MEANINGS]),
            ],
            numbers=self.to_dict(),
            tables={"peers": _list_point_rows(self)},
            short=_tabulate_accuracies(self),
        )


def study_peers(
    parts: Sequence[PeerPart], tiers: Mapping[str, Mapping[str, int]], *, name: str = ROUTER
) -> PeerStudy:
    """Compare a router with its peers at equal cost.

    Args:
        parts: The judged rows; one part for each fold of a cross-validation.
        tiers: For each classifier, the tier of each query by its id.
        name: What the router is called.

    Raises:
        DataError: No cost is known, or no query has the outcomes of all systems.
    """
    judged_parts = [part.judged for part in parts]
    if any(np.isnan(part.trial.observed_cost).all() for part in judged_parts):
        raise DataError(
            "systems are compared at equal cost, and no cost of these answers is known; give the "
            "targets prices"
        )
    systems = _tabulate_systems(parts, tiers, name)
    setups = _tabulate_setups(parts, tiers, name)
    single = ReferenceTable.join(
        [ReferenceTable.of_choices([_choose_best(part)], part.trial) for part in judged_parts]
    )
    tables = (*systems.values(), *setups.values(), single)
    is_compared = np.logical_and.reduce([table.is_known for table in tables])
    if not is_compared.any():
        raise DataError("no query has the outcomes of all systems; give more complete answers")
    rows = _ComparedRows(np.flatnonzero(is_compared), systems[MIX], systems[PRICE], single)
    return PeerStudy(
        judged_parts[0].trial.targets[judged_parts[0].best],
        float(single.label[rows.rows, 0].mean()),
        rows.best_cost,
        len(rows.rows),
        {system: rows.read(table, SHARES) for system, table in systems.items()},
        {system: rows.read(table, CURVE) for system, table in systems.items()},
        {setup: rows.measure_setup(table) for setup, table in setups.items()},
    )


Tables = dict[str, ReferenceTable]


def _tabulate_systems(
    parts: Sequence[PeerPart], tiers: Mapping[str, Mapping[str, int]], name: str
) -> Tables:
    """The systems that can spend more or less."""
    trials = [part.judged.trial for part in parts]
    references = [part.judged.references for part in parts]
    tables = {
        MIX: ReferenceTable.of_parts([each.mix for each in references], trials),
        PRICE: ReferenceTable.of_parts([each.price for each in references], trials),
    }
    for classifier, tier in tiers.items():
        rules = [TierChoice.fit(part.train, tier) for part in parts]
        tables[f"LiteLLM {classifier}"] = ReferenceTable.of_parts(rules, trials)
    return {**tables, name: _tabulate_router([part.judged for part in parts])}


def _tabulate_setups(
    parts: Sequence[PeerPart], tiers: Mapping[str, Mapping[str, int]], name: str
) -> Tables:
    """The systems of one cost."""
    trials, tables = [part.judged.trial for part in parts], {}
    for classifier, tier in tiers.items():
        for setup, words in SETUPS.items():
            rules = [TierChoice.by_hand(part.train, tier, words) for part in parts]
            tables[f"LiteLLM {classifier}, {setup}"] = ReferenceTable.of_parts(rules, trials)
    settings = [part.judged.setting for part in parts]
    own = [
        ReferenceTable.of_choices([trial.path.at(setting)], trial)
        for trial, setting in zip(trials, settings, strict=True)
    ]
    return {**tables, f"{name} at its setting": ReferenceTable.join(own)}


def _choose_best(part: JudgedPart) -> Choice:
    return np.full(len(part.trial), part.best, dtype=np.int64)


def _tabulate_router(parts: Sequence[JudgedPart]) -> ReferenceTable:
    """A router at many values of lam, the same for all parts."""
    changes = np.unique(np.concatenate([part.trial.path.lam for part in parts]))
    spread = np.quantile(changes, np.linspace(0, 1, _LEVELS - 1), method="nearest")
    lams = [*spread.tolist(), 1.0]
    return ReferenceTable.join(
        [
            ReferenceTable.of_choices([part.trial.path.at(lam) for lam in lams], part.trial)
            for part in parts
        ]
    )


@final
@dataclass(frozen=True, eq=False)
class _ComparedRows:
    """The rows on which all systems are compared, and what they are compared with.

    Attributes:
        rows: The rows of the tables.
        mix: The best fixed mix.
        price: Price alone.
        single: The best single target.
    """

    rows: Int[NDArray[np.int64], " row"]
    mix: ReferenceTable
    price: ReferenceTable
    single: ReferenceTable

    @property
    def best_cost(self) -> float:
        """The best single target's mean cost."""
        return float(self.single.cost[self.rows, 0].mean())

    def read(self, table: ReferenceTable, shares: Sequence[float]) -> tuple[PeerPoint, ...]:
        """A system at those of some shares that it can spend."""
        costs = table.cost[self.rows].mean(axis=0)
        spends = [share * self.best_cost for share in shares]
        return tuple(
            self._compare(share, table.spend(self.rows, spend))
            for share, spend in zip(shares, spends, strict=True)
            if costs.min() <= spend
        )

    def measure_setup(self, table: ReferenceTable) -> PeerPoint:
        """A system of one cost."""
        label, cost = table.label[self.rows, 0], table.cost[self.rows, 0]
        share = float(cost.mean()) / self.best_cost
        return self._compare(share, MixedReference(label, cost, 0.0))

    def _compare(self, share: float, system: MixedReference) -> PeerPoint:
        spent = float(system.cost.mean())
        over = [
            self._estimate_gain(system, reference.spend(self.rows, spent))
            for reference in (self.mix, self.price)
        ]
        return PeerPoint(share, float(system.label.mean()), *over)

    def _estimate_gain(self, system: MixedReference, reference: MixedReference) -> Estimate:
        """A gain at equal cost, and its interval, to which the costs of the rows contribute."""
        difference = reference.differences(system.label, system.cost)
        mean, error = paired_mean(difference)
        return Estimate(mean, mean - NORMAL * error, mean + NORMAL * error)


NAME = "peers"
_MEANINGS = {
    MIX: "A fixed share of the queries to one target and the rest to another, without reading "
    "them; the best such mix on train rows.",
    PRICE: "What the router predicts that each answer will cost, with each target's accuracy on "
    "train rows in the place of probabilities.",
    "LiteLLM": "The local classifiers of its complexity router. Each tier gets the target that is "
    "best for it on train rows, at every cost: better than an operator could assign by hand.",
    "three steps": "By hand: the cheapest target for simple requests, one halfway in price for "
    "medium ones, the best for complex ones and for reasoning.",
    "cheap unless complex": "By hand: the cheapest target for simple and medium requests, the best "
    "for the others.",
    "cost": "The mean cost of the queries as a share of the best single target's. Between two "
    "settings of a system lie mixes of both.",
    "intervals": "95 %, of paired differences on the same queries; one comparison at a time, "
    "without a correction for their number.",
}


_CAPTION = (
    "Higher at the same cost is better. The fixed mix needs no router; price alone reads nothing "
    "but prices. A system that isn't above both has learned nothing from what the queries say."
)


def summarise(study: PeerStudy) -> list[str]:
    """The result in a few sentences."""
    alone = worded(study.best_accuracy, "share")
    lines = [f"{study.best} alone is right on {alone} of {study.queries:,} queries."]
    for name, points in study.points.items():
        if name != MIX:
            lines.append(f"{name}: {'; '.join(_word_gain(point) for point in points)}.")
    return lines


def _word_gain(point: PeerPoint) -> str:
    gain = worded(point.over_mix.value, "points", signed=True)
    sure = "" if point.over_mix.lower > 0 or point.over_mix.upper < 0 else ", not significant"
    return f"at {100 * point.share:.0f} % of its price {gain} points over the mix{sure}"


def _index_by_share(points: tuple[PeerPoint, ...]) -> dict[float, PeerPoint]:
    return {point.share: point for point in points}


def _tabulate_accuracies(study: PeerStudy) -> Table:
    rows: list[Row] = []
    for name, points in study.points.items():
        at = _index_by_share(points)
        cells = [worded(at[s].accuracy, "share") if s in at else "-" for s in SHARES]
        rows.append([name, *cells])
    return Table(["accuracy at", *_HEADS], rows, right_from=1, unbroken=True)


_HEADS = tuple(f"{100 * share:.0f} % of the price" for share in SHARES)


def _tabulate_gains(study: PeerStudy) -> Table:
    rows: list[Row] = []
    for name, points in study.points.items():
        at = _index_by_share(points)
        if name == MIX:
            continue
        rows.append(
            [
                name,
                *(
                    estimate_cell(
                        at[share].over_mix,
                        "points",
                        signed=True,
                        compared=significance(at[share].over_mix, "higher"),
                    )
                    if share in at
                    else "-"
                    for share in SHARES
                ),
            ]
        )
    return Table(["points over the mix at", *_HEADS], rows)


def _tabulate_setup_points(study: PeerStudy) -> Table:
    rows: list[Row] = []
    for name, point in study.setups.items():
        gains = [
            estimate_cell(gain, "points", signed=True, compared=significance(gain, "higher"))
            for gain in (point.over_mix, point.over_price)
        ]
        share, accuracy = worded(point.share, "share"), worded(point.accuracy, "share")
        rows.append([name, share, accuracy, *gains])
    head = ["system", "of the best one's price", "accuracy", "over the mix", "over price alone"]
    return Table(head, rows)


def draw(study: PeerStudy) -> Figure:
    """Draw all curves, and the systems of one cost as points."""
    figure = new_figure(9.4, 5.6)
    axes = figure.add_subplot()
    for place, (name, points) in enumerate(reversed(list(study.curves.items()))):
        colour, line, _ = stroke(place)
        x, y = [100 * p.share for p in points], [100 * p.accuracy for p in points]
        axes.plot(x, y, color=colour, ls=line, lw=2.2 if place == 0 else 1.5, label=name)
    by_hand = [point for name, point in study.setups.items() if name.startswith("LiteLLM")]
    own = [point for name, point in study.setups.items() if not name.startswith("LiteLLM")]
    for single, marker, colour, label in (
        (by_hand, "x", INK, "LiteLLM, assigned by hand"),
        (own, "o", stroke(0)[0], "router at its setting"),
    ):
        at = [100 * p.share for p in single], [100 * p.accuracy for p in single]
        axes.plot(*at, marker=marker, color=colour, ls="", ms=7, label=label)
    axes.axhline(100 * study.best_accuracy, lw=0.9, ls=":", label=f"{study.best} alone")
    style(
        axes,
        title=f"{study.queries:,} queries, each system at the same cost",
        x="mean cost (% of the best single target's)",
        y="accuracy (%)",
    )
    axes.set_xlim(0, 105)
    legend_below(figure, columns=3)
    return figure


def _list_curve_rows(study: PeerStudy) -> Rows:
    return [
        {"system": name, "share": point.share, "accuracy": point.accuracy}
        for points_by_system in (
            study.curves,
            {name: (point,) for name, point in study.setups.items()},
        )
        for name, points in points_by_system.items()
        for point in points
    ]


def _list_point_rows(study: PeerStudy) -> Rows:
    points_by_system = {**study.points, **{name: (point,) for name, point in study.setups.items()}}
    return [
        {
            "system": name,
            "share": point.share,
            "accuracy": point.accuracy,
            **flat({"over_mix": point.over_mix, "over_price": point.over_price}),
        }
        for name, points in points_by_system.items()
        for point in points
    ]
