"""What layers know, against scikit-learn on the same folds, and its figure."""

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
from sklearn.decomposition import PCA
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import roc_auc_score
from sklearn.metrics.pairwise import cosine_similarity
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from packages.router.tests.fakes.planted_signal import PLANTED, states_of
from prefill_router.activations import MemoryActivations, Site
from prefill_router.data import RoutingDataset, stratified_folds
from prefill_router.layers import mean_over_targets, search, survey
from prefill_router.plotting import Figure
from prefill_router.testing import FakeEncoder, make_routing_dataset
from prefill_router_lab.depth import (
    DepthOptions,
    DepthProfile,
    depth_profile,
    draw_depth,
    figures,
    neighbour_votes,
)

SITES = tuple(Site(layer, pooling) for layer in (2, PLANTED) for pooling in ("mean", "rest"))
HERE = Site(PLANTED, "rest")
DIM = 6
OPTIONS = DepthOptions(dim=DIM)


def rename_groups(dataset: RoutingDataset, **names: Any) -> RoutingDataset:
    """The queries with other benchmarks or domains, by a function of their number."""
    queries = tuple(
        dataclasses.replace(query, **{field: name(i) for field, name in names.items()})
        for i, query in enumerate(dataset.queries)
    )
    return RoutingDataset.of(queries, dataset.pool, dataset.correct)


ANSWERS = rename_groups(
    make_routing_dataset(queries=240, targets=3, missing=0.15), benchmark=lambda _: "b"
)
STATES = states_of(ANSWERS, sites=SITES)


@pytest.fixture(scope="module")
def profile() -> DepthProfile:
    return depth_profile(STATES, ANSWERS, OPTIONS, sites=SITES)


def sklearn_scores(labels: np.ndarray, folds: np.ndarray, states: np.ndarray) -> np.ndarray:
    """The out-of-fold score of every row by scikit-learn's scaler, PCA and logistic regression."""
    scores = np.empty(len(labels))
    for fold in range(5):
        train, unseen = folds != fold, folds == fold
        reduce = make_pipeline(StandardScaler(), PCA(DIM, svd_solver="full")).fit(states[train])
        known = train & ~np.isnan(labels)
        probe = LogisticRegression(solver="newton-cholesky", tol=1e-8)
        probe.fit(reduce.transform(states[known]), labels[known])
        scores[unseen] = probe.decision_function(reduce.transform(states[unseen]))
    return scores


def sklearn_auc(labels: np.ndarray, scores: np.ndarray, rows: np.ndarray) -> float:
    known = rows & ~np.isnan(labels)
    return float(roc_auc_score(labels[known], scores[known]))


@pytest.mark.slow
def test_probes_are_those_of_scikit_learn_on_the_same_folds(profile: DepthProfile) -> None:
    folds = stratified_folds(ANSWERS, count=5, seed=0)
    domains = np.array([query.domain for query in ANSWERS.queries])
    assert np.isnan(ANSWERS.correct).any()
    for i, site in enumerate(profile.sites):
        states = STATES.read(site, ANSWERS.prompt_keys)
        for k, labels in enumerate(ANSWERS.correct.T):
            scores = sklearn_scores(labels, folds, states)
            by_fold = [sklearn_auc(labels, scores, folds == fold) for fold in range(5)]
            assert profile.grid.auc[i, 0, k] == pytest.approx(np.mean(by_fold), abs=1e-3)
            for j, subject in enumerate(profile.subjects):
                expected = sklearn_auc(labels, scores, domains == subject)
                assert profile.by_subject[i, j, k] == pytest.approx(expected, abs=2e-3)


def test_one_pass_gives_what_survey_and_search_do(profile: DepthProfile) -> None:
    grid = search(STATES, ANSWERS, sites=SITES, dims=(DIM,), seed=0)
    np.testing.assert_array_equal(profile.grid.auc, grid.auc)
    geometry = survey(STATES, ANSWERS, sites=SITES, dim=DIM)
    np.testing.assert_array_equal(profile.survey.fisher, geometry.fisher)


def test_votes_are_those_of_the_nearest_others_that_were_measured(profile: DepthProfile) -> None:
    for i, site in enumerate(profile.sites):
        scaled = StandardScaler().fit_transform(
            STATES.read(site, ANSWERS.prompt_keys).astype(np.float64)
        )
        near = cosine_similarity(scaled)
        np.fill_diagonal(near, -np.inf)
        nearest = np.argsort(-near, axis=1)[:, :25]
        expected = np.nanmean(ANSWERS.correct[nearest], axis=1)
        votes = neighbour_votes(STATES, ANSWERS, site=site)
        np.testing.assert_allclose(votes, expected, atol=1e-12)
        assert profile.votes is not None
        everywhere = np.ones(len(ANSWERS), np.bool_)
        for k, labels in enumerate(ANSWERS.correct.T):
            auc = sklearn_auc(labels, expected[:, k], everywhere)
            assert profile.votes[i, k] == pytest.approx(auc, abs=1e-12)


