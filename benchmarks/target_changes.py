"""How soon changes are noticed, and how often a false one is reported: made-up traffic.

Five targets answer 10,000 requests. The router's predictions are off by noise, a judge that errs in
one of ten cases scores two of five answers, and ten anchors are asked after every hundred requests
of a target, or twenty while it is suspected, after forty at first; nine of ten answers to an anchor
are the same again. In the middle a target is exchanged for a worse one, or its price doubles, or
the mix of requests drifts over 200 requests; or nothing changes.
"""

import argparse
import itertools
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks._system import machine
from prefill_router import files
from prefill_router_gateway.learning import (
    AnchorExpectation,
    ChangeSettings,
    QualityWatch,
    TargetChange,
    mix_change,
    price_change,
)

RESULT = Path(__file__).parent / "results" / "target_changes.json"
TARGETS, REQUESTS, ANCHORS, EVERY, OFTEN, SUSPICIOUS = 5, 10_000, 10, 100, 20, 0.4
LABELLED, JUDGE_ERRS, NOISE, PANEL, FIRST, ANEW = 0.4, 0.1, 0.4, 400, 40, 0.1
HERE = REQUESTS // TARGETS // 2
"""The request of a target at which it changes."""
EITHER = ChangeSettings(false_alarms=0.025)
"""Worse and better are tested apart, as `learn` does."""
Values = NDArray[np.float64]


def logistic(values: Values) -> Values:
    """From log-odds to probabilities."""
    return 1 / (1 + np.exp(-values))


def judge(right: Values, rng: np.random.Generator) -> Values:
    """What the judge says of answers."""
    grades: Values = np.where(rng.random(right.shape) < JUDGE_ERRS, 1 - right, right)
    return grades


