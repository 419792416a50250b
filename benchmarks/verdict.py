"""How often the verdict by cross-fitting is right, and what the setting costs, on real answers.

    python -m benchmarks.verdict [--draws 12] [--only 100,400,1000] [--part 0/2]

Pools of 2, 3 and 14 targets of MMLU-Pro, and several numbers of labelled questions. Each draw fits
a router as `fit` does, with one logistic regression per target on MiniLM's states in the place of
the networks, since hundreds of fits are needed, and judges it by cross-fitting. The truth is the
same router's gain on all other questions, at the same setting, over the same references. In half
of the draws with shuffled labels nothing about a question says which target is right.
"""

import argparse
import json
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks._system import machine
from prefill_router import files
from prefill_router.activations import Activations
from prefill_router.data import RoutingDataset, read_dataset
from prefill_router.evaluation import JudgedPart, References, Trial, Verdict, judge
from prefill_router.features import Need
from prefill_router.fitting import FitConfig, fit_router, gather, recipe_from_dict
from prefill_router.policy import OperatingPoints
from prefill_router.progress import SilentProgress

RESULT = Path(__file__).parent / "results" / "verdict.json"
DATA = Path("../shared/data/mmlu_pro")
SIZES = (100, 400, 1000, 3000)
POOLS = (2, 3, 14)
RECIPE = {
    "features": {"kind": "prefill", "select": "mean.4", "dim": 50},
    "predictor": "logistic",
}
WORTH = 0.01


def draw(
    whole: RoutingDataset, pool: int, size: int, number: int, *, shuffled: bool
) -> tuple[RoutingDataset, RoutingDataset]:
    """The labelled questions of one draw, and all others."""
    random = np.random.default_rng([pool, size, number, shuffled])
    names = sorted(random.permutation(whole.pool.names)[:pool].tolist())
    data = whole.select(targets=names)
    ids = np.array(data.query_ids, dtype=object)[random.permutation(len(data))]
    if shuffled:
        order = random.permutation(len(data))
        data = replace(data, correct=data.correct[order])
    return data.select(ids[:size].tolist()), data.select(ids[size:].tolist())


def measure_one(
    labelled: RoutingDataset, others: RoutingDataset, states: Sequence[Activations]
) -> dict[str, Any]:
    """What the verdict says of one draw, and what is true."""
    config = FitConfig(recipe=recipe_from_dict(RECIPE), resamples=0)
    fitted = fit_router(labelled, states, config=config)
    verdict = None if fitted.evaluation is None else fitted.evaluation.verdict
    if verdict is None:
        raise AssertionError("a fit without a test part has a verdict")
    predictions = fitted.router.predict(others, stores=states)
    trial = Trial.join(predictions, others, policy=fitted.router.policy)
    if fitted.router.references is None:
        raise AssertionError("a router that was fitted has references")
    return compare(verdict, trial, fitted.router.references, fitted.router.record.chosen)


def compare(
    verdict: Verdict, trial: Trial, references: References, chosen: OperatingPoints | None
) -> dict[str, Any]:
    """What a verdict says, beside what is true on thousands of questions (`trial`)."""
    truth = judge([JudgedPart(trial, references, chosen)], resamples=0)
    return {
        "word": verdict.word,
        "setting": _points(verdict, truth),
        "budgets": {
            name: _interval(gain.gain, truth.budgets[name].gain.value)
            for name, gain in verdict.budgets.items()
            if name in truth.budgets
        },
        "best_gain": max(
            [point.mix.gain.value for point in truth.curve if point.name != "cheapest"], default=0.0
        ),
        "loss": truth.setting.loss.value,
        "cost_share": truth.setting.cost_share,
        "loss_at_half": _loss_at_half(trial),
    }


def _loss_at_half(trial: Trial) -> float:
    best = trial.correct[:, int(np.nanmean(trial.correct, axis=0).argmax())]
    return float(np.nanmean(trial.of_choice(trial.correct, trial.path.at(0.5)) - best))


def _points(verdict: Verdict, truth: Verdict) -> dict[str, Any]:
    setting, true = verdict.setting, truth.setting
    prices = None
    if setting.price is not None and true.price is not None:
        prices = _interval(setting.price.gain, true.price.gain.value)
    return {
        "mix": _interval(setting.mix.gain, true.mix.gain.value),
        "price": prices,
        "loss": _interval(setting.loss, true.loss.value),
    }


