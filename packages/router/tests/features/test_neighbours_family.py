"""Neighbour statistics: against a loop, what they leave out, and that a loaded one is the same."""

from dataclasses import replace

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy.stats import rankdata

from packages.router.tests.fakes.planted_signal import (
    PLANTED,
    permute_rows,
    relabel,
    shuffle_labels,
    states_of,
)
from packages.router.tests.features.family_contract import check_family
from prefill_router.activations import Activations, MemoryActivations, Site
from prefill_router.data import Query, RoutingDataset, prompt_key
from prefill_router.errors import ConfigError, FitError
from prefill_router.features import PromptStates, neighbours
from prefill_router.features.base import FAMILIES
from prefill_router.features.neighbours import (
    Kernel,
    Neighbours,
    NeighboursConfig,
    neighbour_statistics,
)
from prefill_router.neighbours import NeighbourIndex
from prefill_router.testing import FakeEncoder, make_routing_dataset

pytestmark = pytest.mark.slow

SITE = Site(PLANTED, "mean")
CONFIG = NeighboursConfig(encoder="fake", site=SITE.name, ks=(2, 5, 20))


def states(dataset: RoutingDataset, *, rounding: str = "bfloat16") -> Activations:
    return FakeEncoder().encode(dataset.queries, [SITE], rounding=rounding)


def parts(dataset: RoutingDataset, count: int) -> tuple[RoutingDataset, RoutingDataset]:
    ids = dataset.query_ids
    return dataset.select(ids[:count]), dataset.select(ids[count:])


def fit_family(dataset: RoutingDataset, config: NeighboursConfig = CONFIG) -> Neighbours:
    return config.fit(dataset, [states(dataset)])


def columns(family: Neighbours, dataset: RoutingDataset) -> NDArray[np.float32]:
    return family.read(PromptStates.of_dataset(dataset, [states(dataset)]))


def statistics_of_query(
    distances: NDArray[np.float64],
    labels: NDArray[np.float64],
    prior: float,
    kernel: Kernel,
    smoothing: float = 0,
) -> list[float]:
    """The statistics of one query, target and K, as their docstring says them."""
    far = float(distances.max())
    is_known = ~np.isnan(labels)
    d, y = distances[is_known], labels[is_known]
    w = {
        "gaussian": np.exp(-((d / far) ** 2) / 2),
        "inverse": far / np.maximum(d, 1e-3 * far),
        "exponential": np.exp(-4 * (d**2 - distances.min() ** 2)),
    }[kernel]
    a = smoothing
    return [
        float((y.sum() + a * prior) / (len(y) + a)) if len(y) else prior,
        float(((w * y).sum() + a * prior) / (w.sum() + a)) if len(y) else prior,
        float((y * d).sum() / y.sum()) if y.sum() else far,
        float(((1 - y) * d).sum() / (1 - y).sum()) if (1 - y).sum() else far,
    ]


@pytest.mark.parametrize("smoothing", [0.0, 3.0])
@pytest.mark.parametrize("kernel", ["inverse", "gaussian", "exponential"])
@pytest.mark.parametrize("soft", [False, True])
def test_statistics_are_those_of_a_loop(kernel: Kernel, soft: bool, smoothing: float) -> None:
    random = np.random.default_rng(0)
    vectors = random.normal(size=(60, 4)).astype(np.float32)
    correct = random.random((60, 3)) if soft else random.integers(0, 2, (60, 3))
    correct = correct.astype(np.float32)
    correct[random.random((60, 3)) < 0.3] = np.nan
    correct[:, 2] = np.where(np.isnan(correct[:, 2]), np.nan, 1)
    keys = [f"k{row // 2}" for row in range(60)]
    queries, own, ks = vectors[:20].copy(), [*keys[:18], "new", "newer"], (1, 4, 100)
    queries[18:] += 0.1
    statistics = neighbour_statistics(
        NeighbourIndex.of(vectors, keys),
        correct,
        queries,
        own,
        ks=ks,
        kernel=kernel,
        smoothing=smoothing,
    )
    for q, query in enumerate(queries.astype(np.float64)):
        distances = np.sqrt(((vectors - query) ** 2).sum(axis=1))
        order = [r for r in np.argsort(distances, kind="stable") if keys[r] != own[q]]
        for i, k in enumerate(ks):
            for t in range(3):
                labels = correct[order[:k], t].astype(np.float64)
                prior = float(np.nanmean(correct[:, t].astype(np.float64)))
                expected = statistics_of_query(
                    distances[order[:k]], labels, prior, kernel, smoothing
                )
                np.testing.assert_allclose(statistics[q, 12 * i + t : 12 * (i + 1) : 3], expected)


