"""The figures of a search: the best so far, and the best of each features and predictor."""

from typing import Any

import numpy as np
from matplotlib.figure import Figure

from prefill_router.evaluation.rendering import INK
from prefill_router.studies.search.bench import WORDS
from prefill_router.studies.search.trials import Ranked, Trial
from prefill_router.studies.search.verdict import Verdict

_DONE, _STOPPED, _BEST = "#0072B2", "#9a9a9a", "#D55E00"


def progress_rows(verdict: Verdict) -> list[dict[str, Any]]:
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


def draw_progress(verdict: Verdict) -> Figure:
    """Dots are trials, the line is the best so far."""
    rows, objective = progress_rows(verdict), verdict.config.objective
    figure = Figure(figsize=(9.0, 4.2), layout="constrained")
    axes = figure.add_subplot()
    for state, colour, label in (
        ("stopped", _STOPPED, "stopped early"),
        ("finished", _DONE, "all folds"),
    ):
        chosen = [row for row in rows if row["state"] == state]
        x, y = [row["trial"] for row in chosen], [row[objective] for row in chosen]
        axes.plot(x, y, "o", color=colour, ms=4, label=label)
    numbers = [row["trial"] for row in rows]
    axes.step(
        numbers, [row["best"] for row in rows], where="post", color=_BEST, label="best so far"
    )
    done = [row[objective] for row in rows if row["state"] == "finished"]
    if done:
        # One hopeless trial must not press all others into a line.
        low, high = np.quantile(done, [0.0, 1.0]) + np.array([-0.02, 0.005])
        axes.set_ylim(*((low, high) if objective != "brier" else (low + 0.015, high + 0.015)))
    axes.set_xlabel("trial", color=INK)
    axes.set_ylabel(f"{WORDS[objective]}, folds of the train part", color=INK)
    axes.legend(frameon=False, fontsize=8, labelcolor=INK)
    _plain(axes)
    return figure


def best_of_pairs(verdict: Verdict) -> dict[tuple[str, str], Ranked]:
    """The best configuration of each features and predictor, finished or as far as it came."""
    found: dict[tuple[str, str], Ranked] = {}
    for one in verdict.ranking:
        found.setdefault((one.features, one.predictor), one)
    return found


def pair_rows(verdict: Verdict) -> list[dict[str, Any]]:
    """The data of the second figure."""
    return [
        {
            "features": features,
            "predictor": predictor,
            "auc": one.mean("auc"),
            "brier": one.mean("brier"),
            "folds": len(one.scores),
            "state": one.state,
        }
        for (features, predictor), one in best_of_pairs(verdict).items()
    ]


def draw_pairs(verdict: Verdict) -> Figure:
    """A field for each features and predictor: its best AUC; empty where none was tried."""
    best = best_of_pairs(verdict)
    features, predictors = list(verdict.space.features), list(verdict.space.predictors)
    table = np.full((len(features), len(predictors)), np.nan)
    for (read, predictor), one in best.items():
        table[features.index(read), predictors.index(predictor)] = one.mean("auc")
    figure = Figure(
        figsize=(3.6 + 0.85 * len(predictors), 1.9 + 0.42 * len(features)), layout="constrained"
    )
    axes = figure.add_subplot()
    top = float(np.nanmax(table))
    low = max(float(np.nanmin(table)), top - 0.04)
    axes.pcolormesh(table, cmap="cividis", vmin=low, vmax=top)
    axes.invert_yaxis()
    for i, j in np.argwhere(np.isfinite(table)).tolist():
        state = best[features[i], predictors[j]].state
        light = table[i, j] < (low + top) / 2
        axes.text(
            j + 0.5,
            i + 0.5,
            f"{table[i, j]:.3f}{'' if state == 'finished' else '*'}",
            ha="center",
            va="center",
            fontsize=8,
            color="white" if light else "black",
        )
    axes.set_xticks(np.arange(len(predictors)) + 0.5, predictors, rotation=30, ha="right")
    axes.set_yticks(np.arange(len(features)) + 0.5, features)
    _plain(axes)
    return figure


def _plain(axes: Any) -> None:
    axes.tick_params(colors=INK, labelsize=8)
    axes.spines[["top", "right"]].set_visible(False)
    axes.spines[["left", "bottom"]].set_color(INK)
    axes.set_facecolor("none")


def seconds_by_predictor(trials: tuple[Trial, ...]) -> dict[str, tuple[int, float]]:
    """How many trials of each predictor there were, and the seconds of all of them."""
    found: dict[str, tuple[int, float]] = {}
    for trial in trials:
        count, seconds = found.get(trial.candidate.predictor, (0, 0.0))
        found[trial.candidate.predictor] = (count + 1, seconds + trial.seconds)
    return found