def _interval(said: Any, true: float) -> dict[str, float]:
    return {"value": said.value, "lower": said.lower, "upper": said.upper, "true": true}


def summarise(rows: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Shares of a group of draws."""
    words = [row["word"] for row in rows]
    gains = np.array([row["best_gain"] for row in rows])
    budget = [row["budgets"].get("mix", {}).get("true", np.nan) for row in rows]
    best = np.fmax(gains, budget)
    true = np.array([row["setting"]["mix"]["true"] for row in rows])

    def among(word: str) -> np.ndarray:
        return np.array([own == word for own in words])

    loss = np.array([row["loss"] for row in rows])
    return {
        "draws": len(rows),
        "worth_it": int(among("worth it").sum()),
        "worth_it_falsely": int((among("worth it") & (best <= 0)).sum()),
        "cant_tell": int(among("can't tell").sum()),
        "cant_tell_above_a_point": int((among("can't tell") & (best > WORTH)).sum()),
        "not_worth_it": int(among("not worth it").sum()),
        "not_worth_it_above_a_point": int((among("not worth it") & (best > WORTH)).sum()),
        "covered": {
            **{name: _coverage(rows, "setting", name) for name in ("mix", "price", "loss")},
            **{f"budgets, {name}": _coverage(rows, "budgets", name) for name in ("mix", "price")},
        },
        "true_gain": float(true.mean()),
        "true_loss": float(loss.mean()),
        "true_loss_worst_tenth": float(np.quantile(loss, 0.1)),
        "more_than_two_points_lost": float((loss < -0.02).mean()),
        "cost_share": float(np.nanmean([row["cost_share"] for row in rows])),
        "loss_at_lam_one_half": float(np.mean([row["loss_at_half"] for row in rows])),
    }


def _coverage(rows: Sequence[dict[str, Any]], where: str, name: str) -> float:
    held = [row[where][name] for row in rows if row[where].get(name)]
    return float(
        np.mean([interval["lower"] <= interval["true"] <= interval["upper"] for interval in held])
    )


def plan(sizes: Sequence[int], draws: int) -> Iterator[tuple[int, int, int, bool]]:
    """Every draw: the pool, the number of labels, its number, and whether labels are shuffled."""
    for number in range(draws):
        for size in sizes:
            for pool in POOLS:
                yield pool, size, number, False
            if number < draws // 2:
                yield POOLS[number % 3], size, number, True


def main() -> None:
    """Run all draws; what is done is kept after each."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--draws", type=int, default=12)
    parser.add_argument("--only", default=",".join(map(str, SIZES)))
    parser.add_argument("--part", default="0/1", help="the draws of one of several processes")
    arguments = parser.parse_args()
    number, parts = map(int, arguments.part.split("/"))
    place = RESULT.with_suffix(f".{number}.jsonl") if parts > 1 else RESULT.with_suffix(".jsonl")
    dataset = read_dataset(DATA)
    states = gather([Need("minilm")], dataset, (), progress=SilentProgress())
    lines = set(place.read_text().splitlines()) if place.exists() else set()
    rows = [json.loads(line) for line in lines]
    draws = {tuple(row["draw"]) for row in rows}
    for place_in_plan, planned in enumerate(
        plan([int(n) for n in arguments.only.split(",")], arguments.draws)
    ):
        if place_in_plan % parts != number or planned in draws:
            continue
        labelled, others = draw(dataset, *planned[:3], shuffled=planned[3])
        row = {"draw": list(planned), **measure_one(labelled, others, states)}
        with place.open("a") as file:
            file.write(json.dumps(row) + "\n")
    write(sorted(RESULT.parent.glob("verdict*.jsonl")))


def write(places: Sequence[Path]) -> None:
    """Summarise all draws so far."""
    rows = [json.loads(line) for place in places for line in place.read_text().splitlines()]
    groups: dict[str, list[dict[str, Any]]] = {}
    for row in rows:
        _, size, _, shuffled = row["draw"]
        groups.setdefault(f"{'shuffled ' if shuffled else ''}{size}", []).append(row)
    result = {"machine": machine(), "groups": {n: summarise(g) for n, g in groups.items()}}
    files.write_json(RESULT, result)
    for name, group in result["groups"].items():
        print(name, json.dumps(group))


if __name__ == "__main__":
    main()
