"""The page of the study of pooling and PCA dimension."""

from collections.abc import Mapping, Sequence
from html import escape

from matplotlib.figure import Figure

from prefill_router.activations import Pooling
from prefill_router.evaluation.document import UNDERLINED, facts, paragraph, plain_cell, table, wide
from prefill_router.studies.dimensions import USUAL, Cell, Dimensions
from prefill_router.studies.drawing import legend_below, new_figure, stroke, style
from prefill_router.studies.output import Drawn, Sheet

_CAPTION = (
    "Mean five-fold probe AUC over the targets on the train rows, by the number of PCA components "
    "kept. Left: each target at the layer that Fisher J chooses; right: at the layer that probes "
    "best, which nothing can exceed."
)
_MEANINGS = {
    "mean AUC": "A linear probe is fitted for every target on four fifths of the train rows and "
    "scored on the rest, five times; 0.5 is chance, 1 is perfect. Scaler and PCA are fitted in "
    "each fold. The test part isn't looked at.",
    "last, mean": "Which state of a layer is read: that of the last token, or the mean over all "
    "tokens. Where both are named, the layer is chosen among the states of both.",
    "Random, Last": "A candidate layer drawn by lot, and the deepest one.",
    "d_eff, alpha": "The layer of most effective dimensions, and the least anisotropic one.",
    "Fisher J": "Each target's layer of greatest separability, which needs no probes.",
    "BestLR": "Each target's best-probing layer: the limit of any selection.",
}


def sheet(study: Dimensions, *, title: str, known: Mapping[str, str]) -> Sheet:
    """Everything that the study says, for `output.write`."""
    return Sheet(
        name="dimensions",
        title=title,
        said=said(study),
        known=known,
        sections=(
            ("At the Fisher-chosen layers", (_best(), wide(grid(study, "fisher")))),
            ("At the best layers", (_best(), wide(grid(study, "best")))),
            (
                f"Ways to choose the layer, at {_shown(study)} components",
                (wide(selectors(study)),),
            ),
            ("What the numbers mean", (facts(_MEANINGS),)),
        ),
        numbers=study.to_dict(),
        tables={"dimensions": study.rows()},
        figures={"dimensions": Drawn(draw(study), study.rows(), _CAPTION)},
    )


def said(study: Dimensions) -> list[str]:
    """The result in a few sentences."""
    top = study.top
    lines = [
        f"At the layers that Fisher J chooses, probes read best from {_kind(top.poolings)} states "
        f"of {top.encoder} with {top.dim} components: a mean AUC of {top.fisher:.4f} over "
        f"{len(study.targets)} targets."
    ]
    line = study.line(top.encoder, top.poolings)
    usual = next((cell for cell in line if cell.dim == USUAL), None)
    if usual is not None and usual.dim != top.dim:
        lines.append(
            f"With {USUAL} components, what a router keeps unless told otherwise, it is "
            f"{usual.fisher:.4f}, {top.fisher - usual.fisher:.4f} less."
        )
    lines.append(
        f"Choosing the layer by probing each, which nothing can exceed, would reach {top.best:.4f} "
        "there."
    )
    for name, width in study.widths:
        if any(cell.encoder == name and cell.dim > width for cell in study.cells):
            lines.append(f"The states of {name} have {width} dimensions; more can't be kept.")
    return lines


def _best() -> str:
    return paragraph(UNDERLINED, soft=True)


def grid(study: Dimensions, which: str) -> str:
    """Mean AUC by encoder and pooling, a column per dimension; the best of each row underlined."""
    dims = sorted({cell.dim for cell in study.cells})
    rows = []
    for encoder, poolings in study.lines:
        values = [_value(cell, which) for cell in study.line(encoder, poolings)]
        cells = [plain_cell(f"{value:.4f}", best=value == max(values)) for value in values]
        rows.append([escape(f"{encoder}, {_kind(poolings)}"), *cells])
    return table(["States", *map(str, dims)], rows)


def selectors(study: Dimensions) -> str:
    """The paper's ablation: mean AUC by way to select, for every encoder and pooling."""
    shown = _shown(study)
    cells = [cell for cell in study.cells if cell.dim == shown]
    head = ["States", *(selector.name for selector in cells[0].ways.selectors)]
    rows = [
        [
            escape(f"{cell.encoder}, {_kind(cell.poolings)}"),
            *(plain_cell(f"{selector.auc:.4f}") for selector in cell.ways.selectors),
        ]
        for cell in cells
    ]
    note = paragraph(f"Over {len(study.targets)} targets, on train rows.", soft=True)
    return note + table(head, rows)


def draw(study: Dimensions) -> Figure:
    """Mean AUC by dimension, at the Fisher-chosen and at the best layers."""
    figure = new_figure(10.0, 4.4)
    panels = figure.subplots(1, 2, sharey=True)
    titles = {"fisher": "Layer chosen by Fisher J", "best": "Best layer"}
    for axes, (which, title) in zip(panels, titles.items(), strict=True):
        for place, (encoder, poolings) in enumerate(study.lines):
            colour, line, marker = stroke(place)
            cells = study.line(encoder, poolings)
            axes.plot(
                [cell.dim for cell in cells],
                [_value(cell, which) for cell in cells],
                color=colour,
                ls=line,
                marker=marker,
                ms=5,
                label=f"{encoder}, {_kind(poolings)}",
            )
        style(axes, title=title, x="PCA components")
        axes.set_xticks(sorted({cell.dim for cell in study.cells}))
    panels[0].set_ylabel("mean AUC over targets")
    legend_below(figure, columns=3)
    return figure


def _value(cell: Cell, which: str) -> float:
    return cell.fisher if which == "fisher" else cell.best


def _kind(poolings: Sequence[Pooling]) -> str:
    return " and ".join(poolings)


def _shown(study: Dimensions) -> int:
    """The usual dimension if it was studied, else the smallest."""
    dims = [cell.dim for cell in study.cells]
    return USUAL if USUAL in dims else min(dims)
