"""What `fit` takes beside the paper's router, on three benchmarks and five splits of each.

    python -m benchmarks.headline [--only routerbench] [--store FOLDER ...]

MMLU-Pro (14 targets), RouterBench's three tasks (11 targets, dollar costs) and RouteLLM's MMLU and
GSM8K (two targets). On each split, recipes are chosen and routers fitted on the train part, and all
are judged on the same test questions. Differences are paired within each split. Splits of one
benchmark share most of their questions, so their spread isn't an interval: the
results say how many of the five intervals exclude zero. They are written after each split.
"""

import argparse
import json
import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks._system import machine
from benchmarks.readme import OURS, PAPER, make_plan, states_of
from prefill_router import files
from prefill_router.activations import Activations, ActivationStore
from prefill_router.comparison.comparison import run_plan
from prefill_router.data import RoutingDataset, read_dataset
from prefill_router.evaluation import Evaluation
from prefill_router.importers import import_dataset
from prefill_router.progress import BarProgress
from prefill_router.reporting import BLUE, QUIET, name_rows, new_figure, style, write_figure

RESULT = Path(__file__).parent / "results" / "headline.json"
DATA = Path("../shared/data")
BENCHMARKS: Mapping[str, Callable[[], RoutingDataset]] = {
    "mmlu_pro": lambda: read_dataset(DATA / "mmlu_pro"),
    "routerbench": lambda: _import("routerbench"),
    "routellm": lambda: _import("routellm"),
}
SPLITS = 5
METRICS = (
    *("auc_mean", "choice_auc", "brier_mean", "mix_gain", "chosen_gain", "savings"),
    *("mdp_auccc", "best_single_accuracy", "chosen_accuracy"),
)


def _import(name: str) -> RoutingDataset:
    return import_dataset(name, sorted((DATA / name).glob("*.csv"))).dataset


def measure(dataset: RoutingDataset, stores: Sequence[Activations], seed: int) -> dict[str, Any]:
    """One split: what was tried, and each router's metrics and its differences to the paper's."""
    plan, chosen = make_plan(dataset, stores, seed=seed)
    result = run_plan(plan, dataset, stores, progress=BarProgress())
    return {
        "seed": seed,
        "taken": {name: recipe.words for name, recipe in chosen.items()},
        "routers": {router.name: _summarise(router.evaluation) for router in result.routers},
        "differences": {
            router.name: {
                name: router.against[name].to_dict() for name in METRICS if name in router.against
            }
            for router in result.routers
            if router.against
        },
    }


def _summarise(evaluation: Evaluation) -> dict[str, Any]:
    verdict = evaluation.verdict
    return {
        "verdict": "" if verdict is None else verdict.word,
        "gain": None if verdict is None else verdict.to_dict()["curve"][0]["best_mix"],
        **{name: evaluation.headline[name].to_dict() for name in METRICS},
    }


def table(splits: Sequence[Mapping[str, Any]]) -> str:
    """The mean over splits of each router's metrics, and of how many splits it is worth it."""
    lines = ["router".ljust(24) + "".join(name.rjust(18) for name in METRICS[:7]) + "  worth it"]
    for router in splits[0]["routers"]:
        rows = [split["routers"][router] for split in splits]
        means = (_mean([row[name]["value"] for row in rows]) for name in METRICS[:7])
        worth = sum(row["verdict"] == "worth it" for row in rows)
        lines.append(
            router.ljust(24) + "".join(f"{mean:18.4f}" for mean in means) + f"  {worth}/{len(rows)}"
        )
    return "\n".join(lines)


TABLE_ROUTERS = ("fit, both encoders", "paper, smollm2", "paper, embeddings")
FIGURE_METRICS = {"auc_mean": "mean AUC", "choice_auc": "choice AUC"}
TITLES = {"mmlu_pro": "MMLU-Pro", "routerbench": "RouterBench", "routellm": "RouteLLM"}


def readme_block(results: Mapping[str, Any]) -> str:
    """The table of all benchmarks in docs/proven.md.

    Means over the splits, and in how many of them a router is worth it, and significantly better or
    worse than the paper's in mean AUC and in choice AUC.
    """
    head = "mean AUC  choice AUC    Brier  over mix  worth it  AUC +/-  choice +/-"
    lines = ["means of five splits".ljust(32) + head]
    for name, title in TITLES.items():
        splits = results[name]["splits"]
        lines.append(f"{title}, {results[name]['queries']:,} queries")
        lines += [f"  {router}".ljust(32) + _cells(splits, router) for router in TABLE_ROUTERS]
    return "\n".join(lines)


