"""Training curves as a table and a figure."""

import io
from pathlib import Path

import numpy as np
from jaxtyping import Float64
from numpy.typing import NDArray

from prefill_router import files
from prefill_router.plotting import Axes, Figure, FigureCanvasAgg
from prefill_router.predictors.training import TrainingCurves

Losses = Float64[NDArray[np.float64], "seed epoch"]
_KEPT, _DROPPED = "#0072B2", "#999999"  # distinguishable with any colour vision


def write_curves(curves: TrainingCurves, folder: Path) -> list[Path]:
    """Write `training.csv`, `training.png` and `training.svg`, each whole or not at all.

    The table has one row per seed and epoch: `seed`, `epoch` from 0, `train_loss`,
    `validation_loss` (nats per label), `best` (1 at the restored epoch) and `kept` (1 for seeds of
    the ensemble).

    Returns:
        The paths of the files.
    """
    table, figure = folder / "training.csv", _draw_figure(curves)
    files.write_text(table, _write_csv(curves))
    paths = [table]
    for kind in ("png", "svg"):
        paths.append(folder / f"training.{kind}")
        with files.replacing_file(paths[-1]) as temporary:
            figure.savefig(temporary, format=kind, dpi=150)
    return paths


def _write_csv(curves: TrainingCurves) -> str:
    text = io.StringIO()
    text.write("seed,epoch,train_loss,validation_loss,best,kept\n")
    for seed, epoch in np.argwhere(~np.isnan(curves.validation)).tolist():
        losses = f"{curves.train[seed, epoch]:.7g},{curves.validation[seed, epoch]:.7g}"
        best = int(curves.best_epoch[seed] == epoch)
        text.write(f"{seed},{epoch},{losses},{best},{int(curves.is_kept[seed])}\n")
    return text.getvalue()


def _draw_figure(curves: TrainingCurves) -> Figure:
    figure = Figure(figsize=(9, 4), layout="constrained")
    FigureCanvasAgg(figure)
    left, right = figure.subplots(1, 2)
    _draw_losses(left, curves, curves.train, title="Train, with dropout")
    _draw_losses(right, curves, curves.validation, title="Validation")
    left.set_ylabel("cross-entropy (nats per label)")
    for seed in np.flatnonzero(curves.is_kept).tolist():
        right.plot(
            curves.best_epoch[seed], curves.best[seed], "o", color=_KEPT, markeredgecolor="white"
        )
    right.plot([], [], "o", color=_KEPT, markeredgecolor="white", label="restored epoch")
    right.legend(frameon=False)
    return figure


def _draw_losses(axes: Axes, curves: TrainingCurves, losses: Losses, *, title: str) -> None:
    for is_kept, color, style, label in (
        (False, _DROPPED, "--", "seeds left out"),
        (True, _KEPT, "-", "seeds kept"),
    ):
        rows = losses[curves.is_kept == is_kept]
        if len(rows):
            axes.plot(rows.T, color=color, linestyle=style, linewidth=1.2, alpha=0.8)
            axes.plot([], [], color=color, linestyle=style, label=label)
    axes.set(title=title, xlabel="epoch")
    axes.spines[["top", "right"]].set_visible(False)
