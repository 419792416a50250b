"""Accuracy at equal cost of a router and its peers, on questions that none of them learned from.

    python -m benchmarks.peers [mmlu_pro | mmlu_pro_longer | routerbench ...]

A router is fitted as `fit --test 0.2` does, with MiniLM alone, and judged as `study peers` does:
beside the best fixed mix, price alone, and LiteLLM's local classifiers. MMLU-Pro's token counts
leave out the five examples that each prompt began with, so that answers look cheaper, and more
unlike in price, than they were: `mmlu_pro_longer` has 1,000 more input tokens per call.
"""

import argparse
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from benchmarks._system import machine
from prefill_router import files
from prefill_router.data import RoutingDataset, read_dataset
from prefill_router.evaluation import JudgedPart, References, Trial
from prefill_router.features import Need
from prefill_router.fitting import FitConfig, gather
from prefill_router.fitting.effort import learn_chosen
from prefill_router.fitting.fit import draw
from prefill_router.importers import import_dataset
from prefill_router.progress import BarProgress
from prefill_router.reporting import write_report_files
from prefill_router_lab.studies import (
    CLASSIFIERS,
    PeerPart,
    classify_prompts,
    study_peers,
)

RESULT = Path(__file__).parent / "results" / "peers.json"
DATA = Path("../shared/data")
LONGER = 1000
"""Input tokens per call that MMLU-Pro's counts leave out, about."""


def read(name: str) -> RoutingDataset:
    """A dataset by the name of its run."""
    if name == "routerbench":
        return import_dataset("routerbench", sorted((DATA / name).glob("*.csv"))).dataset
    data = read_dataset(DATA / "mmlu_pro")
    if name == "mmlu_pro_longer":
        return replace(data, input_tokens=data.input_tokens + LONGER)
    return data


def measure(name: str, work: Path) -> dict[str, Any]:
    """Fit a router, and judge it beside its peers."""
    data, bar = read(name), BarProgress()
    states = gather([Need("minilm")], data, (), progress=bar)
    config = FitConfig(test=0.2, resamples=0)
    drawn = draw(data, config)
    router, effort = learn_chosen(data, states, drawn, config=config, progress=bar)
    train, judged = data.select(drawn["train"]), data.select(drawn["test"])
    predictions = router.predict(judged, stores=states)
    references = router.references or References.fit(
        train, router.predict(train, stores=states).normalised_cost
    )
    trial = Trial.join(predictions, judged, policy=router.policy)
    part = PeerPart(JudgedPart(trial, references, router.record.chosen), train)
    queries = [*train.queries, *judged.queries]
    tiers: dict[str, dict[str, int]] = {
        classifier: dict(
            zip(
                [query.id for query in queries],
                classify_prompts([query.prompt for query in queries], classifier),
                strict=True,
            )
        )
        for classifier in CLASSIFIERS
    }
    study = study_peers([part], tiers)
    facts = {"trained on": f"{len(train):,} queries", "recipe": effort.name}
    report = study.report(title=name, facts=facts)
    place = work / name
    place.mkdir(parents=True, exist_ok=True)
    write_report_files(report, place)
    return {"train": len(train), "recipe": effort.name, **study.to_dict()}


TITLES = {
    "routerbench": "RouterBench",
    "mmlu_pro": "MMLU-Pro",
    "mmlu_pro_longer": "MMLU-Pro, longer",
}
SYSTEMS = {
    "best fixed mix": "best fixed mix",
    "price alone": "price alone",
    "LiteLLM heuristic": "LiteLLM, `heuristic`",
    "LiteLLM heuristic_v2": "LiteLLM, `heuristic_v2`",
    "router": "**prefill-router**",
}
COLUMNS = (0.3, 0.5)


def tabulate(results: Mapping[str, Any], names: Sequence[str] = tuple(TITLES)) -> str:
    """The table in Markdown: accuracies at shares of the best target's price.

    Args:
        results: The figures.
        names: The runs that it shows.
    """
    heads = [f"{TITLES[name]}, at {100 * share:.0f} %" for name in names for share in COLUMNS]
    rows = [["% right, for a share of the best's price", *heads], ["---"] * (len(heads) + 1)]
    for key, title in SYSTEMS.items():
        rows.append(
            [title, *(_percent(point["accuracy"]) for point in _points(results, names, key))]
        )
    gains = (point["over_mix"] for point in _points(results, names, "router"))
    rows.append(["over the mix, points", *(_gain(gain) for gain in gains)])
    alone = [_percent(results[name]["best_accuracy"]) for name in names for _ in COLUMNS]
    rows.append(["the best alone, for all of its price", *alone])
    counts = [f"{results[name]['queries']:,}" for name in names for _ in COLUMNS]
    rows.append(["questions", *counts])
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)


def _points(
    results: Mapping[str, Any], names: Sequence[str], system: str
) -> Iterator[Mapping[str, Any]]:
    for name in names:
        points = {point["share"]: point for point in results[name]["systems"][system]}
        yield from (points[share] for share in COLUMNS)


def _percent(share: float) -> str:
    return f"{100 * share:.1f}"


def _gain(gain: Mapping[str, float]) -> str:
    value, lower, upper = (100 * gain[name] for name in ("value", "lower", "upper"))
    return f"{value:+.1f} ({lower:.1f} to {upper:.1f})"


def main() -> None:
    """Measure the runs that are named, by default all; the others' figures are kept."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("runs", nargs="*", metavar="RUN", help=f"{', '.join(TITLES)}; default: all")
    names = parser.parse_args().runs or sorted(TITLES)
    for name in names:
        if name not in TITLES:
            parser.error(f"there is no run {name}; name some of {', '.join(TITLES)}")
    for name in names:
        results = json.loads(RESULT.read_text()) if RESULT.exists() else {}
        results[name] = {"machine": machine(), **measure(name, Path("build/peers"))}
        files.write_json(RESULT, results)
        print(name, json.dumps(results[name]["systems"], indent=1)[:2000])


if __name__ == "__main__":
    main()
