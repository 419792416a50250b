"""Variability of a router's metrics when only the training seed changes.

The paper's appendix on seed variability: every recipe is fitted with several seeds on the same
split and judged on the same test queries. This is the noise of training; the bootstrap covers the
variability over queries.
"""

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Literal, final, get_args

import numpy as np

from prefill_router.activations import Activations
from prefill_router.comparison import (
    FitJob,
    Fitted,
    RecipeFailure,
    failures,
    fit_jobs,
    warnings,
)
from prefill_router.data import RoutingDataset, Split
from prefill_router.engines import Engine
from prefill_router.evaluation import HEADLINE, NOTHING, Scorer, Trial, digits, ones, plain
from prefill_router.fitting import FitConfig, Recipe
from prefill_router.plotting import Figure
from prefill_router.progress import Progress, SilentProgress
from prefill_router.reporting import (
    BLUE,
    ORANGE,
    QUIET,
    Cell,
    Note,
    Report,
    ReportFigure,
    Row,
    Section,
    Table,
    heading,
    name_rows,
    new_figure,
    style,
)
from prefill_router_lab.studies.options import SeedOptions

Number = Literal["auc_mean", "brier_mean", "max_lam_accuracy", "p_auccc", "argmax_accuracy"]
NUMBERS: tuple[Number, ...] = get_args(Number)
"""The metrics of the paper's table, and the accuracy at lam = 1."""
ENOUGH = 3
"""After this many fits with bitwise equal probabilities the seed counts as unused."""


@final
@dataclass(frozen=True)
class Spread:
    """One recipe over its seeds.

    Attributes:
        name: The recipe's name.
        values: Every metric's value for each seed, in the order of `seeds`.
        seeds: The seeds that it was fitted with.
        deterministic: Whether the predictions were bitwise equal for all seeds; it was then fitted
            `ENOUGH` times at most.
    """

    name: str
    values: Mapping[Number, tuple[float, ...]]
    seeds: tuple[int, ...]
    deterministic: bool

    def mean(self, number: Number) -> float:
        """The mean over the seeds."""
        if self.deterministic:
            return self.values[number][0]
        return float(np.mean(self.values[number]))

    def sd(self, number: Number) -> float:
        """The sample standard deviation (n - 1); NaN for one seed, 0 where the seed is unused."""
        if self.deterministic:
            return 0.0
        values = self.values[number]
        return float(np.std(values, ddof=1)) if len(values) > 1 else float("nan")

    def still(self, number: Number) -> bool:
        """Whether there is no deviation to report: the seed is unused, or a value is undefined."""
        return self.deterministic or not np.isfinite(self.values[number]).all()

    def range(self, number: Number) -> tuple[float, float]:
        """The lowest and the highest value; extremes of the seeds, no confidence interval."""
        return min(self.values[number]), max(self.values[number])

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON; None where a number isn't defined."""
        return {
            "seeds": list(self.seeds),
            "deterministic": self.deterministic,
            "numbers": {
                name: {
                    "mean": plain(self.mean(name)),
                    "sd": plain(self.sd(name)),
                    "lowest": plain(self.range(name)[0]),
                    "highest": plain(self.range(name)[1]),
                    "values": [plain(value) for value in self.values[name]],
                }
                for name in NUMBERS
            },
        }


@final
@dataclass(frozen=True)
class SeedStudy:
    """All recipes over the seeds.

    Attributes:
        spreads: One per recipe that could be fitted, in the order given.
        failures: The recipes that could not be fitted.
        queries: Number of test queries they were judged on.
        seed: The first seed.
        count: How many seeds.
    """

    spreads: tuple[Spread, ...]
    failures: tuple[RecipeFailure, ...]
    queries: int
    seed: int
    count: int

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON."""
        return {
            "queries": self.queries,
            "seed": self.seed,
            "count": self.count,
            "routers": {spread.name: spread.to_dict() for spread in self.spreads},
            "failed": {failure.name: failure.why for failure in self.failures},
        }

    def rows(self) -> list[dict[str, Any]]:
        """One row per recipe, seed and number."""
        return [
            {"router": spread.name, "seed": seed, "number": name, "value": value}
            for spread in self.spreads
            for name in NUMBERS
            for seed, value in zip(spread.seeds, spread.values[name], strict=True)
        ]

    def table(self) -> list[dict[str, Any]]:
        """One row per recipe: the paper's table, with the extremes."""
        rows = []
        for spread in self.spreads:
            row: dict[str, Any] = {
                "router": spread.name,
                "fits": len(spread.seeds),
                "deterministic": spread.deterministic,
            }
            for name in NUMBERS:
                low, high = spread.range(name)
                row |= {name: spread.mean(name), f"{name}_sd": spread.sd(name)}
                row |= {f"{name}_lowest": low, f"{name}_highest": high}
            rows.append(row)
        return rows

    def report(self, *, title: str, facts: Mapping[str, str]) -> Report:
        """The page, tables and figure of the study."""
        figures = [ReportFigure("seeds", draw(self), self.rows(), _CAPTION)] if self.spreads else []
        meanings = {HEADLINE[name].label: HEADLINE[name].meaning for name in NUMBERS}
        return Report(
            name="seeds",
            title=title,
            summary=summary(self),
            facts=facts,
            parts=[
                *figures,
                Section(
                    "Mean and standard deviation", [_tabulate_means(self), *failures(self.failures)]
                ),
                Section("Lowest and highest", [Note(_EXTREMES), _tabulate_extremes(self)]),
                Section("What the numbers mean", [{**meanings, "standard deviation": _DEVIATION}]),
            ],
            numbers=self.to_dict(),
            tables={"seeds": self.table(), "fits": self.rows()},
            short=_tabulate_summary(self),
            warnings=warnings(self.failures),
        )