def _cells(splits: Sequence[Mapping[str, Any]], router: str) -> str:
    rows = [split["routers"][router] for split in splits]
    auc, choice, brier, mix = (
        _mean([row[metric]["value"] for row in rows])
        for metric in ("auc_mean", "choice_auc", "brier_mean", "mix_gain")
    )
    worth = sum(row["verdict"] == "worth it" for row in rows)
    signs = [
        "" if router == PAPER else "{}/{}".format(*exclude_zero(splits, router, metric))
        for metric in ("auc_mean", "choice_auc")
    ]
    over = "-" if math.isnan(mix) else f"{100 * mix:+.1f}"
    numbers = f"{auc:8.3f}{choice:12.3f}{brier:9.3f}{over:>10}{worth:8d}/{len(rows)}"
    return f"{numbers}{signs[0]:>9}{signs[1]:>12}".rstrip()


def draw(results: Mapping[str, Any], path: Path) -> None:
    """Draw each router's mean AUC and choice AUC on every split, and their mean; write the data."""
    figure = new_figure(12.0, 5.6)
    panels = figure.subplots(len(FIGURE_METRICS), len(TITLES))
    for across, (name, title) in enumerate(TITLES.items()):
        splits = results[name]["splits"]
        names = list(splits[0]["routers"])[::-1]
        for down, (metric, words) in enumerate(FIGURE_METRICS.items()):
            axes = panels[down][across]
            for place, router in enumerate(names):
                values = [split["routers"][router][metric]["value"] for split in splits]
                colour = BLUE if router == OURS else QUIET
                axes.plot(values, [place] * len(values), "o", color=colour, ms=4, alpha=0.5)
                axes.plot(_mean(values), place, "|", color=colour, ms=14, mew=2)
            style(axes, title=title if not down else "", x=words)
            name_rows(axes, names if not across else [""] * len(names))
    rows = [
        {"benchmark": name, "seed": split["seed"], "router": router}
        | {metric: scores[metric]["value"] for metric in FIGURE_METRICS}
        for name in TITLES
        for split in results[name]["splits"]
        for router, scores in split["routers"].items()
    ]
    write_figure(figure, path, rows)


def exclude_zero(splits: Sequence[Mapping[str, Any]], router: str, metric: str) -> tuple[int, int]:
    """In how many splits a router's interval against the paper's is above zero, and below."""
    differences = [split["differences"][router][metric] for split in splits]
    return sum(difference["lower"] > 0 for difference in differences), sum(
        one["upper"] < 0 for one in differences
    )


def _mean(values: Sequence[float | None]) -> float:
    known = [value for value in values if value is not None]
    return float(np.mean(known)) if known else float("nan")


def main() -> None:
    """Measure what isn't kept yet, and print a table of each benchmark."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--only", choices=list(BENCHMARKS), action="append")
    parser.add_argument("--store", type=Path, action="append", default=[])
    parser.add_argument("--again", action="store_true", help="measure what is kept, too")
    options = parser.parse_args()
    results = json.loads(RESULT.read_text()) if RESULT.exists() and not options.again else {}
    for name in options.only or BENCHMARKS:
        dataset = BENCHMARKS[name]()
        stores = [
            store
            for store in map(ActivationStore.open, options.store)
            if not _lacks(store, dataset)
        ]
        states = states_of(dataset, stores)
        splits = results.setdefault(name, {"queries": len(dataset), "splits": []})["splits"]
        for seed in range(len(splits), SPLITS):
            splits.append(measure(dataset, states, seed))
            files.write_json(RESULT, results | {"machine": machine()})
        if all(
            len(results.get(benchmark, {"splits": ()})["splits"]) == SPLITS
            for benchmark in BENCHMARKS
        ):
            draw(results, RESULT.with_suffix(""))
        print(
            f"{name}: {len(dataset):,} queries, {len(splits)} splits\n{table(splits)}", flush=True
        )


def _lacks(store: Activations, dataset: RoutingDataset) -> bool:
    return bool(store.missing(dataset.prompt_keys))


if __name__ == "__main__":
    main()
