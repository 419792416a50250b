"""A search on disk, and its page for readers who don't know the paper.

plan.json       the space, the options and the data, which identify the search
trials/         each trial's scores, fold by fold, from which the search resumes
cache/          feature columns; may be removed
search.json     every number
ranking.csv     every configuration that was tried, the best first
winner.yaml     the winner's recipe, and split.json its split, for `fit`
opened.json     when the test part was opened, and for which configuration
router/         the fitted winner, once the test part was opened
figures/        .png, .svg, .csv
index.html      one page with all of it; works offline
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import yaml

from prefill_router import files
from prefill_router.comparison import digest_prices
from prefill_router.data import RoutingDataset, Split, save_split
from prefill_router.errors import ConfigError
from prefill_router.evaluation import HEADLINE, NOTHING, interval, worded
from prefill_router.fitting import WORDS
from prefill_router.reporting import (
    Cell,
    Code,
    Note,
    Part,
    Report,
    ReportFigure,
    Row,
    Rows,
    Section,
    Table,
    estimate_cell,
    write_report_files,
)
from prefill_router_lab.search.config import SearchConfig
from prefill_router_lab.search.space import Space
from prefill_router_lab.search.trial_loop import SearchResult
from prefill_router_lab.search.trials import RankedCandidate, SearchTrial

FORMAT = "prefill-router search 1"
PLAN, WINNER, SPLIT, ROUTER = "plan.json", "winner.yaml", "split.json", "router"


def plan_of(
    space: Space, config: SearchConfig, dataset: RoutingDataset, split: Split
) -> dict[str, Any]:
    """Plain values that identify a search."""
    return {
        "format": FORMAT,
        "space": space.to_dict(),
        "config": config.to_dict(),
        "data": dataset.fingerprint,
        "split": split.to_dict()["parts"],
        "prices": digest_prices(dataset),
    }


def begin(folder: Path, plan: Mapping[str, Any]) -> None:
    """Record the search that the folder is for, or check that it is for this one.

    Raises:
        ConfigError: The folder holds something else, or another search.
    """
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        before = _read_plan(folder)
        if before is None:
            raise ConfigError(
                f"{folder} exists and isn't the folder of a search; name another folder, or "
                "remove it"
            )
        differ = sorted(k for k in {*before, *plan} if before.get(k) != plan.get(k))
        if differ:
            raise ConfigError(
                f"{folder} holds another search (other: {', '.join(differ)}); continue it with "
                "the same space, data, split and options, or name another folder"
            )
        return
    files.check_place(folder, replaced=False)
    folder.mkdir(parents=True, exist_ok=True)
    files.write_json(folder / PLAN, dict(plan))


def _read_plan(folder: Path) -> dict[str, Any] | None:
    try:
        value = json.loads((folder / PLAN).read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) and value.get("format") == FORMAT else None


def write(
    verdict: SearchResult, split: Split, folder: Path, *, title: str, facts: Mapping[str, str]
) -> None:
    """Write the report, each file whole or not at all.

    Args:
        verdict: The reported search.
        split: The winner's split.
        folder: The folder to write.
        title: Title of the page.
        facts: Facts about the data, by name.
    """
    text = yaml.safe_dump(recipe_of(verdict), sort_keys=False, allow_unicode=True)
    files.write_text(folder / WINNER, text)
    save_split(split, folder / SPLIT)
    report = Report(
        name="search",
        title=title,
        summary=words(verdict),
        facts=facts,
        parts=page_parts(verdict),
        numbers=verdict.to_dict(),
        tables={"ranking": _list_ranking(verdict)},
    )
    write_report_files(report, folder)


def _list_ranking(verdict: SearchResult) -> Rows:
    """One row for every configuration that was tried."""
    return [
        {
            "rank": candidate.rank,
            "configuration": candidate.key,
            "features": candidate.features,
            "predictor": candidate.predictor,
            "calibration": candidate.calibration,
            **{number: candidate.mean(number) for number in ("auc", "brier", "headroom")},
            "folds": len(candidate.scores),
            "state": candidate.state,
            "trial": candidate.trial,
            "recipe": json.dumps(candidate.recipe.to_dict()),
        }
        for candidate in verdict.ranking
    ]


_EDGE = 3
_SHOWN = 25
_NUMBERS = (
    *("auc_mean", "choice_auc", "brier_mean", "argmax_accuracy", "chosen_accuracy"),
    *("savings", "headroom_captured", "p_auccc", "oracle_distance"),
)
_CAPTIONS = {
    "progress": "Each dot is one trial: one choice of features, predictor and their options, "
    "scored by cross-validation on the train part. Grey ones were stopped early, since they were "
    "behind the best on the same folds by more than the margin. Very low scores aren't shown.",
    "pairs": "The best mean AUC that was found for each set of features (rows) with each predictor "
    "(columns), over the folds of the train part. Starred: stopped early, so over fewer folds. "
    "Empty: not tried.",
}


def page_parts(verdict: SearchResult) -> list[Part]:
    """The parts of the page below the summary."""
    # Here and not above: matplotlib takes longer to import than most commands to run.
    from prefill_router_lab.search.figures import (
        draw_pairs,
        draw_progress,
        pair_rows,
        progress_rows,
    )

    progress = ReportFigure(
        "progress", draw_progress(verdict), progress_rows(verdict), _CAPTIONS["progress"]
    )
    pairs = ReportFigure("pairs", draw_pairs(verdict), pair_rows(verdict), _CAPTIONS["pairs"])
    failures = {
        f"trial {trial.number}": trial.why for trial in verdict.trials if trial.state == "failed"
    }
    recipe = yaml.safe_dump(recipe_of(verdict), sort_keys=False, allow_unicode=True)
    times: list[Part] = [_tabulate_times(verdict)]
    if failures:
        times += ["These could not be fitted:", failures]
    intro = "The recipe for `prefill-router fit --recipe` (winner.yaml):"
    return [
        Section("The winner", [intro, Code(recipe)]),
        Section("On the test part", _describe_test(verdict)),
        Section("Progress of the search", [progress]),
        Section("Features and predictors", [pairs]),
        Section("Top and bottom three", [_tabulate_edges(verdict)]),
        Section(f"The best {min(_SHOWN, len(verdict.ranking))}", [_tabulate_best(verdict)]),
        Section("Computing time", times),
    ]


def words(verdict: SearchResult) -> list[str]:
    """The result in a few sentences."""
    winner, config = verdict.winner, verdict.config
    count = sum(trial.state == "stopped" for trial in verdict.trials)
    sentences = [
        f"{len(verdict.ranking):,} of {verdict.space.size:,} possible configurations were tried "
        f"(in {len(verdict.trials):,} trials, {count:,} of them stopped early), by "
        f"{config.folds}-fold cross-validation on the train part alone. The best by "
        f"{WORDS[config.objective]}: {winner.predictor} on {winner.features}, calibration "
        f"{winner.calibration}, with a choice AUC of {winner.mean('choice'):.4f}, a mean AUC of "
        f"{winner.mean('auc'):.4f} and a Brier score of "
        f"{winner.mean('brier'):.4f} there.",
        f"The best of many is partly luck. Choosing on all folds but one and scoring on that one "
        f"gives a {WORDS[config.objective]} of {verdict.honest:.4f}; the winner's mean is "
        f"{winner.mean(config.objective):.4f}.",
    ]
    if verdict.evaluation is None:
        return [*sentences, "The test part is still sealed."]
    auc, brier = (verdict.evaluation.headline[n] for n in ("auc_mean", "brier_mean"))
    looks = len(verdict.openings)
    sentences.append(
        f"On the {verdict.evaluation.queries:,} test queries, which weren't used for any fit or "
        f"choice, its mean AUC is {auc.value:.4f} (95 %: {interval(auc, 'number')}) and its "
        f"Brier score {brier.value:.4f} ({interval(brier, 'number')}). The test part was opened "
        + (
            "once."
            if looks <= 1
            else f"for {looks} configurations, so this number no longer comes from an unseen part."
        )
    )
    return sentences


def recipe_of(verdict: SearchResult) -> dict[str, object]:
    """The winner's recipe as in its file: without unused options."""
    values = verdict.winner.recipe.to_dict()
    return {name: value for name, value in values.items() if value is not None}