@pytest.mark.parametrize("missing", [0.0, 0.3])
def test_keeps_the_contract(missing: float) -> None:
    train, test = parts(make_routing_dataset(queries=60, missing=missing), 50)
    queries = [*train.queries[:4], *test.queries]
    reading = PromptStates.of(
        [query.prompt for query in queries],
        [FakeEncoder().encode(queries, [SITE], rounding="bfloat16")],
    )
    check_family(fit_family(train), reading)
    check_family(fit_family(train, replace(CONFIG, normalise=False, kernel="gaussian")), reading)
    smooth = replace(CONFIG, standardise=True, kernel="exponential", smoothing=3.0)
    family = fit_family(train, replace(smooth, statistics=("weighted share",)))
    check_family(family, reading, may_lack=["smoothing"])


def test_some_statistics_are_the_columns_of_all() -> None:
    train, test = parts(make_routing_dataset(queries=60), 50)
    every = columns(fit_family(train), test).reshape(10, 3, 4, 3)  # by K, statistic and target
    some = replace(CONFIG, statistics=("distance where right", "share"))
    statistics = columns(fit_family(train, some), test).reshape(10, 3, 2, 3)
    np.testing.assert_array_equal(statistics, every[:, :, [2, 0]])


def test_standardised_dimensions_count_alike() -> None:
    train = make_routing_dataset(queries=80)
    activations = states(train, rounding="float32")
    rows = activations.read(SITE, train.prompt_keys)
    large = rows * np.where(np.arange(rows.shape[1]) == 3, 1024, 1).astype(np.float32)
    config = replace(CONFIG, standardise=True, normalise=False)
    first, second = (
        config.fit(
            train,
            [
                MemoryActivations(
                    activations.provenance, train.prompt_keys, {SITE: r}, activations.counts
                )
            ],
        )
        for r in (rows, large)
    )
    np.testing.assert_allclose(first.vectors, second.vectors, atol=1e-4)
    np.testing.assert_allclose(first.vectors.std(axis=0, ddof=1), 1, atol=1e-4)


