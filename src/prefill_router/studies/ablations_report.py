"""The page of the layer-selection ablation."""

from collections.abc import Mapping
from html import escape

from matplotlib.figure import Figure

from prefill_router.evaluation.document import UNDERLINED, facts, paragraph, plain_cell, table, wide
from prefill_router.studies.ablations import FISHER, LIMIT, Ablations
from prefill_router.studies.drawing import QUIET, legend_below, new_figure, stroke, style
from prefill_router.studies.output import Drawn, Sheet

_CAPTION = (
    "How far each way to select a layer stays below probing every layer for every target, in mean "
    "AUC; 0 is the limit that nothing can exceed, further left is worse."
)
_MEANINGS = {
    "mean AUC": "Of five-fold linear probes on the train rows, over the targets; 0.5 is chance.",
    "Random": "The expectation over the candidate layers.",
    "Last": "The deepest layer.",
    "d_eff": "The layer of most effective dimensions.",
    "alpha": "The least anisotropic layer.",
    FISHER: "Each target's layer of greatest class separability, which needs no probes.",
    LIMIT: "Each target's best-probing layer: the limit, for reference alone.",
}


def sheet(study: Ablations, *, title: str, known: Mapping[str, str]) -> Sheet:
    """Everything that the study says, for `output.write`."""
    rows = [row.row() for row in study.rows]
    components = f"{study.dim} components, {' and '.join(study.poolings)} states"
    return Sheet(
        name="layers",
        title=title,
        said=said(study),
        known={**known, "probes": components},
        sections=(
            ("Mean AUC by way to select", (paragraph(UNDERLINED, soft=True), wide(numbers(study)))),
            ("What the columns mean", (facts(_MEANINGS),)),
        ),
        numbers=study.to_dict(),
        tables={"layers": rows},
        figures={"layers": Drawn(draw(study), rows, _CAPTION)},
    )


def said(study: Ablations) -> list[str]:
    """The result in a few sentences."""
    count, behind = len(study.rows), max(row.behind for row in study.rows)
    lines = [
        "Fisher J is the best practical way to select a layer, or tied to four digits, in "
        f"{study.best} of {count} combinations of pool and encoder"
        + (f", and at most {behind:.4f} below the best elsewhere" if study.best < count else "")
        + f". It stays within {max(row.short for row in study.rows):.4f} of probing every layer."
    ]
    lines += [
        f"Left out: {pool} under {encoder}, whose store lacks some of its queries."
        for pool, encoder in study.skipped
    ]
    return lines


def numbers(study: Ablations) -> str:
    """The paper's table; the best practical way of each row is underlined."""
    names = [selector.name for selector in study.rows[0].ways.selectors]
    rows = []
    for row in study.rows:
        top = max(row.practical.values())
        cells = [
            plain_cell(f"{row.ways[n].auc:.4f}", best=n != LIMIT and row.ways[n].auc == top)
            for n in names
        ]
        rows.append([escape(f"{row.pool}, {row.encoder}"), *cells])
    return table(["Pool, encoder", *names], rows)


def draw(study: Ablations) -> Figure:
    """Every way's distance from the limit, a line per pool and encoder."""
    ordered = study.rows[::-1]
    figure = new_figure(9.4, 1.8 + 0.34 * len(ordered))
    axes = figure.add_subplot()
    names = list(ordered[0].practical)
    for place, name in enumerate(names):
        colour, _, marker = stroke(place)
        far = [row.ways[name].auc - row.ways[LIMIT].auc for row in ordered]
        axes.plot(far, range(len(ordered)), marker, color=colour, ms=6, label=name)
    axes.axvline(0, color=QUIET, lw=1, ls=":")
    style(axes, title="Below the limit, by way to select", x="mean AUC less that of BestLR")
    axes.set_yticks(range(len(ordered)), [f"{row.pool}, {row.encoder}" for row in ordered])
    axes.set_ylim(-0.6, len(ordered) - 0.4)
    legend_below(figure, columns=len(names))
    return figure