def _describe_test(verdict: SearchResult) -> list[Part]:
    evaluation, winner = verdict.evaluation, verdict.winner
    if evaluation is None:
        return ["Not opened."]
    scores = {
        "choice_auc": winner.mean("choice"),
        "auc_mean": winner.mean("auc"),
        "brier_mean": winner.mean("brier"),
    }
    if verdict.config.objective == "headroom":
        scores["headroom_captured"] = winner.mean("headroom")
    rows: list[Row] = [
        [
            HEADLINE[name].label,
            worded(scores[name], HEADLINE[name].unit) if name in scores else NOTHING,
            estimate_cell(evaluation.headline[name], HEADLINE[name].unit),
        ]
        for name in _NUMBERS
    ]
    targets: list[Row] = [
        [target, *(estimate_cell(values[name], "number") for name in ("auc", "brier"))]
        for target, values in evaluation.per_target.items()
    ]
    looks = [
        f"Opened {opening['date']}: configuration {opening['configuration']}"
        + (", after it had been opened for another one." if opening.get("again") else ".")
        for opening in verdict.openings
    ]
    return [
        Table(["Number", "cross-validation, train", "test"], rows),
        Table(["Target", "AUC ↑", "Brier score ↓"], targets),
        *(Note(look) for look in looks),
    ]


