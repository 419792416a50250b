"""The pictures of the documentation: the flow, a request's life, and one decision over lam.

`python -m benchmarks pictures` draws them into `docs/images`. The first two have no numbers; the
third is of the router that ships with the package, with its data beside it.
"""

import argparse
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from matplotlib.patches import FancyBboxPatch

from prefill_router import Router, files
from prefill_router.plotting import Axes, Figure
from prefill_router.reporting import (
    INK,
    ORANGE,
    QUIET,
    new_figure,
    stroke,
    style,
)
from prefill_router.reporting.figures import svg
from prefill_router.reporting.report_files import write_csv

IMAGES = Path(__file__).parents[1] / "docs" / "images"
QUESTION = "Find the largest of 601 602 604."
"""A task of the tiny pool whose choice changes twice, at lams that are far apart."""

COLUMNS, ROWS = (0.97, 2.99, 5.01, 7.03), (3.6, 2.1, 0.6)
WIDE, HIGH = 1.74, 1.04
EACH_REQUEST, NOW_AND_THEN = "#E3EEF6", "#E1F2EC"
FLOW: tuple[tuple[tuple[str, str], ...], ...] = (
    (
        ("request", "a text or a chat"),
        ("encoder", "a small open model,\nits lower layers alone"),
        ("states", "of the last token,\nand their mean"),
        ("features", "states, reduced;\nor whatever you add"),
    ),
    (
        ("answer", "passes through,\nbyte for byte"),
        ("target", "the best that\nmay answer"),
        ("policy", "lam x P(right)\nless (1 - lam) x cost"),
        ("predictor", "P(right) of each\ntarget, calibrated"),
    ),
    (
        ("receipt", "what was decided,\nanswered and paid"),
        ("labels", "rules, a judge,\nfeedback"),
        ("scored answers", "these, and your own\ntables and logs"),
        ("fit", "on the train part;\njudged on the rest"),
    ),
)
ARROWS = (
    *(((0, 0), (0, 1)), ((0, 1), (0, 2)), ((0, 2), (0, 3)), ((0, 3), (1, 3))),
    *(((1, 3), (1, 2)), ((1, 2), (1, 1)), ((1, 1), (1, 0)), ((1, 0), (2, 0))),
    *(((2, 0), (2, 1)), ((2, 1), (2, 2)), ((2, 2), (2, 3)), ((2, 3), (1, 3))),
)
"""Row and column of the boxes that follow each other."""


@dataclass(frozen=True)
class Step:
    """A step in a request's life: between which lanes, what is done, and what otherwise."""

    lanes: tuple[str, str]
    text: str
    otherwise: str = ""


LANES = {"client": 0.55, "gateway": 2.75, "encoder": 4.65, "target": 6.15, "receipts": 7.35}
STEPS = (
    Step(("client", "gateway"), "a request, with a key", "refused: 401, 413, 429"),
    Step(("gateway", "gateway"), "reads what it says and needs", "refused: 400"),
    Step(("gateway", "gateway"), "bars targets that can't answer", "none can: refused, 400"),
    Step(("gateway", "encoder"), "its text", "late: the fallback decides"),
    Step(("encoder", "gateway"), "P(right) of each target"),
    Step(
        ("gateway", "gateway"),
        "budgets lower lam; targets in order",
        "spent: the cheapest target",
    ),
    Step(("gateway", "target"), "the request, byte for byte", "fails: the next target"),
    Step(("target", "gateway"), "the answer"),
    Step(("gateway", "client"), "the answer, as it comes"),
    Step(("gateway", "receipts"), "decision, tokens, cost, times"),
    Step(("gateway", "client"), "the last byte"),
)


def canvas(width: float, height: float) -> tuple[Figure, Axes]:
    """An empty drawing whose unit is an inch."""
    figure = new_figure(width, height)
    figure.set_layout_engine("none")
    axes = figure.add_axes((0, 0, 1, 1))
    axes.set_axis_off()
    axes.set_xlim(0, width)
    axes.set_ylim(0, height)
    return figure, axes


def arrow(
    axes: Axes, start: tuple[float, float], end: tuple[float, float], *, dashed: bool = False
) -> None:
    """An arrow between two points."""
    how: dict[str, Any] = {"arrowstyle": "-|>", "color": INK, "lw": 1.1, "shrinkA": 0, "shrinkB": 0}
    axes.annotate("", end, start, arrowprops={**how, "linestyle": "--" if dashed else "-"})


def box(axes: Axes, centre: tuple[float, float], title: str, text: str, colour: str) -> None:
    """A box with a word and what it means."""
    x, y = centre
    frame: dict[str, Any] = {
        "boxstyle": "round,pad=0,rounding_size=0.08",
        "facecolor": colour,
        "edgecolor": QUIET,
    }
    axes.text(x, y + 0.26, title, ha="center", va="center", fontsize=12.5, weight="bold", color=INK)
    axes.text(x, y - 0.18, text, ha="center", va="center", fontsize=10.5, color=INK)
    axes.add_patch(FancyBboxPatch((x - WIDE / 2, y - HIGH / 2), WIDE, HIGH, zorder=0, **frame))


def edge(start: tuple[int, int], end: tuple[int, int]) -> list[tuple[float, float]]:
    """Where an arrow leaves one box of the grid and meets the next."""
    (x, y), (u, v) = ((COLUMNS[column], ROWS[row]) for row, column in (start, end))
    if x == u:
        half = HIGH / 2 if v > y else -HIGH / 2
        return [(x, y + half), (u, v - half)]
    half = WIDE / 2 if u > x else -WIDE / 2
    return [(x + half, y), (u - half, v)]


