"""Figures of docs/proven.md: what `fit` takes on MMLU-Pro, and others beside it, in one run.

    python -m benchmarks.readme --data ../shared/data/mmlu_pro --work readme-work

States that no --store has are encoded. Recipes are chosen on train questions, each router is fitted
on them, and all are judged on the same test questions. A test holds the page's blocks to what is
written here.
"""

import argparse
import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks._system import machine
from benchmarks.predicted_cost import DOLLARS, at_dollars
from benchmarks.shrinkage import complete
from prefill_router import files
from prefill_router.activations import DEFAULT_POOLINGS, Activations, ActivationStore, Site
from prefill_router.comparison.comparison import (
    ALL,
    ComparisonPlan,
    ComparisonResult,
    draw_for,
    recipes_of,
    run_plan,
)
from prefill_router.data import RoutingDataset, read_dataset
from prefill_router.evaluation import Evaluation
from prefill_router.evaluation.bootstrap import Estimate
from prefill_router.evaluation.fixed_mix import FixedChoice
from prefill_router.features import Need, PrefillConfig
from prefill_router.fitting import EffortChoice, Recipe, choose_recipe, gather
from prefill_router.progress import BarProgress
from prefill_router.reporting import write_report

RESULT = Path(__file__).parent / "results" / "readme.json"
LANGUAGE, SENTENCE = "smollm2", "minilm"
SITES = tuple(Site(layer, pooling) for layer in (16, 18, 20) for pooling in DEFAULT_POOLINGS)
"""The states of the language model."""
OURS, SMALL, PAPER = "fit, both encoders", "fit, minilm", "paper, smollm2"
BASELINES = {
    "paper, minilm": "SharedTrunkNet",
    "paper, embeddings": "SharedTrunkNet on embeddings",
    "Unified Multitask": "Unified Multitask",
    "kNN score": "kNN score",
    "Factorisation on pairs": "Matrix Factorisation on pairs",
}
"""The packaged recipes; embeddings and states are minilm's."""
HEADLINE = {
    "best_single_accuracy": ("best single target, accuracy", "%"),
    "chosen_accuracy": ("router at its lam, accuracy", "%"),
    "chosen_gain": ("  beyond the best single target, points", ""),
    "oracle_accuracy": ("oracle, accuracy", "%"),
    "savings": ("saved at no less accuracy than it", "%"),
    "savings_gain": ("  accuracy gained meanwhile, points", ""),
    "auc_mean": ("mean AUC over targets", ".4f"),
    "choice_auc": ("choice AUC over pairs of targets", ".4f"),
    "mdp_auccc": ("MDP-AUCCC", ".4f"),
}
COLUMNS = {
    "auc_mean": ("mean AUC", ".3f"),
    "choice_auc": ("choice AUC", ".3f"),
    "brier_mean": ("Brier", ".3f"),
    "chosen_accuracy": ("chosen lam", "%"),
    "savings": ("saved", "%"),
}


def headline_block(result: Mapping[str, Any]) -> str:
    """The table of the first router, from the JSON."""
    rows = [f"{result['queries']:,} queries, {result['targets']} targets".ljust(40)
            + "value".rjust(8) + "95 % interval".rjust(20)]  # fmt: skip
    for name, (title, unit) in HEADLINE.items():
        figures = result["headline"][name]
        value, low, high = (_text(figures[end], unit) for end in ("value", "lower", "upper"))
        rows.append(title.ljust(40) + value.rjust(8) + f"{low} to {high}".rjust(20))
    return "\n".join(rows)


def comparison_block(result: Mapping[str, Any]) -> str:
    """The table of routers, from the JSON."""
    head = "router".ljust(30) + "".join(title.rjust(12) for title, _ in COLUMNS.values())
    rows = [head + "  worth it?"]
    for name, figures in result["routers"].items():
        cells = (_text(figures[number], unit).rjust(12) for number, (_, unit) in COLUMNS.items())
        rows.append(name.ljust(30) + "".join(cells) + f"  {figures['verdict']}")
    return "\n".join(rows)


def _text(value: float | None, unit: str) -> str:
    if value is None:
        return "-"
    return f"{value:{unit}}" if unit.startswith(".") else f"{100 * value:.1f}{unit}"


