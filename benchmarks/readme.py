"""The figures of the README: the default router on MMLU-Pro, and baselines beside it, in one run.

    python -m benchmarks.readme --data ../shared/data/mmlu_pro --work readme-work

It encodes the prompts with minilm, fits each router on the same train questions, and judges all of
them on the same test questions. A test holds the README's blocks to what is written here.
"""

import argparse
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks._system import machine
from prefill_router import files
from prefill_router.activations import ActivationStore
from prefill_router.data import read_dataset
from prefill_router.evaluation import Evaluation
from prefill_router.evaluation.bootstrap import Estimate
from prefill_router.fitting import gather
from prefill_router.progress import BarProgress
from prefill_router.reporting import write_report
from prefill_router.studies.comparison.comparison import (
    ALL,
    ComparisonPlan,
    draw_for,
    recipes_of,
    run_plan,
)

RESULT = Path(__file__).parent / "results" / "readme.json"
ROUTERS = (
    *("SharedTrunkNet", "SharedTrunkNet + semantic", "SharedTrunkNet on embeddings"),
    *("Unified Multitask", "kNN score", "Matrix Factorisation on pairs"),
)
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
    """The README's first table, from the JSON."""
    rows = [f"{result['queries']:,} queries, {result['targets']} targets".ljust(40)
            + "value".rjust(8) + "95 % interval".rjust(20)]  # fmt: skip
    for name, (title, unit) in HEADLINE.items():
        got = result["headline"][name]
        value, low, high = (_text(got[end], unit) for end in ("value", "lower", "upper"))
        rows.append(title.ljust(40) + value.rjust(8) + f"{low} to {high}".rjust(20))
    return "\n".join(rows)


def comparison_block(result: Mapping[str, Any]) -> str:
    """The README's table of routers, from the JSON."""
    head = "router".ljust(30) + "".join(title.rjust(12) for title, _ in COLUMNS.values())
    rows = [head + "  worth it?"]
    for name, one in result["routers"].items():
        cells = (_text(one[number], unit).rjust(12) for number, (_, unit) in COLUMNS.items())
        rows.append(name.ljust(30) + "".join(cells) + f"  {one['verdict']}")
    return "\n".join(rows)


def _text(value: float | None, unit: str) -> str:
    if value is None:
        return "-"
    return f"{value:{unit}}" if unit.startswith(".") else f"{100 * value:.1f}{unit}"


def measure(data: Path, stores: Sequence[ActivationStore], work: Path) -> dict[str, Any]:
    """Encode, fit and judge.

    Args:
        data: The MMLU-Pro dataset.
        stores: States that are there already; what is lacking is encoded.
        work: Keeps the routers and the default router's report.
    """
    dataset, bar = read_dataset(data), BarProgress()
    every = recipes_of(ALL)
    recipes = {name: every[name] for name in ROUTERS}
    plan = ComparisonPlan(recipes, ROUTERS[0], draw_for(recipes, dataset, seed=0))
    needs = [need for recipe in recipes.values() for need in recipe.needs]
    states = gather(needs, dataset, stores, progress=bar)
    result = run_plan(plan, dataset, states, folder=work / "routers", progress=bar)
    first = result.routers[0].evaluation
    write_report(first, work / "report", title="The default router on MMLU-Pro")
    return {
        "machine": machine(),
        "queries": first.queries,
        "compared": first.coverage.compared,
        "targets": len(first.targets),
        "headline": _plain(first),
        "verdict": None if first.verdict is None else first.verdict.to_dict(),
        "routers": {
            one.name: {
                **{name: one.headline[name].value for name in COLUMNS},
                "verdict": "" if one.evaluation.verdict is None else one.evaluation.verdict.word,
            }
            for one in result.routers
        },
        "differences": {
            one.name: {name: _interval(one.against[name]) for name in COLUMNS}
            for one in result.routers
            if one.against
        },
    }


def _plain(evaluation: Evaluation) -> dict[str, Any]:
    return {name: estimate.to_dict() for name, estimate in evaluation.headline.items()}


def _interval(estimate: Estimate) -> dict[str, Any]:
    return estimate.to_dict()


def main() -> None:
    """Measure, write the JSON, and print the blocks."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path, default=Path("../shared/data/mmlu_pro"))
    parser.add_argument("--store", type=Path, action="append", default=[])
    parser.add_argument("--work", type=Path, required=True)
    options = parser.parse_args()
    stores = [ActivationStore.open(path) for path in options.store]
    result = measure(options.data, stores, options.work)
    files.write_json(RESULT, result)
    print(headline_block(result))
    print(comparison_block(result))
    print(json.dumps(result["verdict"], indent=1))


if __name__ == "__main__":
    main()
