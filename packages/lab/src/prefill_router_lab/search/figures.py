"""The figures of a search: its progress, and the best of each pair of features and predictor."""

from typing import Any

import numpy as np

from prefill_router.fitting import WORDS
from prefill_router.plotting import Figure
from prefill_router.reporting import BLUE, INK, ORANGE, PALE, new_figure, style
from prefill_router_lab.search.trial_loop import SearchResult
from prefill_router_lab.search.trials import RankedCandidate


def progress_rows(verdict: SearchResult) -> list[dict[str, Any]]:
    """Each trial's mean over its folds, and the best finished one so far."""
    objective, rows, best = verdict.config.objective, list[dict[str, Any]](), float("nan")
    sign = -1.0 if objective == "brier" else 1.0
    for trial in verdict.trials:
        value = trial.best(objective, trial.folds)
        if not np.isfinite(value):
            continue
        if trial.state == "finished":
            best = float(np.nanmax([best, value]))
        rows.append(
            {
                "trial": trial.number,
                "features": trial.candidate.features,
                "predictor": trial.candidate.predictor,
                "state": trial.state,
                "folds": trial.folds,
                objective: sign * value,
                "best": sign * best,
            }
        )
    return rows


def draw_progress(verdict: SearchResult) -> Figure:
    """Dots are trials, the line is the best so far."""
    rows, objective = progress_rows(verdict), verdict.config.objective
    figure = new_figure(9.0, 4.2)
    axes = figure.add_subplot()
    states = (("stopped", PALE, "stopped early"), ("finished", BLUE, "all folds"))
    for state, colour, label in states:
        chosen = [row for row in rows if row["state"] == state]
        x, y = [row["trial"] for row in chosen], [row[objective] for row in chosen]
        axes.plot(x, y, "o", color=colour, ms=4, label=label)
    numbers = [row["trial"] for row in rows]
    best = [row["best"] for row in rows]
    axes.step(numbers, best, where="post", color=ORANGE, label="best so far")
    scores = [row[objective] for row in rows if row["state"] == "finished"]
    if scores:
        # One very bad trial must not compress the scale of all others.
        low, high = np.quantile(scores, [0.0, 1.0]) + np.array([-0.02, 0.005])
        axes.set_ylim(*((low, high) if objective != "brier" else (low + 0.015, high + 0.015)))
    axes.legend(frameon=False, fontsize=8, labelcolor=INK)
    style(axes, x="trial", y=f"{WORDS[objective]}, folds of the train part", grid=False)
    return figure


def best_of_pairs(verdict: SearchResult) -> dict[tuple[str, str], RankedCandidate]:
    """The best configuration of each pair of features and predictor, finished or stopped."""
    best: dict[tuple[str, str], RankedCandidate] = {}
    for candidate in verdict.ranking:
        best.setdefault((candidate.features, candidate.predictor), candidate)
    return best


def pair_rows(verdict: SearchResult) -> list[dict[str, Any]]:
    """The data of the second figure."""
    return [
        {
            "features": features,
            "predictor": predictor,
            "auc": candidate.mean("auc"),
            "brier": candidate.mean("brier"),
            "folds": len(candidate.scores),
            "state": candidate.state,
        }
        for (features, predictor), candidate in best_of_pairs(verdict).items()
    ]


def draw_pairs(verdict: SearchResult) -> Figure:
    """Draw the best AUC of each pair of features and predictor; empty where none was tried."""
    best = best_of_pairs(verdict)
    features, predictors = list(verdict.space.features), list(verdict.space.predictors)
    table = np.full((len(features), len(predictors)), np.nan)
    for (read, predictor), candidate in best.items():
        table[features.index(read), predictors.index(predictor)] = candidate.mean("auc")
    figure = new_figure(3.6 + 0.85 * len(predictors), 1.9 + 0.42 * len(features))
    axes = figure.add_subplot()
    top = float(np.nanmax(table))
    low = max(float(np.nanmin(table)), top - 0.04)
    axes.pcolormesh(table, cmap="cividis", vmin=low, vmax=top)
    axes.invert_yaxis()
    for i, j in np.argwhere(np.isfinite(table)).tolist():
        text = f"{table[i, j]:.3f}" + "*" * (best[features[i], predictors[j]].state != "finished")
        colour = "white" if table[i, j] < (low + top) / 2 else "black"
        how: dict[str, Any] = {"ha": "center", "va": "center", "fontsize": 8}
        axes.text(j + 0.5, i + 0.5, text, color=colour, **how)
    axes.set_xticks(np.arange(len(predictors)) + 0.5, predictors, rotation=30, ha="right")
    axes.set_yticks(np.arange(len(features)) + 0.5, features)
    style(axes, grid=False)
    return figure
