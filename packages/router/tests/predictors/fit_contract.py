"""What fitting every kind of predictor must hold to, whatever it is made of."""

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np
import pytest
from numpy.typing import NDArray

from packages.router.tests.predictors.contract import check_predictor
from prefill_router.errors import ConfigError, FitError
from prefill_router.predictors import (
    Examples,
    Predictor,
    PredictorConfig,
    PredictorEntry,
    PredictorFit,
)
from prefill_router.statistics import auc_by_target

Array = NDArray[Any]
ROWS = 400


@dataclass(frozen=True, kw_only=True)
class Case:
    """A kind's options, small and quick, and what may be asked of it.

    Attributes:
        config: The options.
        signal: Whether it learns from the features, is given the logits as features, or looks at
            no feature at all.
        noise: Columns that say nothing, beside one per target that does.
        cuts_labels: Whether it cuts soft labels at 0.5; others learn them as they are.
        order_atol: How far another order of the rows may move a probability; None where the method
            draws by rows.
        unlabelled_atol: How far rows without any label may; None where the method learns from them.
        load: Loads what was saved, where that isn't `load_predictor`.
    """

    config: PredictorConfig
    signal: Literal["learnt", "given", "none"] = "learnt"
    noise: int = 3
    cuts_labels: bool = False
    order_atol: float | None = 1e-6
    unlabelled_atol: float | None = 1e-6
    load: Callable[[Any, Any], Predictor] | None = None

    def draw_examples(self, rows: int = ROWS, *, targets: int = 3, seed: int = 0) -> Examples:
        """Rows of which each target's logit is one column."""
        random = np.random.default_rng(seed)
        noise = 0 if self.signal == "given" else self.noise
        features = random.normal(size=(rows, targets + noise)).astype(np.float32)
        features[:, :targets] *= 3
        correct = (random.logistic(size=(rows, targets)) < features[:, :targets]).astype(np.float64)
        names = tuple(f"t{i}" for i in range(targets))
        return Examples(features, correct, names, tuple("ab"[i % 2] for i in range(rows)))

    def fit(self, examples: Examples, *, seed: int = 0) -> PredictorFit:
        """Fit on copies, so that no check sees what another's fit has changed."""
        copies = replace(
            examples, features=examples.features.copy(), correct=examples.correct.copy()
        )
        return self.config.fit(copies, seed=seed)

    def correctness(self, examples: Examples, rows: Array) -> Array:
        """The probabilities of some rows, of the predictor fitted to these examples."""
        return self.fit(examples).predictor.correctness(rows)


def check_fit(case: Case) -> None:
    """Put a kind through all checks."""
    for check in FIT_CHECKS.values():
        check(case)


def check_entries(entries: Mapping[str, PredictorEntry], cases: Mapping[str, Case]) -> None:
    """Check what entries say of themselves, and that each kind's case has its options."""
    for kind, entry in entries.items():
        assert type(cases[kind].config) is entry.config, f"the case {kind!r} is of another kind"
        assert entry.predictor.kind == kind, f"set {entry.predictor.__name__}.kind to {kind!r}"
        assert entry.label, f"give the entry of {kind!r} a label, for tables"
        assert entry.source, f"give the entry of {kind!r} a source, for tables"
    labels = [entry.label for entry in entries.values()]
    assert len(set(labels)) == len(labels), f"two kinds have the same label: {labels}"


def quality(probability: Array, unseen: Examples, base: Array) -> tuple[Array, Array]:
    """The AUC of each target, and its Brier score as a share of that of these base rates."""
    correct = unseen.correct
    brier = ((probability - correct) ** 2).mean(axis=0) / ((base - correct) ** 2).mean(axis=0)
    return auc_by_target(probability, correct), brier


