"""The page of a search: one file that opens offline, for somebody who hasn't read the paper."""

from collections.abc import Mapping, Sequence
from html import escape

import numpy as np
import yaml

from prefill_router.evaluation.catalogue import HEADLINE
from prefill_router.evaluation.document import (
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
from prefill_router.evaluation.wording import NOTHING, interval, worded
from prefill_router.studies.search.bench import WORDS
from prefill_router.studies.search.drawing import seconds_by_predictor
from prefill_router.studies.search.trials import Ranked
from prefill_router.studies.search.verdict import Verdict, spread

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
    verdict: Verdict, *, title: str, known: Mapping[str, str], svg: Mapping[str, str]
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


def words(verdict: Verdict) -> list[str]:
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


def _winner(verdict: Verdict) -> list[str]:
    text = yaml.safe_dump(recipe_of(verdict), sort_keys=False, allow_unicode=True)
    return [
        paragraph("The recipe, as `prefill-router fit --recipe` takes it (winner.yaml):"),
        f"<pre>{escape(text)}</pre>",
    ]


def recipe_of(verdict: Verdict) -> dict[str, object]:
    """The winner's recipe as a file of it has it: without what isn't used."""
    made = verdict.winner.recipe.to_dict()
    return {name: value for name, value in made.items() if value is not None}


def _test(verdict: Verdict) -> list[str]:
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


def _edges(verdict: Verdict) -> str:
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


def _best(verdict: Verdict) -> str:
    return _table(verdict.ranking[:_SHOWN])


def _table(ranking: Sequence[Ranked]) -> str:
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


def _spread(one: Ranked) -> str:
    error = spread(one)
    return f"± {error:.4f}" if np.isfinite(error) else ""


def _times(verdict: Verdict) -> str:
    rows = [
        [escape(name), plain_cell(f"{count:,}"), plain_cell(f"{seconds:,.0f}")]
        for name, (count, seconds) in seconds_by_predictor(verdict.trials).items()
    ]
    return table(["Predictor", "trials", "seconds"], rows)


def _failed(verdict: Verdict) -> list[str]:
    lines = {f"trial {one.number}": one.why for one in verdict.trials if one.state == "failed"}
    return [paragraph("These could not be fitted:"), facts(lines)] if lines else []