def test_nobody_votes_on_the_same_prompt_or_without_a_label() -> None:
    twice = RoutingDataset.of(
        tuple(
            dataclasses.replace(query, id=f"{query.id} {copy}")
            for copy in range(2)
            for query in ANSWERS.queries[:3]
        ),
        ANSWERS.pool,
        np.array([[1, 0, 1], [0, 0, np.nan], [1, 1, np.nan]] * 2),
    )
    votes = neighbour_votes(STATES, twice, site=HERE)
    expected = np.array([[0.5, 0.5, np.nan], [1, 0.5, 1], [0.5, 0, 1]] * 2)
    np.testing.assert_allclose(votes, expected)


def test_a_target_is_judged_within_a_subject_where_it_has_ten_labels_of_either_class() -> None:
    correct = ANSWERS.correct.copy()
    rare = np.arange(len(ANSWERS)) % 3 == 1
    correct[rare, 1] = 1.0
    correct[np.flatnonzero(rare)[:9], 1] = 0.0
    answers = RoutingDataset.of(ANSWERS.queries, ANSWERS.pool, correct)
    profile = depth_profile(STATES, answers, OPTIONS, sites=[HERE])
    here = profile.subjects.index("domain-1")
    assert np.isnan(profile.by_subject[0, here]).tolist() == [False, True, False]
    means = profile.subject_means()["domain-1"]
    assert means[0] == pytest.approx(profile.by_subject[0, here, [0, 2]].mean())


def test_subjects_are_domains_or_benchmarks_or_both() -> None:
    by_domain = rename_groups(ANSWERS, domain=lambda i: f"d{i % 2}")
    assert depth_profile(STATES, by_domain, OPTIONS, sites=[HERE]).subjects == ("d0", "d1")
    by_both = rename_groups(by_domain, benchmark=lambda i: f"b{i % 2}")
    assert depth_profile(STATES, by_both, OPTIONS, sites=[HERE]).subjects == ("b0 / d0", "b1 / d1")
    none = rename_groups(ANSWERS, domain=lambda _: "")
    assert depth_profile(STATES, none, OPTIONS, sites=[HERE]).subjects == ("b",)
    unknown = rename_groups(ANSWERS, benchmark=lambda _: "", domain=lambda _: "")
    profile = depth_profile(STATES, unknown, OPTIONS, sites=[HERE])
    assert profile.subjects == ()
    assert profile.subject_means() == {}


def wide(count: int) -> DepthProfile:
    """A profile of one site and many subjects, by hand."""
    profile = depth_profile(STATES, ANSWERS, OPTIONS, sites=[HERE])
    auc = np.linspace(0.5, 0.9, 3 * count).reshape(1, count, 3)
    names = tuple(f"subject {i} with a name of \\alpha_{i}$ letters and more" for i in range(count))
    return dataclasses.replace(profile, subjects=names, by_subject=auc)


def test_the_mean_of_the_others_stands_for_the_subjects_after_the_twentieth() -> None:
    profile = wide(23)
    means = profile.subject_means()
    assert list(means)[:-1] == list(profile.subjects[:20])
    assert means["mean of 3 others"] == pytest.approx(profile.by_subject[:, 20:].mean())


def draw_numbers(
    profiles: list[DepthProfile], folder: Path, monkeypatch: pytest.MonkeyPatch
) -> tuple[list[float], pl.DataFrame]:
    """Every number in the figure, and its data file."""
    drawings: list[Figure] = []
    monkeypatch.setattr(
        figures,
        "FigureCanvasAgg",
        lambda figure, make=figures.FigureCanvasAgg: (drawings.append(figure), make(figure)),
    )
    paths = draw_depth(profiles, folder)
    assert [path.name for path in paths] == ["depth.png", "depth.svg", "depth.csv"]
    axes = [a for a in drawings[0].axes if a.get_label() != "<colorbar>"]
    lines = [line.get_xydata() for a in axes for line in a.get_lines()]
    cells = [image.get_array() for a in axes for image in a.get_images()]
    numbers = np.concatenate([np.ravel(part) for part in (*lines, *cells)])
    return numbers[np.isfinite(numbers)].tolist(), pl.read_csv(paths[2])


@pytest.mark.slow
def test_the_data_file_has_every_number_of_the_figure(
    profile: DepthProfile, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = dataclasses.replace(profile, encoder="other", num_layers=7)
    for profiles in ([profile, other], [wide(23)]):
        numbers, table = draw_numbers(profiles, tmp_path, monkeypatch)
        columns = ("depth", "fisher", "probe_auc", "votes_auc")
        values = {value for name in columns for value in table[name].drop_nulls().to_list()}
        assert len(numbers) > 8
        assert set(numbers) <= values
        over_subjects = table.filter(pl.col("subject").is_null())
        assert len(over_subjects) == sum(len(each.sites) for each in profiles)
        expected = np.concatenate([mean_over_targets(each.grid.auc[:, 0]) for each in profiles])
        np.testing.assert_allclose(over_subjects["probe_auc"], expected)


def test_the_planted_layer_knows_most() -> None:
    answers = make_routing_dataset(queries=200)
    layers = range(FakeEncoder().num_layers + 1)
    states: MemoryActivations = states_of(answers, sites=[Site(i, "rest") for i in layers])
    readings = depth_profile(states, answers, OPTIONS, sites=states.sites).readings()
    assert {name: int(values.argmax()) for name, values in readings.items()} == dict.fromkeys(
        ("fisher", "probe_auc", "votes_auc"), PLANTED
    )