def test_of_many_rows_some_are_searched_whatever_their_order(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(neighbours, "MOST_SEARCHED", 30)
    train, test = parts(make_routing_dataset(queries=60), 50)
    backwards = train.select(train.query_ids[::-1])
    first, second = fit_family(train), fit_family(backwards)
    assert first.keys.shape == (30, 32)
    assert {key.tobytes() for key in first.keys} == {key.tobytes() for key in second.keys}
    np.testing.assert_allclose(columns(first, test), columns(second, test), atol=1e-5)
    chosen = train.select(
        [
            q.id
            for q in train.queries
            if bytes.fromhex(prompt_key(q.prompt)) in {key.tobytes() for key in first.keys}
        ]
    )
    np.testing.assert_array_equal(columns(first, test), columns(fit_family(chosen), test))


def test_options_that_are_none() -> None:
    for wrong in ({"statistics": ()}, {"statistics": ("share", "share")}, {"smoothing": -1.0}):
        with pytest.raises(ConfigError, match=next(iter(wrong))):
            replace(CONFIG, **wrong)


def test_the_module_s_entry_is_found() -> None:
    entry = FAMILIES.find("neighbours")
    assert (entry.config, entry.family) == (NeighboursConfig, Neighbours)


def test_neighbours_know_what_the_states_know() -> None:
    train, test = parts(make_routing_dataset(queries=400), 300)
    expected = columns(fit_family(train), test)
    unknown = columns(fit_family(shuffle_labels(train)), test)
    shares = expected[:, 24:27]  # of the twenty nearest
    for target in range(3):
        assert area(shares[:, target], test.correct[:, target]) > 0.8
        assert 0.3 < area(unknown[:, 24 + target], test.correct[:, target]) < 0.7


def area(scores: NDArray[np.float32], labels: NDArray[np.float64]) -> float:
    ranks, right = rankdata(scores), labels > 0.5
    count = right.sum()
    return float((ranks[right].sum() - count * (count + 1) / 2) / (count * (~right).sum()))


def test_a_train_row_is_never_its_own_neighbour() -> None:
    train = make_routing_dataset(queries=80)
    flipped = train.correct.copy()
    flipped[7] = 1 - flipped[7]
    family, changed = fit_family(train), fit_family(relabel(train, flipped))
    before, after = family.read(states_of_row(train, 7)), changed.read(states_of_row(train, 7))
    assert np.array_equal(*(unscale(f, c) for f, c in ((family, before), (changed, after))))
    neighbour = family.index.search(family.index.vectors[[7]], 1, [family.index.keys[7]])[1][0, 0]
    moved = changed.read(states_of_row(train, int(neighbour)))
    assert not np.array_equal(moved, family.read(states_of_row(train, int(neighbour))))


def states_of_row(dataset: RoutingDataset, row: int) -> PromptStates:
    return PromptStates.of([dataset.queries[row].prompt], [states(dataset)])


def unscale(family: Neighbours, scores: NDArray[np.float32]) -> NDArray[np.float64]:
    scaled = scores * family.standard.scale.astype(np.float64) + family.standard.mean
    return np.round(scaled, 5)


def test_rows_of_the_same_prompt_are_left_out_with_it() -> None:
    train = make_routing_dataset(queries=60)
    again = [replace(query, id=f"again-{query.id}") for query in train.queries]
    doubled = RoutingDataset.of(
        [*train.queries, *again], train.pool, np.concatenate([train.correct, 1 - train.correct])
    )
    family = fit_family(doubled)
    assert np.array_equal(family.standard.mean[:3], [0.5, 0.5, 0.5])  # a pair for each neighbour
    assert not columns(family, train)[:, :3].any()
    distances, _ = family.index.search(family.index.vectors[:1], 200, family.index.keys[:1])
    assert np.isfinite(distances).sum() == len(doubled) - 2


def test_train_columns_are_standardised_and_row_order_doesn_t_matter() -> None:
    train = make_routing_dataset(queries=90, missing=0.1)
    family = fit_family(train)
    own = columns(family, train)
    varied = own.std(axis=0) > 0
    assert varied.sum() > 30
    np.testing.assert_allclose(own.mean(axis=0), 0, atol=1e-4)
    np.testing.assert_allclose(own.std(axis=0)[varied], 1, atol=0.02)
    other = columns(fit_family(permute_rows(train)), train)
    np.testing.assert_allclose(other, own, atol=1e-4)


def test_few_rows_odd_targets_and_constant_states_are_finite() -> None:
    small = make_routing_dataset(queries=3)
    correct = small.correct.copy()
    correct[:, 0], correct[:, 1], correct[0, 2] = np.nan, 1, np.nan
    few = relabel(small, correct)
    assert np.isfinite(columns(fit_family(few), few)).all()
    train = make_routing_dataset(queries=40)
    same = states_of(train, sites=[SITE])
    same.states[SITE][:] = 1
    family = CONFIG.fit(train, [same])
    read = family.read(PromptStates.of_dataset(train, [same]))
    assert np.isfinite(read).all()


def test_default_sites() -> None:
    train = make_routing_dataset(queries=30)
    assert NeighboursConfig(encoder="fake").needs[0].sites is None
    family = fit_family(train, NeighboursConfig(encoder="fake", site="mean.3"))
    assert family.where.site == SITE
    every = NeighboursConfig(encoder="fake").fit(train, [states_of(train)])
    assert every.where.site == Site(4, "mean")


def test_what_makes_no_sense_is_refused() -> None:
    train = make_routing_dataset(queries=10)
    for ks in ((), (0, 5), (5, 5), (10, 5)):
        with pytest.raises(ConfigError, match="increasing numbers"):
            NeighboursConfig(ks=ks)
    with pytest.raises(ConfigError, match="isn't a site"):
        NeighboursConfig(site="middle")
    with pytest.raises(ConfigError, match=r"'another'; given are those of \['fake'"):
        NeighboursConfig(encoder="another").fit(train, [states(train)])
    with pytest.raises(FitError, match="0 labels"):
        fit_family(relabel(train, np.full_like(train.correct, np.nan)))
    twins = [Query(f"twin-{i}", "The same question?") for i in range(4)]
    copies = RoutingDataset.of(twins, train.pool, train.correct[:4])
    with pytest.raises(FitError, match="1 different prompts"):
        CONFIG.fit(copies, [FakeEncoder().encode(twins[:1], [SITE], rounding="float32")])
