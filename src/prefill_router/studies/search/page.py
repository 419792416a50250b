"""The page of a search: one file that opens offline, for somebody who hasn't read the paper.

Its figures show the best score so far, and the best of each pair of features and predictor.
"""

from collections.abc import Mapping, Sequence
from html import escape
from typing import Any

import numpy as np
import yaml

from prefill_router.evaluation.catalogue import HEADLINE
from prefill_router.evaluation.formatting import NOTHING, interval, worded
from prefill_router.plotting import Figure
from prefill_router.reporting.figures import INK
from prefill_router.reporting.pages import (
    estimate_cell,
    facts,
    figure,
    page,
    paragraph,
    plain_cell,
    section,
    table,
    wide,
)
from prefill_router.studies.search.fold_scores import WORDS
from prefill_router.studies.search.trials import RankedCandidate, SearchTrial
from prefill_router.studies.search.winner import SearchResult, spread

_EDGE = 3
_SHOWN = 25
_NUMBERS = (
    *("auc_mean", "choice_auc", "brier_mean", "argmax_accuracy", "chosen_accuracy"),
    *("savings", "headroom_captured", "p_auccc", "oracle_distance"),
)
_CAPTIONS = {
    "progress": "Each dot is one trial: one choice of features, predictor and their options, "
    "scored by cross-validation on the train part. Grey ones were stopped early, being further "
    "behind the best on the same folds than the margin. What lies far below isn't shown.",
    "pairs": "The best mean AUC that was found for each set of features (rows) with each predictor "
    "(columns), over the folds of the train part. Starred: stopped early, so of fewer folds. "
    "Empty: not tried.",
}


def render(
    verdict: SearchResult, *, title: str, known: Mapping[str, str], svg: Mapping[str, str]
) -> str:
    """The page's HTML.

    Args:
        verdict: What is reported.
        title: Heads it.
        known: What the reader must know of the data.
        svg: The figures as SVG elements, `progress` and `pairs`.
    """
    return page(
        title,
        *(paragraph(text) for text in words(verdict)),
        facts(known),
        section("The winner", *_winner(verdict)),
        section("On the test part", *_test(verdict)),
        section("How the search went", figure(svg["progress"], _CAPTIONS["progress"])),
        section("Features and predictors", figure(svg["pairs"], _CAPTIONS["pairs"])),
        section("Top and bottom three", wide(_edges(verdict))),
        section(f"The best {min(_SHOWN, len(verdict.ranking))}", wide(_best(verdict))),
        section("What it took", wide(_times(verdict)), *_failed(verdict)),
    )


def words(verdict: SearchResult) -> list[str]:
    """The result in a few sentences."""
    winner, config = verdict.winner, verdict.config
    stopped = sum(trial.state == "stopped" for trial in verdict.trials)
    said = [
        f"{len(verdict.ranking):,} of {verdict.space.size:,} possible configurations were tried "
        f"(in {len(verdict.trials):,} trials, {stopped:,} of them stopped early), by "
        f"{config.folds}-fold cross-validation on the train part alone. The best by "
        f"{WORDS[config.objective]}: {winner.predictor} on {winner.features}, calibration "
        f"{winner.calibration}, with a choice AUC of {winner.mean('choice'):.4f}, a mean AUC of "
        f"{winner.mean('auc'):.4f} and a Brier score of "
        f"{winner.mean('brier'):.4f} there.",
        f"The best of many is partly luck. Choosing on all folds but one and scoring on that one "
        f"gives a {WORDS[config.objective]} of {verdict.honest:.4f}, where the winner's mean is "
        f"{winner.mean(config.objective):.4f}.",
    ]
    if verdict.evaluation is None:
        return [*said, "The test part is still sealed."]
    auc, brier = (verdict.evaluation.headline[n] for n in ("auc_mean", "brier_mean"))
    looks = len(verdict.openings)
    said.append(
        f"On the {verdict.evaluation.queries:,} test queries, which nothing was fitted to or "
        f"chosen by, its mean AUC is {auc.value:.4f} (95 %: {interval(auc, 'number')}) and its "
        f"Brier score {brier.value:.4f} ({interval(brier, 'number')}). The test part was opened "
        + (
            "once."
            if looks <= 1
            else f"for {looks} configurations, so this number is no longer that of an unseen part."
        )
    )
    return said


def _winner(verdict: SearchResult) -> list[str]:
    text = yaml.safe_dump(recipe_of(verdict), sort_keys=False, allow_unicode=True)
    return [
        paragraph("The recipe, as `prefill-router fit --recipe` takes it (winner.yaml):"),
        f"<pre>{escape(text)}</pre>",
    ]


def recipe_of(verdict: SearchResult) -> dict[str, object]:
    """The winner's recipe as a file of it has it: without what isn't used."""
    made = verdict.winner.recipe.to_dict()
    return {name: value for name, value in made.items() if value is not None}