def _tabulate_edges(verdict: SearchResult) -> Table:
    ranking = verdict.ranking
    few = len(ranking) <= 2 * _EDGE
    rows = []
    for candidate in ranking if few else [*ranking[:_EDGE], *ranking[-_EDGE:]]:
        aucs = np.array([score.aucs for score in candidate.scores]).mean(axis=0).tolist()
        label = f"#{candidate.rank} {candidate.predictor} on {candidate.features}"
        label += f", {candidate.calibration}"
        name = label if candidate.state == "finished" else f"{label} (stopped)"
        rows.append(
            [name, f"{candidate.mean('auc'):.4f}", *(worded(auc, "number") for auc in aucs)]
        )
    targets = verdict.targets or [f"target {k + 1}" for k in range(len(ranking[0].scores[0].aucs))]
    return Table(["AUC on the train part ↑", "mean", *targets], rows)


def _tabulate_best(verdict: SearchResult) -> Table:
    rows: list[Row] = []
    for candidate in verdict.ranking[:_SHOWN]:
        recipe, error = candidate.recipe.to_dict(), _estimate_error(candidate)
        options = yaml.safe_dump(
            {name: recipe[name] for name in ("features", "predictor")},
            sort_keys=False,
            default_flow_style=True,
            width=10_000,
        )
        folds = f"{len(candidate.scores)} folds" if candidate.state == "finished" else "stopped"
        rows.append(
            [
                f"#{candidate.rank}",
                *(
                    Cell(c, words=True)
                    for c in (candidate.features, candidate.predictor, candidate.calibration)
                ),
                Cell(
                    f"{candidate.mean('auc'):.4f}",
                    note=f"± {error:.4f}" if np.isfinite(error) else "",
                ),
                f"{candidate.mean('brier'):.4f}",
                Cell(folds, note=f"trial {candidate.trial}"),
                Cell("options", folded=options, words=True),
            ]
        )
    head = ["", "Features", "Predictor", "Calibration", "AUC ↑", "Brier ↓", "seen", ""]
    return Table(head, rows)


def _estimate_error(candidate: RankedCandidate) -> float:
    """The standard error of a configuration's mean AUC over folds."""
    values = [score.auc for score in candidate.scores]
    return float(np.std(values, ddof=1) / np.sqrt(len(values))) if len(values) > 1 else float("nan")


def _tabulate_times(verdict: SearchResult) -> Table:
    rows = [
        [name, f"{count:,}", f"{seconds:,.0f}"]
        for name, (count, seconds) in seconds_by_predictor(verdict.trials).items()
    ]
    return Table(["Predictor", "trials", "seconds"], rows)


def seconds_by_predictor(trials: tuple[SearchTrial, ...]) -> dict[str, tuple[int, float]]:
    """The number of trials of each predictor, and their total seconds."""
    totals: dict[str, tuple[int, float]] = {}
    for trial in trials:
        count, seconds = totals.get(trial.candidate.predictor, (0, 0.0))
        totals[trial.candidate.predictor] = (count + 1, seconds + trial.seconds)
    return totals
