"""Moments: exact, additive, sound far from zero."""

import numpy as np
import pytest
from hypothesis import given, strategies as st

from packages.router.tests.fakes.planted_signal import states_of
from prefill_router import geometry
from prefill_router.activations import MemoryActivations, Site
from prefill_router.errors import ConfigError, FitError, StoreError
from prefill_router.geometry import Moments, SiteStates
from prefill_router.testing import make_routing_dataset


def sample(rows: int, hidden: int, seed: int, *, offset: float = 0.0) -> np.ndarray:
    random = np.random.default_rng(seed)
    mixing = random.normal(size=(hidden, hidden))
    return random.normal(size=(rows, hidden)) @ mixing + offset * random.normal(size=hidden)


@given(st.integers(2, 40), st.integers(1, 8), st.integers(0, 1000))
def test_they_are_numpys(rows: int, hidden: int, seed: int) -> None:
    states = sample(rows, hidden, seed, offset=5)
    moments = Moments.of(states)
    assert moments.count == rows
    np.testing.assert_allclose(moments.mean, states.mean(axis=0), atol=1e-12)
    expected = np.atleast_2d(np.cov(states, rowvar=False))
    np.testing.assert_allclose(moments.covariance, expected, rtol=1e-9, atol=1e-12)


@pytest.mark.slow
@given(st.lists(st.integers(0, 12), min_size=1, max_size=6), st.integers(0, 1000))
def test_those_of_parts_add_up_in_any_order(sizes: list[int], seed: int) -> None:
    states = sample(sum(sizes) + 2, 4, seed, offset=100)
    parts = np.split(states, np.cumsum(sizes))
    moments = Moments.of(states)
    for order in (parts, parts[::-1]):
        added = Moments.total((Moments.of(part) for part in order), hidden=4)
        assert added.count == moments.count
        np.testing.assert_allclose(added.mean, moments.mean, rtol=1e-12)
        np.testing.assert_allclose(added.scatter, moments.scatter, rtol=1e-9, atol=1e-9)


def test_a_mean_far_larger_than_the_spread_loses_nothing() -> None:
    spread = sample(200, 3, 0)
    far = spread + 1e7
    exact = np.cov(far - 1e7, rowvar=False)
    np.testing.assert_allclose(
        Moments.total((Moments.of(part) for part in np.array_split(far, 7)), hidden=3).covariance,
        exact,
        rtol=1e-7,
    )
    naive = (far.T @ far - 200 * np.outer(far.mean(axis=0), far.mean(axis=0))) / 199
    assert np.abs(naive / exact - 1).max() > 1e-3  # what the test would catch


def test_many_blocks_are_as_one(monkeypatch: pytest.MonkeyPatch) -> None:
    states = sample(100, 5, 1)
    moments = Moments.of(states)
    monkeypatch.setattr("prefill_router.geometry._BLOCK_BYTES", 8 * 5 * 7)
    np.testing.assert_allclose(Moments.of(states).scatter, moments.scatter, rtol=1e-10, atol=1e-10)


def test_no_rows_and_one_row() -> None:
    assert Moments.of(np.zeros((0, 3))).count == 0
    assert Moments.of(np.ones((1, 3))).count == 1
    with pytest.raises(FitError, match="two rows or more; got 1"):
        _ = Moments.of(np.ones((1, 3))).covariance


def test_other_widths_are_refused() -> None:
    with pytest.raises(ConfigError, match="3 and 4 dimensions"):
        _ = Moments.of(np.ones((2, 3))) + Moments.of(np.ones((2, 4)))


def test_chunks_are_the_whole_and_can_be_read_again() -> None:
    dataset = make_routing_dataset(queries=23)
    activations = states_of(dataset)
    site, keys = Site(3, "mean"), dataset.prompt_keys
    all_rows = activations.read(site, keys)
    chunks = SiteStates(activations, site, keys, chunk_bytes=5 * 16 * 4)
    for _ in range(2):
        pieces = list(chunks)
        assert [len(states) for _, states in pieces] == [5, 5, 5, 5, 3]
        for rows, states in pieces:
            np.testing.assert_array_equal(states, all_rows[rows])


@pytest.mark.parametrize("read_at_once", [10, 23])
def test_pieces_are_small_and_the_whole_is_read_once(
    read_at_once: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(geometry, "_PIECE_ROWS", 4)
    dataset = make_routing_dataset(queries=23)
    activations, keys, site = states_of(dataset), dataset.prompt_keys, Site(3, "mean")
    rows, read = activations.read(site, keys), list[int]()
    monkeypatch.setattr(
        MemoryActivations,
        "read",
        lambda _self, _site, some: read.append(len(some)) or rows[[keys.index(k) for k in some]],
    )
    chunks = SiteStates(activations, site, keys, chunk_bytes=read_at_once * 16 * 4)
    for _ in range(2):
        pieces = list(chunks)
        assert max(len(states) for _, states in pieces) == 4
        np.testing.assert_array_equal(np.concatenate([states for _, states in pieces]), rows)
        assert [rows.start for rows, _ in pieces[1:]] == [rows.stop for rows, _ in pieces[:-1]]
    assert read == ([23] if read_at_once == 23 else [10, 10, 3] * 2)


def test_states_that_are_not_finite_are_refused() -> None:
    dataset = make_routing_dataset(queries=5)
    good = states_of(dataset)
    site = Site(2, "last")
    broken = good.states[site].copy()
    broken[3, 1] = np.inf
    bad = MemoryActivations(good.provenance, good.keys, {site: broken}, good.counts)
    with pytest.raises(StoreError, match=r"1 states at last\.2 that aren't finite"):
        list(SiteStates(bad, site, dataset.prompt_keys))