class Anchors:
    """Questions that a target answered right, as the judge says; ten are asked at a time.

    A target mostly gives the same answer again, and the judge says the same of it; a share of the
    answers is drawn anew, and all are once the target is another.
    """

    def __init__(self, rng: np.random.Generator) -> None:
        self._rng, self._lower, self._expected = rng, 0.0, AnchorExpectation()
        self._odds = rng.normal(1.0, 1.2, 2 * PANEL)
        self._grades = self._draw_grades(0.0)
        right = np.flatnonzero(self._grades == 1)[:PANEL]
        self._odds, self._grades = self._odds[right], self._grades[right]
        self._turn = itertools.cycle(range(len(right)))
        self._last = self._grades.copy()
        for _ in range(FIRST // ANCHORS):  # so that repetition is known
            self.ask(0.0)

    def ask(self, lower: float) -> tuple[list[float], list[float]]:
        """Ask the next few: the judge's grades, and those that were expected."""
        if lower != self._lower:
            self._lower, self._grades = lower, self._draw_grades(lower)
        part = [next(self._turn) for _ in range(ANCHORS)]
        expected = [self._expected.after(self._last[place]) for place in part]
        anew, grades = self._rng.random(len(self._odds)) < ANEW, self._draw_grades(lower)
        for place in part:
            if anew[place]:
                self._grades[place] = grades[place]
            self._expected.add(self._last[place], self._grades[place])
            self._last[place] = self._grades[place]
        return [float(self._grades[place]) for place in part], expected

    def _draw_grades(self, lower: float) -> Values:
        right = (self._rng.random(len(self._odds)) < logistic(self._odds - lower)).astype(
            np.float64
        )
        return judge(right, self._rng)


def quality(seed: int, *, fall: float) -> tuple[int | None, bool, int]:
    """When a target's change is noticed, and what was asked of the others.

    Returns:
        After how many of its requests it was; whether any alarm was false; how many anchors were
        asked of the targets that didn't change.
    """
    runs = [
        watch_target(seed, target, fall=fall if target == 0 else 0.0) for target in range(TARGETS)
    ]
    false = any(at is not None for at, _ in runs[1:]) or (
        runs[0][0] is not None and (fall == 0 or runs[0][0] < 0)
    )
    return (None if false else runs[0][0]), false, sum(count for _, count in runs[1:])


def watch_target(seed: int, target: int, *, fall: float) -> tuple[int | None, int]:
    """The request of the alarm, counted from the real change, and the number of anchors asked."""
    rng = np.random.default_rng([seed, target])
    odds = rng.normal(1.0, 1.2, REQUESTS // TARGETS)
    anchors, count = Anchors(rng), 0
    watch, better = QualityWatch("t", EITHER), QualityWatch("t", EITHER)
    for request in range(len(odds)):
        lower = fall if request >= HERE else 0.0
        if rng.random() < LABELLED:
            right = float(rng.random() < logistic(odds[request] - lower))
            prediction = float(logistic(odds[request] + rng.normal(0, NOISE)))
            grade = float(judge(np.array(right), rng))
            watch.add(grade, prediction, error=JUDGE_ERRS)
            better.add(1 - grade, 1 - prediction, error=JUDGE_ERRS)
        if request % (OFTEN if watch.suspicion > SUSPICIOUS else EVERY) == 0:
            count += ANCHORS
            for again, expected in zip(*anchors.ask(lower), strict=True):
                watch.add(again, expected)
        if watch.change is not None or better.change is not None:
            return request - HERE, count
    return None, count


def price(seed: int, *, times: float) -> tuple[int | None, bool]:
    """The same of prices; a tenth of the answers is billed with a discount for cached tokens."""
    rng = np.random.default_rng(seed)
    list_prices = rng.lognormal(-7, 1, REQUESTS // TARGETS)
    prices_paid = list_prices * np.where(rng.random(len(list_prices)) < 0.1, 0.6, 1.0)
    prices_paid[HERE:] *= times
    change = price_change("t", prices_paid, list_prices)
    return _delay(change, changed=times != 1)


def mix(seed: int, *, shift: float) -> tuple[int | None, bool]:
    """The same of the mix: predictions for each target, whose level drifts over 200 requests."""
    rng = np.random.default_rng(seed)
    loads = rng.normal(1, 0.3, TARGETS)

    def draw_predictions(count: int, lower: Values) -> Values:
        hard = rng.normal(0, 1, count) - lower
        return logistic(hard[:, None] * loads + rng.normal(0, 0.5, (count, TARGETS)))

    drift = np.clip((np.arange(REQUESTS) - HERE) / 200, 0, 1) * shift
    names = tuple(f"t{k}" for k in range(TARGETS))
    change = mix_change(
        draw_predictions(2000, np.zeros(2000)), draw_predictions(REQUESTS, drift), names=names
    )
    return _delay(change, changed=shift != 0)


def _delay(change: TargetChange | None, *, changed: bool) -> tuple[int | None, bool]:
    if change is None:
        return None, False
    early = not changed or change.alarm < HERE
    return (None, True) if early else (change.alarm - HERE, False)


def summarise(runs: list[tuple[Any, ...]]) -> dict[str, Any]:
    """How many were noticed within 300 requests, and how late the middle one was."""
    delays = sorted(10**9 if delay is None else delay for delay, *_ in runs)
    return {
        "of": len(runs),
        "noticed within 300 requests": sum(delay <= 300 for delay in delays),
        "median requests": delays[len(delays) // 2],
        "19 of 20 within": delays[19 * len(delays) // 20 - 1],
        "false alarms before": sum(false for _, false, *_ in runs),
    }


def main() -> None:
    """Draw, and write the result."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=20)
    seeds = range(parser.parse_args().seeds)
    many = range(10 * len(seeds))
    same = [quality(seed, fall=0.0) for seed in many]
    result = {
        "machine": machine(),
        "targets": TARGETS,
        "requests": REQUESTS,
        "share of answers that are judged": LABELLED,
        "judge errs": JUDGE_ERRS,
        "exchanged for a worse one (log-odds lower by 1.5)": summarise(
            [quality(seed, fall=1.5) for seed in many]
        ),
        "a little worse (log-odds lower by 0.7)": summarise(
            [quality(seed, fall=0.7) for seed in many]
        ),
        "price doubles": summarise([price(seed, times=2.0) for seed in seeds]),
        "mix drifts (log-odds lower by 1)": summarise([mix(seed, shift=1.0) for seed in seeds]),
        "nothing changes: false alarms": {
            "quality": sum(false for _, false, _ in same),
            "of": len(many),
            "price": sum(price(seed, times=1.0)[1] for seed in seeds),
            "mix": sum(mix(seed, shift=0.0)[1] for seed in seeds),
            "price and mix of": len(seeds),
        },
        "anchors asked of a target in 2,000 requests, nothing changed": round(
            sum(asked for *_, asked in same) / len(same) / (TARGETS - 1)
        ),
    }
    files.write_json(RESULT, result)
    print(files.as_json(result))


if __name__ == "__main__":
    main()