def seed_study(
    dataset: RoutingDataset,
    recipes: Mapping[str, Recipe],
    states: Sequence[Activations],
    split: Split,
    options: SeedOptions | None = None,
    *,
    calibrated: Split | None = None,
    folder: Path | None = None,
    engine: Engine | None = None,
    progress: Progress | None = None,
) -> SeedStudy:
    """Fit every recipe with the seeds `seed`, `seed + 1`, ... on one split.

    Args:
        dataset: Scored answers.
        recipes: The recipes by name.
        states: Hidden states for their features, see `fitting.gather`.
        split: The split that all recipes share.
        options: The number of seeds, and the first.
        calibrated: The split of recipes with a calibration, with the same test part; `split` if not
            given.
        folder: Keeps each router once it is fitted, so that interrupted work can resume.
        engine: Where the fits run; in this process if not given.
        progress: Reports the progress of the work.
    """
    options = options or SeedOptions()
    seed, count = options.seed, options.count
    test, bar = dataset.select(split["test"]), progress or SilentProgress()
    fits_by_recipe: dict[str, list[_SeedFit | RecipeFailure]] = {name: [] for name in recipes}
    # The first seeds say which recipes are deterministic; only the others get all seeds.
    for seeds in (range(seed, seed + min(ENOUGH, count)), range(seed + ENOUGH, seed + count)):
        varying = [name for name in recipes if _do_fits_differ(fits_by_recipe[name])]
        jobs = [
            FitJob(
                name,
                FitConfig(seed=number, recipe=recipes[name]),
                split if recipes[name].calibration == "none" else calibrated or split,
                None if folder is None else folder / f"seed-{number}",
            )
            for name in varying
            for number in seeds
        ]
        judge = partial(_judge_fit, test, states)
        fits = fit_jobs(dataset, states, jobs, finish=judge, engine=engine, progress=bar)
        for job, fit in zip(jobs, fits, strict=True):
            fits_by_recipe[job.name].append(fit)
    first_failures = [
        next((f for f in fits if isinstance(f, RecipeFailure)), None)
        for fits in fits_by_recipe.values()
    ]
    spreads = [
        _make_spread(name, [fit for fit in fits if isinstance(fit, _SeedFit)])
        for (name, fits), failed in zip(fits_by_recipe.items(), first_failures, strict=True)
        if failed is None
    ]
    return SeedStudy(tuple(spreads), tuple(filter(None, first_failures)), len(test), seed, count)


@final
@dataclass(frozen=True, eq=False)
class _SeedFit:
    """The metrics of one fit, and a digest of its predictions."""

    seed: int
    values: Mapping[Number, float]
    digest: bytes


def _do_fits_differ(fits: Sequence[_SeedFit | RecipeFailure]) -> bool:
    """Whether the fits so far exist and differ, so that more seeds would add something."""
    digests = {fit.digest for fit in fits if isinstance(fit, _SeedFit)}
    return not fits or (
        len(digests) > 1 and not any(isinstance(fit, RecipeFailure) for fit in fits)
    )


def _judge_fit(
    test: RoutingDataset, states: Sequence[Activations], job: FitJob, fit: Fitted
) -> _SeedFit | RecipeFailure:
    if isinstance(fit, RecipeFailure):
        return fit
    predictions = fit.router.predict(test, stores=states)
    scorer = Scorer(Trial.join(predictions, test, policy=fit.router.policy))
    headline = scorer.score(ones(len(test))).headline
    values = {number: float(headline[number][0]) for number in NUMBERS}
    digest = hashlib.sha256(predictions.correctness.tobytes()).digest()
    return _SeedFit(job.config.seed, values, digest)


def _make_spread(name: str, fits: Sequence[_SeedFit]) -> Spread:
    values = {number: tuple(fit.values[number] for fit in fits) for number in NUMBERS}
    same = len({fit.digest for fit in fits}) == 1
    return Spread(name, values, tuple(fit.seed for fit in fits), same and len(fits) > 1)