def _check_signal(case: Case) -> None:
    train, unseen = case.draw_examples(), case.draw_examples(seed=1)
    auc, brier = quality(case.correctness(train, unseen.features), unseen, train.base_rates)
    if case.signal == "none":
        assert np.allclose(auc, 0.5), "AUC without looking at features"
        np.testing.assert_allclose(brier, 1, rtol=1e-4)
        return
    assert auc.mean() > 0.7, f"AUC on unseen rows: {auc}"
    assert brier.mean() < 0.9, f"Brier score on unseen rows, of the base rates' own: {brier}"
    if case.signal == "learnt":
        order = np.random.default_rng(2).permutation(ROWS)
        shuffled = replace(train, correct=train.correct[order])
        values = quality(case.correctness(shuffled, unseen.features), unseen, train.base_rates)
        assert values[1].mean() > 0.9, f"Brier score learnt from shuffled labels: {values[1]}"


def _check_missing_labels(case: Case) -> None:
    train, unseen = case.draw_examples(), case.draw_examples(seed=1)
    correct = train.correct.copy()
    right = correct[:, 0] == 1
    correct[right & (np.arange(ROWS) % 3 > 0), 0] = np.nan  # two of three right answers
    masked = replace(train, correct=correct)
    probability = case.correctness(masked, unseen.features)
    auc, _ = quality(probability, unseen, train.base_rates)
    assert case.signal == "none" or auc.min() > 0.65, f"AUC with missing labels: {auc}"
    if case.signal != "given":
        wrong, measured = np.nan_to_num(correct[:, 0]).mean(), np.nanmean(correct[:, 0])
        mean = probability[:, 0].mean()
        assert mean > (wrong + measured) / 2, f"missing labels were counted as wrong: {mean}"


def _check_rows_without_labels(case: Case) -> None:
    train, rows = case.draw_examples(), case.draw_examples(30, seed=1).features
    more = np.concatenate([train.features, 2 * rows])
    correct = np.concatenate([train.correct, np.full((30, 3), np.nan)])
    longer = Examples(more, correct, train.targets, train.groups + ("a",) * 30)
    actual = case.correctness(longer, rows)
    assert np.isfinite(actual).all()
    if case.unlabelled_atol is not None:
        expected = case.correctness(train, rows)
        np.testing.assert_allclose(actual, expected, rtol=0, atol=case.unlabelled_atol)


def _check_unlearnable_targets(case: Case) -> None:
    train, unseen = case.draw_examples(targets=5), case.draw_examples(targets=5, seed=1)
    correct = train.correct.copy()
    correct[:, 1], correct[:, 3] = 1, np.nan
    part = replace(train, correct=correct)
    fit = case.fit(part)
    probability = fit.predictor.correctness(unseen.features)
    for i in (1, 3):
        np.testing.assert_allclose(probability[:, i], part.base_rates[i], rtol=1e-4)
    assert set(part.target_notes()) <= set(fit.notes), f"the notes are {fit.notes}"
    if case.signal != "none":
        auc, _ = quality(probability, unseen, train.base_rates)
        assert auc[[0, 2, 4]].min() > 0.65, f"AUC of the others: {auc}"


def _check_seed(case: Case) -> None:
    train = case.draw_examples(200)
    first, second = case.fit(train, seed=3), case.fit(train, seed=3)
    assert first.notes == second.notes
    assert first.predictor.to_dict() == second.predictor.to_dict()
    tensors = first.predictor.tensors(), second.predictor.tensors()
    assert list(tensors[0]) == list(tensors[1])
    for name in tensors[0]:
        assert np.array_equal(tensors[0][name], tensors[1][name]), f"{name} differs"


def _check_order_of_rows(case: Case) -> None:
    train, rows = case.draw_examples(200), case.draw_examples(30, seed=1).features
    order = np.random.default_rng(3).permutation(200)
    groups = tuple(train.groups[i] for i in order)
    other = Examples(train.features[order], train.correct[order], train.targets, groups)
    expected, actual = case.correctness(train, rows), case.correctness(other, rows)
    if case.order_atol is not None:
        np.testing.assert_allclose(expected, actual, rtol=0, atol=case.order_atol)