def measure(data: Path, stores: Sequence[ActivationStore], work: Path) -> dict[str, Any]:
    """Encode, choose, fit and judge.

    Args:
        data: The MMLU-Pro dataset.
        stores: States that are there already; what is lacking is encoded.
        work: Keeps the routers and the first router's report.
    """
    dataset, bar = read_dataset(data), BarProgress()
    states = states_of(dataset, stores)
    plan, chosen = make_plan(dataset, states, seed=0)
    result = run_plan(plan, dataset, states, folder=work / "routers", progress=bar)
    first = result.by_name[OURS].evaluation
    write_report(first, work / "report", title="What fit takes on MMLU-Pro")
    return {
        "machine": machine(),
        "tried": {name: [trial.to_dict() for trial in got.trials] for name, got in chosen.items()},
        "queries": first.queries,
        "compared": first.coverage.compared,
        "targets": len(first.targets),
        "headline": _plain(first),
        "verdict": None if first.verdict is None else first.verdict.to_dict(),
        "beyond_mix": {"usd": DOLLARS, "points": beyond_mix(plan, result, dataset, states)},
        "routers": {
            router.name: {
                **{name: router.headline[name].value for name in COLUMNS},
                "verdict": ""
                if router.evaluation.verdict is None
                else router.evaluation.verdict.word,
            }
            for router in result.routers
        },
        "differences": {
            router.name: {name: _interval(router.against[name]) for name in COLUMNS}
            for router in result.routers
            if router.against
        },
    }


def beyond_mix(
    plan: ComparisonPlan,
    result: ComparisonResult,
    dataset: RoutingDataset,
    states: Sequence[Activations],
) -> dict[str, list[float | None]]:
    """Points above the best fixed mix at nine mean costs, of each router.

    On the test questions with all labels; the corners of the mix are of train questions.
    """
    train, test = (dataset.select(plan.split[part]) for part in ("train", "test"))
    judged = test.select([test.query_ids[place] for place in complete(test)])
    corners = np.array(FixedChoice.mix(train).corners)
    points = {}
    for router in result.routers:
        predictions = router.fit.router.predict(judged, stores=states)
        paid = (
            predictions.correctness,
            predictions.normalised_cost,
            judged.correct,
            judged.observed_cost,
        )
        points[router.name] = at_dollars(*paid, corners)
    return points


def states_of(dataset: RoutingDataset, stores: Sequence[Activations]) -> tuple[Activations, ...]:
    """The states that the routers read; what the stores lack is encoded."""
    needs = (Need(LANGUAGE, SITES), *(n for recipe in _baselines().values() for n in recipe.needs))
    return gather(needs, dataset, stores, progress=BarProgress())


def make_plan(
    dataset: RoutingDataset, states: Sequence[Activations], *, seed: int
) -> tuple[ComparisonPlan, dict[str, EffortChoice]]:
    """The routers of a split, and what was tried on its train part for those that `fit` takes."""
    baselines = _baselines()
    parts = draw_for(baselines, dataset, seed=seed)
    chosen = {
        name: choose_recipe(
            dataset,
            _of(states, encoders),
            parts,
            minutes=math.inf,  # so that all recipes are tried on any machine
            seed=seed,
            progress=BarProgress(),
        )
        for name, encoders in ((OURS, (LANGUAGE, SENTENCE)), (SMALL, (SENTENCE,)))
    }
    recipes = {name: choice.recipe for name, choice in chosen.items()}
    recipes[PAPER] = Recipe(features=(PrefillConfig(encoders=(LANGUAGE,)),))
    return ComparisonPlan(recipes | baselines, PAPER, parts, seed=seed), chosen


def _baselines() -> dict[str, Recipe]:
    every = recipes_of(ALL).recipes
    return {name: every[packaged] for name, packaged in BASELINES.items()}


def _of(states: Sequence[Activations], encoders: Sequence[str]) -> list[Activations]:
    return [store for name in encoders for store in states if store.provenance.encoder == name]


def _plain(evaluation: Evaluation) -> dict[str, Any]:
    return {name: estimate.to_dict() for name, estimate in evaluation.headline.items()}


def _interval(estimate: Estimate) -> dict[str, Any]:
    return estimate.to_dict()


def main() -> None:
    """Measure, write the JSON, and print the blocks."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path, default=Path("../shared/data/mmlu_pro"))
    parser.add_argument("--store", type=Path, action="append", default=[])
    parser.add_argument("--work", type=Path, default=Path("readme-work"))
    options = parser.parse_args()
    stores = [ActivationStore.open(path) for path in options.store]
    result = measure(options.data, stores, options.work)
    files.write_json(RESULT, result)
    print(headline_block(result))
    print(comparison_block(result))
    print(json.dumps(result["verdict"], indent=1))


if __name__ == "__main__":
    main()
