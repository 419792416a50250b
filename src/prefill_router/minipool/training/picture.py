"""The training curves of all models in one picture."""

import csv
from collections.abc import Sequence
from pathlib import Path

from matplotlib.figure import Figure

from prefill_router import files

_COLUMNS = 3
_COLOURS = ("#0072B2", "#56B4E9", "#009E73", "#CC79A7", "#D55E00")  # Okabe and Ito's
_FIRST = 2  # the columns before the families'


def draw_curves(folder: Path, names: Sequence[str]) -> None:
    """Draw each model's `curves.csv` into `curves.png` beside the models' folders."""
    rows = -(-len(names) // _COLUMNS)
    figure = Figure(figsize=(4.2 * _COLUMNS, 3.2 * rows), layout="constrained")
    panels = figure.subplots(rows, _COLUMNS, squeeze=False).flat
    for panel in panels:
        panel.set_axis_off()
    for panel, name in zip(figure.axes, names, strict=False):
        with (folder / name / "curves.csv").open(encoding="utf-8", newline="") as file:
            header, *values = csv.reader(file)
        steps = [int(row[0]) for row in values]
        panel.set_axis_on()
        panel.set(title=name, xlabel="step", ylabel="held-out accuracy", ylim=(0, 1))
        for place, family in enumerate(header[_FIRST:]):
            panel.plot(
                steps,
                [float(row[place + _FIRST]) for row in values],
                color=_COLOURS[place % len(_COLOURS)],
                linestyle="-" if place < len(_COLOURS) else "--",
                label=family,
            )
    figure.legend(*figure.axes[0].get_legend_handles_labels(), loc="outside lower center", ncols=5)
    with files.replacing_file(folder / "curves.png") as temporary:
        figure.savefig(temporary, format="png", dpi=90)
