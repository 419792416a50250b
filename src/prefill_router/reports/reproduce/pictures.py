"""The paper's figures by number: which can be drawn of the data, and why the others can't."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, final

from prefill_router.reports.reproduce.pools import POOLS
from prefill_router.reports.reproduce.run import Run
from prefill_router.reports.reproduce.tables.common import of_pool

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_CURVES = (
    "Each line is one router from its cheapest to its most accurate setting; up and to the "
    "{better} is better. Circles are the single targets, the dashed line is what drawing "
    "targets by lot reaches."
)
_FIRST = {"frontier": 2, "small": 5, "mixed": 7}
"""The number of each pool's first figure of curves; the normalised one comes next."""
_PLACE = {"frontier": "section 5.1.3", "small": "appendix J.1", "mixed": "appendix J.2"}


@final
@dataclass(frozen=True, eq=False)
class Picture:
    """One figure of the paper.

    Attributes:
        number: Of the figure in the paper.
        name: Of its files.
        title: What it shows.
        where: The section that it stands in.
        caption: What to see in it.
        missing: Why it isn't drawn; empty where it is.
        drawn: It and its data.
    """

    number: int
    name: str
    title: str
    where: str
    caption: str
    missing: str = ""
    drawn: "tuple[Figure, list[dict[str, Any]]] | None" = None


def all_pictures(runs: Sequence[Run]) -> list[Picture]:
    """Every figure of the paper, in its order; one that has several panels comes several times."""
    made = [
        Picture(
            1,
            "figure_1",
            "The two stages of the router",
            "section 2",
            "",
            missing="A diagram of the method, without numbers: an encoder reads the query once, "
            "and a network says how probably each target is right.",
        )
    ]
    for pool in POOLS:
        made += _curves(pool, of_pool(runs, pool))
    made += _ratios(runs)
    return sorted(made, key=lambda one: one.number)


def _curves(pool: str, run: Run | None) -> list[Picture]:
    from prefill_router.reports.reproduce import figures

    made = []
    for offset, view in enumerate(("raw", "normalised")):
        number = _FIRST[pool] + offset
        made.append(
            Picture(
                number,
                f"figure_{number}_{pool}_{view}",
                f"{pool.capitalize()} pool: accuracy against cost, {view}",
                _PLACE[pool],
                _CURVES.format(better="left" if view == "raw" else "right")
                + (_context(run) if run is not None else ""),
                missing="" if run else f"The data hold no {pool} pool of the paper.",
                drawn=None if run is None else figures.curves(run, view),
            )
        )
    return made


def _ratios(runs: Sequence[Run]) -> list[Picture]:
    from prefill_router.reports.reproduce import figures

    made = []
    for run in runs:
        why = run.missing("ratio")
        made.append(
            Picture(
                4,
                f"figure_4_{run.pool}_routing_ratio",
                f"Accuracy by routing ratio, {run.title}",
                "appendix H",
                "The most accurate target of the test part is forced on the share of queries that "
                "each router thinks it most surely right on, and the router's best other target "
                "answers the rest; prices play no part. All lines end where that target answers "
                "alone." + _context(run),
                missing=why and f"Not drawn. {why}",
                drawn=None if why else figures.ratio(run),
            )
        )
    return made


def _context(run: Run) -> str:
    return "" if run.found.is_counterpart else " These aren't the paper's targets."