def _test(verdict: SearchResult) -> list[str]:
    judged, winner = verdict.evaluation, verdict.winner
    if judged is None:
        return [paragraph("Not opened.")]
    said = {
        "choice_auc": winner.mean("choice"),
        "auc_mean": winner.mean("auc"),
        "brier_mean": winner.mean("brier"),
    }
    if verdict.config.objective == "headroom":
        said["headroom_captured"] = winner.mean("headroom")
    rows = [
        [
            escape(HEADLINE[name].label),
            plain_cell(worded(said[name], HEADLINE[name].unit) if name in said else NOTHING),
            estimate_cell(judged.headline[name], HEADLINE[name].unit),
        ]
        for name in _NUMBERS
    ]
    targets = [
        [
            escape(target),
            estimate_cell(values["auc"], "number"),
            estimate_cell(values["brier"], "number"),
        ]
        for target, values in judged.per_target.items()
    ]
    looks = [
        f"{one['date']}: configuration {one['configuration']}"
        + (", after it had been opened for another one" if one.get("again") else "")
        for one in verdict.openings
    ]
    return [
        wide(table(["Number", "cross-validation, train", "test"], rows)),
        wide(table(["Target", "AUC ↑", "Brier score ↓"], targets)),
        *(paragraph(f"Opened {look}.", soft=True) for look in looks),
    ]


def _edges(verdict: SearchResult) -> str:
    ranking = verdict.ranking
    few = len(ranking) <= 2 * _EDGE
    picked = ranking if few else [*ranking[:_EDGE], *ranking[-_EDGE:]]
    rows = []
    for one in picked:
        aucs = np.array([score.aucs for score in one.scores])
        cells = [plain_cell(worded(float(auc), "number")) for auc in aucs.mean(axis=0)]
        made = f"{one.predictor} on {one.features}, {one.calibration}"
        name = escape(f"#{one.rank} {made}{'' if one.state == 'finished' else ' (stopped)'}")
        rows.append([name, plain_cell(f"{one.mean('auc'):.4f}"), *cells])
    targets = verdict.targets or [f"target {k + 1}" for k in range(len(ranking[0].scores[0].aucs))]
    return table(["AUC on the train part ↑", "mean", *map(escape, targets)], rows)


def _best(verdict: SearchResult) -> str:
    return _table(verdict.ranking[:_SHOWN])


def _table(ranking: Sequence[RankedCandidate]) -> str:
    rows = []
    for one in ranking:
        options = one.recipe.to_dict()
        made = yaml.safe_dump(
            {"features": options["features"], "predictor": options["predictor"]},
            sort_keys=False,
            default_flow_style=True,
            width=10_000,
        )
        folds = f"{len(one.scores)} folds" if one.state == "finished" else "stopped"
        rows.append(
            [
                f"#{one.rank}",
                *(f'<td class="text">{escape(c)}</td>' for c in (one.features, one.predictor)),
                f'<td class="text">{escape(one.calibration)}</td>',
                plain_cell(f"{one.mean('auc'):.4f}", note=_spread(one)),
                plain_cell(f"{one.mean('brier'):.4f}"),
                plain_cell(folds, note=f"trial {one.trial}"),
                f'<td class="text"><details><summary>options</summary>'
                f"<small>{escape(made)}</small></details></td>",
            ]
        )
    head = ["", "Features", "Predictor", "Calibration", "AUC ↑", "Brier ↓", "seen", ""]
    return table(head, rows)


def _spread(one: RankedCandidate) -> str:
    error = spread(one)
    return f"± {error:.4f}" if np.isfinite(error) else ""


def _times(verdict: SearchResult) -> str:
    rows = [
        [escape(name), plain_cell(f"{count:,}"), plain_cell(f"{seconds:,.0f}")]
        for name, (count, seconds) in seconds_by_predictor(verdict.trials).items()
    ]
    return table(["Predictor", "trials", "seconds"], rows)


def _failed(verdict: SearchResult) -> list[str]:
    lines = {f"trial {one.number}": one.why for one in verdict.trials if one.state == "failed"}
    return [paragraph("These could not be fitted:"), facts(lines)] if lines else []


_DONE, _STOPPED, _BEST = "#0072B2", "#9a9a9a", "#D55E00"


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


def best_of_pairs(verdict: SearchResult) -> dict[tuple[str, str], RankedCandidate]:
    """The best configuration of each features and predictor, finished or as far as it came."""
    found: dict[tuple[str, str], RankedCandidate] = {}
    for one in verdict.ranking:
        found.setdefault((one.features, one.predictor), one)
    return found


def pair_rows(verdict: SearchResult) -> list[dict[str, Any]]:
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


def draw_pairs(verdict: SearchResult) -> Figure:
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


def seconds_by_predictor(trials: tuple[SearchTrial, ...]) -> dict[str, tuple[int, float]]:
    """How many trials of each predictor there were, and the seconds of all of them."""
    found: dict[str, tuple[int, float]] = {}
    for trial in trials:
        count, seconds = found.get(trial.candidate.predictor, (0, 0.0))
        found[trial.candidate.predictor] = (count + 1, seconds + trial.seconds)
    return found