def _arguments(case: Case) -> None:
    train, rows = case.draw_examples(100), case.draw_examples(30, seed=1).features
    before = train.features.copy(), train.correct.copy()
    predictor = case.config.fit(train, seed=0).predictor
    assert np.array_equal(train.features, before[0])
    assert np.array_equal(train.correct, before[1], equal_nan=True)
    expected = predictor.correctness(rows)
    train.features[:], train.correct[:] = 7, 0
    assert np.array_equal(predictor.correctness(rows), expected), "it isn't frozen"


def _few(case: Case) -> None:
    single, unseen = case.draw_examples(targets=1), case.draw_examples(targets=1, seed=1)
    auc, _ = quality(case.correctness(single, unseen.features), unseen, single.base_rates)
    assert case.signal == "none" or auc[0] > 0.7, f"AUC of a single target: {auc}"
    features = case.draw_examples().features
    for rows in (2, 3, 5):
        labels = np.repeat(np.arange(rows) % 2.0, 3).reshape(-1, 3)
        _check_defined(case, Examples(features[:rows], labels, ("a", "b", "c"), ("",) * rows))


def _soft_labels(case: Case) -> None:
    train, unseen = case.draw_examples(), case.draw_examples(seed=1)
    soft = replace(train, correct=np.where(train.features[:, :3] > 0, 0.6, 0.2))
    probability = case.correctness(soft, unseen.features)
    above = unseen.features[:, :3] > 0
    if case.signal == "learnt":
        assert auc_by_target(probability, above.astype(np.float64)).min() > 0.7
        spread = probability[above].mean(), probability[~above].mean()
        assert case.cuts_labels == (spread[0] > 0.7), f"soft labels of 0.6 and 0.2: {spread}"


def _odd_features(case: Case) -> None:
    train = case.draw_examples(60)
    for features in (
        np.ones_like(train.features),
        np.zeros_like(train.features),
        np.concatenate([train.features[:1]] * 40 + [train.features[:20]]),
        1e6 * train.features,
        1e-6 * train.features,
    ):
        _check_defined(case, replace(train, features=features))


def _check_defined(case: Case, examples: Examples) -> None:
    """Check that a fit gives a sound predictor or an error with the reason."""
    try:
        fit = case.fit(examples)
    except (FitError, ConfigError):
        return
    probability = fit.predictor.correctness(examples.features)
    assert np.isfinite(probability).all()
    assert ((probability >= 0) & (probability <= 1)).all()


def _check_nothing_to_learn(case: Case) -> None:
    train = case.draw_examples(20)
    for labels in (np.nan, 0.0, 1.0):
        with pytest.raises(FitError, match="nothing to learn"):
            case.fit(replace(train, correct=np.full_like(train.correct, labels)))


def _record(case: Case) -> None:
    fit = case.fit(case.draw_examples(100))
    json.dumps(dict(fit.training), allow_nan=False)
    assert all(isinstance(note, str) for note in fit.notes)


def _predictor(case: Case) -> None:
    train = case.draw_examples(100)
    predictor = case.fit(train).predictor
    assert predictor.targets == train.targets
    rows = case.draw_examples(9, seed=1).features
    if case.load is None:
        check_predictor(predictor, rows)
    else:
        check_predictor(predictor, rows, load=case.load)


FIT_CHECKS: Mapping[str, Callable[[Case], None]] = {
    "signal": _check_signal,
    "missing labels": _check_missing_labels,
    "rows without labels": _check_rows_without_labels,
    "unlearnable targets": _check_unlearnable_targets,
    "same seed": _check_seed,
    "order of rows": _check_order_of_rows,
    "arguments": _arguments,
    "few": _few,
    "soft labels": _soft_labels,
    "odd features": _odd_features,
    "nothing to learn": _check_nothing_to_learn,
    "record": _record,
    "predictor": _predictor,
}