_CAPTION = (
    "Each dot is one fit with another seed, judged on the same test queries; the bar is the mean "
    "with one sample standard deviation on either side. A diamond is a router that is the same for "
    "every seed."
)
_EXTREMES = (
    "In brackets: the extremes over the seeds. They aren't confidence intervals: with other test "
    "queries the numbers would vary more."
)
_DEVIATION = (
    "The sample standard deviation (n - 1) over the seeds. An ensemble of networks, the default of "
    "the shared trunk, varies less than the single networks of the paper's table; for single "
    "networks set seeds: 1 and keep: 1 in the recipe."
)
_HEADS = tuple(heading(HEADLINE[name]) for name in NUMBERS)


def summary(study: SeedStudy) -> list[str]:
    """The result in a few sentences."""
    moving = [spread for spread in study.spreads if not spread.deterministic]
    still = [spread.name for spread in study.spreads if spread.deterministic]
    lines = []
    if moving:
        most = max(moving, key=lambda spread: np.nan_to_num(spread.sd("auc_mean"), nan=-1.0))
        count = "One router was" if len(moving) == 1 else f"{len(moving)} routers were"
        lines.append(
            f"{count} fitted {study.count} times on the same queries, each time "
            f"with another seed. The seed changes the mean AUC most for {most.name}, with a "
            f"standard deviation of {most.sd('auc_mean'):.4f}; differences between routers that "
            "aren't clearly larger than that may be due to the seed."
        )
    if still:
        lines.append(
            f"Deterministic, bitwise equal for every seed: {', '.join(still)}. They have no "
            "deviation to report."
        )
    undefined = [
        n for n in NUMBERS if any(not np.isfinite(spread.mean(n)) for spread in study.spreads)
    ]
    if undefined:
        labels = ", ".join(HEADLINE[n].label for n in undefined)
        lines.append(
            f"On these test queries a router has no {labels}: "
            "the labels or costs that it needs are missing, or all labels are the same."
        )
    return lines or ["No router could be fitted."]


def _tabulate_means(study: SeedStudy) -> Table:
    """The paper's table of means and sample standard deviations."""

    def cell(spread: Spread, name: Number) -> Cell:
        still = "deterministic" if spread.deterministic else NOTHING
        note = still if spread.still(name) else f"± {spread.sd(name):.4f}"
        return Cell(digits(spread.mean(name), ".4f"), note=note)

    rows: list[Row] = [
        [spread.name, *(cell(spread, name) for name in NUMBERS), str(len(spread.seeds))]
        for spread in study.spreads
    ]
    return Table(["Router", *_HEADS, "fits"], rows)


def _tabulate_extremes(study: SeedStudy) -> Table:
    """A table of means with the lowest and the highest value over the seeds."""

    def cell(spread: Spread, name: Number) -> Cell:
        low, high = spread.range(name)
        note = "" if spread.still(name) else f"[{low:.4f}, {high:.4f}]"
        return Cell(digits(spread.mean(name), ".4f"), note=note)

    rows: list[Row] = [
        [spread.name, *(cell(spread, name) for name in NUMBERS)] for spread in study.spreads
    ]
    return Table(["Router", *_HEADS], rows)


def _tabulate_summary(study: SeedStudy) -> Table:
    def cell(spread: Spread, name: Number) -> str:
        deviation = "" if spread.still(name) else f" ± {spread.sd(name):.4f}"
        return digits(spread.mean(name), ".4f") + deviation

    rows = [[spread.name, *(cell(spread, name) for name in NUMBERS)] for spread in study.spreads]
    return Table(["router", "mean AUC", "Brier", "best lam", "P-AUCCC", "lam 1"], rows)


def draw(study: SeedStudy) -> Figure:
    """Draw every fit as a dot, with a panel per metric."""
    ordered = study.spreads[::-1]
    figure = new_figure(11.0, 1.5 + 0.32 * len(ordered))
    panels = figure.subplots(1, len(NUMBERS), sharey=True, squeeze=False)[0]
    for axes, name, head in zip(panels, NUMBERS, _HEADS, strict=True):
        for row, spread in enumerate(ordered):
            mean, sd = spread.mean(name), spread.sd(name)
            if spread.deterministic:
                axes.plot([mean], [row], "D", color=ORANGE, ms=6)
                continue
            axes.plot([mean - sd, mean + sd], [row, row], color=BLUE, lw=6, alpha=0.3)
            axes.plot(spread.values[name], [row] * len(spread.seeds), "o", color=BLUE, ms=3.5)
            axes.plot([mean], [row], "|", color=QUIET, ms=12)
        style(axes, title=head)
        axes.locator_params(axis="x", nbins=4)
    name_rows(panels[0], [spread.name for spread in ordered])
    return figure
