"""What predictors learn from labels that may be wrong, and know it.

Labels of the train part are flipped with known probabilities, and what is learned is judged by the
exact labels of other queries. Errors are 10 % or 20 % everywhere, or 20 % in a random half of the
cells, the others being exact. The shared trunk learns from the labels as they are and from their
posteriors (ours, and in a second round those given what was learned from the first). A plain
logistic regression, whose loss can be changed, also does so with weights (1 - 2e)^2, with forward
correction, and from unbiased labels in the loss.
"""

import argparse
import json
import sys
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from benchmarks.__main__ import SKIPPED
from benchmarks._system import machine
from prefill_router import files
from prefill_router.activations import Activations, ActivationStore
from prefill_router.data import RoutingDataset, read_dataset
from prefill_router.evaluation import PairRankings, Ranking, auc_by_target, ones
from prefill_router.features import PromptStates
from prefill_router.features.prefill import PrefillConfig
from prefill_router.fitting import folds_of
from prefill_router.fitting.inputs import correct_labels, posterior
from prefill_router.predictors import Examples, TrunkConfig, out_of_fold

RESULT = Path(__file__).parent / "results" / "label_errors.json"
Array = NDArray[np.float64]
NOISE = {"10 %": (0.1, False), "20 %": (0.2, False), "20 % of half": (0.2, True)}
"""The error of a label, and whether only half of them err."""
STRENGTHS = (0.1, 1.0, 3.0, 10.0)
"""Of the logistic regression's penalty; the best on the first fold's labels is taken."""
JUDGED = 4000


def scores(predictions: Array, correct: Array) -> dict[str, float]:
    """The quality of probabilities."""
    ranked = tuple(Ranking.of(*column) for column in zip(predictions.T, correct.T, strict=True))
    once = ones(len(predictions))
    return {
        "auc": float(np.nanmean(auc_by_target(ranked, once))),
        "choice_auc": float(PairRankings.of(predictions, correct).scores(once)["choice_auc"][0]),
        "brier": float(np.nanmean((predictions - correct) ** 2)),
    }


def flip_labels(correct: Array, noise: str, draw: int) -> tuple[Array, Array]:
    """The labels, some of them wrong, and the probability that each is."""
    random = np.random.default_rng([draw, 5])
    chance, half = random.random(correct.shape), random.random(correct.shape) < 0.5
    error, partly = NOISE[noise]
    errors = np.where(half & partly, 0.0, error)
    return np.where(chance < errors, 1 - correct, correct), errors


def first_prior(predictions: Array, error: Array) -> Array:
    """Predictions of erring labels as predictions of right answers."""
    prior: Array = np.clip((predictions - error.mean()) / (1 - 2 * error.mean()), 0.02, 0.98)
    return prior


def trunk(examples: Examples, truth: Array, error: Array, judged: NDArray[np.float32]) -> Any:
    """The shared trunk's predictions, by the labels that it learned from."""
    config = TrunkConfig().lighter()

    def learn(label: Array) -> tuple[Array, Array]:
        relabelled = replace(examples, correct=label)
        return config.fit(relabelled).predictor.correctness(judged), out_of_fold(
            config, relabelled, seed=0
        )

    label = examples.correct
    yield "exact", config.fit(replace(examples, correct=truth)).predictor.correctness(judged)
    predictions, unseen = learn(label)
    yield "as they are", predictions
    first = posterior(label, error, first_prior(unseen, error))
    predictions, unseen = learn(first)
    yield "posterior, one round", predictions
    second = posterior(label, error, unseen)
    fitted = config.fit(replace(examples, correct=second))
    yield "posterior, two rounds", fitted.predictor.correctness(judged)


def logistic(examples: Examples, truth: Array, error: Array, judged: NDArray[np.float32]) -> Any:
    """A logistic regression's predictions, by its labels, weights and loss."""
    middle, spread = examples.features.mean(axis=0), examples.features.std(axis=0) + 1e-9
    scale = spread * np.sqrt(examples.features.shape[1])
    rows, judged_rows = ((x - middle) / scale for x in (examples.features, judged))
    folds, label = examples.folds, examples.correct
    assert folds is not None
    inside = folds != 0

    def learn(target: Array, weight: Array | None = None, *, forward: bool = False) -> Any:
        def fit(used: NDArray[np.bool_], strength: float) -> Callable[[Array], Array]:
            weights = np.ones(target.shape) if weight is None else weight
            return regression(
                rows[used], target[used], weights[used], error[used] if forward else None, strength
            )

        def loss(strength: float) -> float:
            chances = fit(inside, strength)(rows[~inside])
            wrong = error[~inside]
            label_chances = np.clip((1 - 2 * wrong) * chances + wrong, 1e-6, 1 - 1e-6)
            labels = label[~inside]
            return -float(
                np.nanmean(
                    labels * np.log(label_chances) + (1 - labels) * np.log(1 - label_chances)
                )
            )

        best = min(STRENGTHS, key=loss)
        unseen = np.full(target.shape, np.nan)
        for fold in np.unique(folds):
            unseen[folds == fold] = fit(folds != fold, best)(rows[folds == fold])
        return fit(np.ones(len(rows), dtype=np.bool_), best)(judged_rows), unseen

    yield "exact", learn(truth)[0]
    predictions, unseen = learn(label)
    yield "as they are", predictions
    yield "weights", learn(label, (1 - 2 * error) ** 2)[0]
    yield "forward correction", learn(label, forward=True)[0]
    yield "unbiased labels", learn(correct_labels(label, error))[0]
    first = posterior(label, error, first_prior(unseen, error))
    predictions, unseen = learn(first)
    yield "posterior, one round", predictions
    yield "posterior, two rounds", learn(posterior(label, error, unseen))[0]