def draw_flow() -> Figure:
    """From a request to a target, and from answers to the next fit."""
    figure, axes = canvas(8.0, 4.2)
    for row, boxes in enumerate(FLOW):
        for column, (title, text) in enumerate(boxes):
            colour = NOW_AND_THEN if row == 2 else EACH_REQUEST
            box(axes, (COLUMNS[column], ROWS[row]), title, text, colour)
    for start, end in ARROWS:
        arrow(axes, *edge(start, end), dashed=2 in (start[0], end[0]))
    return figure


def draw_request() -> Figure:
    """A request's way between the client, the gateway, its encoder, a target and the receipts."""
    height = 1.0 + 0.5 * len(STEPS)
    figure, axes = canvas(8.0, height)
    for lane, x in LANES.items():
        axes.plot([x, x], [0.15, height - 0.5], color=QUIET, lw=0.8, zorder=0)
        axes.text(x, height - 0.3, lane, ha="center", fontsize=11, weight="bold", color=INK)
    for place, step in enumerate(STEPS):
        draw_step(axes, step, height - 1.0 - 0.5 * place)
    return figure


def draw_step(axes: Axes, step: Step, y: float) -> None:
    """One step: an arrow between two lanes, or a box on the gateway's, and what else may happen."""
    start, end = (LANES[lane] for lane in step.lanes)
    at: dict[str, Any] = {"va": "center", "color": INK, "fontsize": 9}
    white: dict[str, Any] = {"facecolor": "white", "edgecolor": "none", "pad": 1.5}
    if start == end:
        frame: dict[str, Any] = {
            "boxstyle": "round,pad=0.3",
            "facecolor": EACH_REQUEST,
            "edgecolor": QUIET,
        }
        axes.text(start, y, step.text, ha="center", bbox=frame, **at)
        beside, low = start + 1.3, y
    else:
        low = y - 0.1
        arrow(axes, (start, low), (end, low))
        axes.text((start + end) / 2, y + 0.05, step.text, ha="center", bbox=white, **at)
        beside = max(start, end) + 0.15
    if step.otherwise:
        note: dict[str, Any] = {**at, "color": ORANGE, "style": "italic"}
        axes.text(beside, low, step.otherwise, bbox=white, **note)


def decision_rows(router: Router) -> list[dict[str, Any]]:
    """Each target's line over lam for the question, and where it is chosen."""
    decision = router.route(QUESTION, lam=1.0)
    cheapest = router.route(QUESTION, lam=0.0)
    chosen = {segment.target: segment for segment in decision.path}
    rows = []
    for name in router.pool.names:
        segment = chosen.get(name)
        rows.append(
            {
                "target": name,
                "probability": decision.correctness[name],
                "estimated_cost": decision.estimated_cost[name],
                "score_at_0": cheapest.score[name],
                "score_at_1": decision.score[name],
                "chosen_above": segment.lam_from if segment else None,
                "chosen_up_to": segment.lam_to if segment else None,
            }
        )
    return rows


def draw_decision(rows: Sequence[Mapping[str, Any]]) -> Figure:
    """The score of each target as a line over lam; the highest is chosen."""
    figure = new_figure(8.0, 4.3)
    axes = figure.subplots()
    axes.set_xlim(0, 1)
    axes.set_ylim(-0.45, 0.85)
    for place, row in enumerate(rows):
        draw_line(axes, place, row)
    style(
        axes,
        title=f"“{QUESTION}”",
        size=12,
        x="lam, the weight of being right against cost",
        y="score = lam x P(right) - (1 - lam) x cost",
        label_size=10,
        grid=False,
    )
    return figure


def draw_line(axes: Axes, place: int, row: Mapping[str, Any]) -> None:
    """A target's line, thick where it is the highest, with its name and when it is chosen."""
    colour, dashes, _ = stroke(place)
    low, high = row["score_at_0"], row["score_at_1"]
    axes.plot([0, 1], [low, high], color=colour, ls=dashes, lw=1.3)
    words = f"{row['target']}, P = {row['probability']:.2f}"
    beside: dict[str, Any] = {
        "xytext": (6, 0),
        "textcoords": "offset points",
        "va": "center",
        "fontsize": 10,
    }
    axes.annotate(words, (1, high), color=colour, annotation_clip=False, **beside)
    start, end = row["chosen_above"], row["chosen_up_to"]
    if start is None:
        return
    scores = [low + lam * (high - low) for lam in (start, end)]
    axes.plot([start, end], scores, color=colour, lw=5, alpha=0.6, solid_capstyle="butt")
    if end < 1:
        axes.axvline(end, color=QUIET, lw=0.8, ls=":")
        axes.annotate(
            f"{end:.2f}", (end, -0.45), (3, 6), textcoords="offset points", fontsize=9, color=INK
        )
    middle: dict[str, Any] = {"ha": "center", "fontsize": 10, "color": colour, "weight": "bold"}
    axes.text((start + end) / 2, 0.79, row["target"], **middle)


def main() -> None:
    """Draw all three."""
    argparse.ArgumentParser(description=__doc__).parse_args()
    rows = decision_rows(Router.from_pretrained("minipool"))
    write_csv(IMAGES / "lam.csv", rows)
    drawn = {"flow": draw_flow(), "request": draw_request(), "lam": draw_decision(rows)}
    for name, figure in drawn.items():
        files.write_text(IMAGES / f"{name}.svg", svg(figure))


if __name__ == "__main__":
    main()
