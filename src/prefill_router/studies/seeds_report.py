"""The page of the seed study."""

from collections.abc import Mapping
from html import escape

import numpy as np
from matplotlib.figure import Figure

from prefill_router.evaluation.catalogue import HEADLINE
from prefill_router.evaluation.document import facts, paragraph, plain_cell, table, wide
from prefill_router.evaluation.wording import NOTHING, digits
from prefill_router.studies.drawing import QUIET, STROKES, new_figure, style
from prefill_router.studies.output import Drawn, Sheet
from prefill_router.studies.seeds import NUMBERS, Number, SeedStudy, Spread

_CAPTION = (
    "Each dot is one fit with another seed, judged on the same test queries; the bar is the mean "
    "with one sample standard deviation on either side. A diamond is a router that comes out the "
    "same whatever the seed."
)


def sheet(study: SeedStudy, *, title: str, known: Mapping[str, str]) -> Sheet:
    """Everything that the study says, for `output.write`."""
    return Sheet(
        name="seeds",
        title=title,
        said=said(study),
        known=known,
        sections=(
            ("Mean and standard deviation", (wide(numbers(study)), *_failed(study))),
            ("Lowest and highest", (_extremes_note(), wide(extremes(study)))),
            ("What the numbers mean", (facts(_meanings()),)),
        ),
        numbers=study.to_dict(),
        tables={"seeds": study.table(), "fits": study.rows()},
        figures={"seeds": Drawn(draw(study), study.rows(), _CAPTION)} if study.spreads else {},
    )


def said(study: SeedStudy) -> list[str]:
    """The result in a few sentences."""
    moving = [one for one in study.spreads if not one.deterministic]
    still = [one.name for one in study.spreads if one.deterministic]
    lines = []
    if moving:
        most = max(moving, key=lambda one: _known(one.sd("auc_mean")))
        lines.append(
            f"{_routers(len(moving))} fitted {study.count} times on the same queries, each time "
            f"with another seed. The seed moves the mean AUC most for {most.name}, by a standard "
            f"deviation of {most.sd('auc_mean'):.4f}; differences between routers that aren't "
            "clearly larger than that may be luck of the seed."
        )
    if still:
        lines.append(
            f"Deterministic, the same to the last bit whatever the seed: {', '.join(still)}. They "
            "have no deviation to report."
        )
    lost = [n for n in NUMBERS if any(not np.isfinite(one.mean(n)) for one in study.spreads)]
    if lost:
        lines.append(
            f"On these test queries a router has no {', '.join(HEADLINE[n].label for n in lost)}: "
            "labels or costs that it takes are missing, or no labels differ."
        )
    return lines or ["No router could be fitted."]


def numbers(study: SeedStudy) -> str:
    """The paper's table: mean and sample standard deviation."""
    rows = [
        [
            escape(one.name),
            *(
                plain_cell(digits(one.mean(name), ".4f"), note=_deviation(one, name))
                for name in NUMBERS
            ),
            plain_cell(str(len(one.seeds))),
        ]
        for one in study.spreads
    ]
    return table(["Router", *map(_heading, NUMBERS), "fits"], rows)


def extremes(study: SeedStudy) -> str:
    """The mean with the lowest and the highest value of any seed."""
    rows = []
    for one in study.spreads:
        cells = []
        for name in NUMBERS:
            low, high = one.range(name)
            note = "" if one.still(name) else f"[{low:.4f}, {high:.4f}]"
            cells.append(plain_cell(digits(one.mean(name), ".4f"), note=note))
        rows.append([escape(one.name), *cells])
    return table(["Router", *map(_heading, NUMBERS)], rows)


def draw(study: SeedStudy) -> Figure:
    """Every fit as a dot, a panel per number."""
    ordered = study.spreads[::-1]
    figure = new_figure(11.0, 1.5 + 0.32 * len(ordered))
    panels = figure.subplots(1, len(NUMBERS), sharey=True, squeeze=False)[0]
    for axes, name in zip(panels, NUMBERS, strict=True):
        for row, one in enumerate(ordered):
            mean, sd = one.mean(name), one.sd(name)
            if one.deterministic:
                axes.plot([mean], [row], "D", color=STROKES[1][0], ms=6)
                continue
            axes.plot([mean - sd, mean + sd], [row, row], color=STROKES[0][0], lw=6, alpha=0.3)
            axes.plot(one.values[name], [row] * len(one.seeds), "o", color=STROKES[0][0], ms=3.5)
            axes.plot([mean], [row], "|", color=QUIET, ms=12)
        style(axes, title=_heading(name))
        axes.locator_params(axis="x", nbins=4)
    panels[0].set_yticks(range(len(ordered)), [one.name for one in ordered])
    panels[0].set_ylim(-0.6, len(ordered) - 0.4)
    return figure


def _routers(count: int) -> str:
    return "One router was" if count == 1 else f"{count} routers were"


def _deviation(one: Spread, name: Number) -> str:
    if one.still(name):
        return "deterministic" if one.deterministic else NOTHING
    return f"± {one.sd(name):.4f}"


def _heading(name: Number) -> str:
    arrow = {"higher": " ↑", "lower": " ↓", "neither": ""}
    return HEADLINE[name].label + arrow[HEADLINE[name].better]


def _extremes_note() -> str:
    return paragraph(
        "In brackets: the extremes over the seeds. They are no confidence intervals: another set "
        "of test queries would move the numbers further.",
        soft=True,
    )


def _meanings() -> dict[str, str]:
    told = {HEADLINE[name].label: HEADLINE[name].meaning for name in NUMBERS}
    return {
        **told,
        "standard deviation": "Of the sample (n - 1), over the seeds. An ensemble of networks, the "
        "default of the shared trunk, moves less than the single networks of the paper's table; "
        "for these say seeds: 1 and keep: 1 in the recipe.",
    }


def _failed(study: SeedStudy) -> list[str]:
    if not study.failed:
        return []
    told = {one.name: one.why for one in study.failed}
    return [paragraph("These could not be fitted:"), facts(told)]


def _known(value: float) -> float:
    return value if np.isfinite(value) else -1.0