def regression(
    rows: Array, label: Array, weight: Array, error: Array | None, strength: float
) -> Callable[[Array], Array]:
    """A logistic regression per target; with errors, its probabilities are those of the labels."""
    known = ~np.isnan(label)
    x, y = torch.tensor(rows, dtype=torch.float64), torch.tensor(np.where(known, label, 0))
    counted = torch.tensor(known * weight)
    slope = torch.zeros(x.shape[1], y.shape[1], dtype=torch.float64, requires_grad=True)
    base = torch.zeros(y.shape[1], dtype=torch.float64, requires_grad=True)
    optimiser = torch.optim.LBFGS([slope, base], max_iter=100, line_search_fn="strong_wolfe")

    def closure() -> Any:
        optimiser.zero_grad()
        odds = x @ slope + base
        if error is None:
            loss = torch.nn.functional.binary_cross_entropy_with_logits(odds, y, reduction="none")
        else:
            e = torch.tensor(error)
            chances = ((1 - 2 * e) * torch.sigmoid(odds) + e).clamp(1e-9, 1 - 1e-9)
            loss = -(y * chances.log() + (1 - y) * (1 - chances).log())
        total = (loss * counted).sum() + strength * (slope**2).sum() / 2
        total.backward()  # type: ignore[no-untyped-call]
        return total

    optimiser.step(closure)  # type: ignore[no-untyped-call]
    a, b = slope.detach().numpy(), base.detach().numpy()
    return lambda at: 1 / (1 + np.exp(-(at @ a + b)))


PREDICTORS: Mapping[str, Any] = {"shared trunk": trunk, "logistic": logistic}


def score_draw(
    data: RoutingDataset, states: Activations, predictor: str, queries: int, draw: int
) -> list[tuple[str, str, dict[str, float]]]:
    """One draw: noise, labels, and the scores."""
    order = np.random.default_rng([queries, draw]).permutation(len(data))
    ids = [data.query_ids[i] for i in order]
    train, test = data.select(ids[:queries]), data.select(ids[queries : queries + JUDGED])
    family = PrefillConfig().fit(train, [states])
    rows, judged = (family.read(PromptStates.of_dataset(p, [states])) for p in (train, test))
    results = []
    for noise in NOISE:
        label, error = flip_labels(train.correct, noise, draw)
        groups, folds = ("",) * queries, folds_of(train, seed=0)
        examples = Examples(rows, label, train.pool.names, groups, folds=folds)
        for name, predictions in PREDICTORS[predictor](examples, train.correct, error, judged):
            results.append((noise, name, scores(predictions, test.correct)))
            print(predictor, draw, *results[-1], flush=True)
    return results


def main() -> None:
    """Draw, flip, learn, judge, and keep the result."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--data", type=Path, help="a dataset; nothing is done without one")
    parser.add_argument("--store", type=Path, help="a store of its states")
    parser.add_argument("--queries", type=int, default=2000)
    parser.add_argument("--draws", type=int, default=2)
    parser.add_argument("--out", type=Path, default=RESULT)
    options = parser.parse_args()
    if options.data is None or options.store is None:
        sys.exit(SKIPPED)
    torch.set_num_threads(1)
    data, states = read_dataset(options.data), ActivationStore.open(options.store)
    table: dict[tuple[str, str, str], list[dict[str, float]]] = {}
    for draw in range(options.draws):
        for predictor in PREDICTORS:
            for noise, name, values in score_draw(data, states, predictor, options.queries, draw):
                table.setdefault((predictor, noise, name), []).append(values)
        rows = [
            {
                **dict(zip(("predictor", "errors", "labels"), key, strict=True)),
                **{name: round(float(np.mean([t[name] for t in values])), 4) for name in values[0]},
                "draws": len(values),
            }
            for key, values in table.items()
        ]
        result = {
            "what": "quality of probabilities learned from labels of which some are wrong",
            "data": options.data.name,
            "queries": options.queries,
            "judged": JUDGED,
            "rows": rows,
            "machine": machine(),
        }
        files.write_json(options.out, result)
    print(json.dumps(rows, indent=1))


if __name__ == "__main__":
    main()
