"""Exact nearest neighbours, against a brute-force search in float64."""

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st
from numpy.typing import NDArray

from prefill_router.errors import ConfigError
from prefill_router.neighbours import NeighbourIndex

pytestmark = pytest.mark.slow

Found = tuple[NDArray[np.float64], NDArray[np.int64]]


def normal(count: int, dim: int, seed: int = 0) -> NDArray[np.float32]:
    return np.random.default_rng(seed).normal(size=(count, dim)).astype(np.float32)


def brute_force(
    vectors: NDArray[np.float32],
    queries: NDArray[np.float32],
    k: int,
    keys: list[str] | None = None,
    exclude: list[str] | None = None,
) -> Found:
    distances, rows = np.full((len(queries), k), np.inf), np.full((len(queries), k), -1)
    for i, query in enumerate(queries.astype(np.float64)):
        candidates = [r for r in range(len(vectors)) if not exclude or keys[r] != exclude[i]]
        of = {r: float(np.sqrt(((vectors[r] - query) ** 2).sum())) for r in candidates}
        nearest = sorted(candidates, key=lambda r, of=of: (of[r], r))[:k]
        rows[i, : len(nearest)] = nearest
        distances[i, : len(nearest)] = [of[r] for r in nearest]
    return distances, rows


def assert_same(actual: Found, expected: Found, *, scale: float = 1.0) -> None:
    assert np.array_equal(actual[1], expected[1])
    np.testing.assert_allclose(actual[0], expected[0], rtol=1e-9, atol=1e-12 * scale)


@pytest.mark.parametrize("scale", [1, 1e-25, 1e6, 1e20])
@pytest.mark.parametrize("centre", [0, 1000])
@pytest.mark.parametrize("dim", [1, 6, 200])
def test_is_brute_force_at_every_scale(scale: float, centre: float, dim: int) -> None:
    vectors = (scale * (normal(300, dim) + centre)).astype(np.float32)
    queries = (scale * (normal(40, dim, 1) + centre)).astype(np.float32)
    vectors[100:150] = vectors[0]
    vectors[3] *= 10
    queries[:3] = vectors[[0, 3, 7]]
    result = NeighbourIndex.of(vectors).search(queries, 9)
    assert_same(result, brute_force(vectors, queries, 9), scale=scale * (1 + centre))
    assert result[0][0, 0] == 0


def test_of_equally_near_rows_the_first_comes_first() -> None:
    random = np.random.default_rng(0)
    vectors = random.integers(0, 3, (2000, 3)).astype(np.float32)
    queries = random.integers(0, 3, (30, 3)).astype(np.float32)
    for k in (1, 7, 90):
        assert_same(NeighbourIndex.of(vectors).search(queries, k), brute_force(vectors, queries, k))


def test_rows_of_the_query_s_own_key_are_passed_over() -> None:
    vectors = normal(500, 5)
    keys = [f"k{row // 100}" if row < 200 else f"r{row}" for row in range(500)]
    vectors[:200] = vectors[0] + 1e-4 * normal(200, 5, 2)
    queries, own = vectors[[0, 150, 300]], ["k0", "nobody's", "r300"]
    index = NeighbourIndex.of(vectors, keys)
    for k in (1, 10, 60, 450):
        assert_same(index.search(queries, k, own), brute_force(vectors, queries, k, keys, own))
    assert set(index.search(queries[:1], 400, own[:1])[1][0]) == set(range(100, 500))


def test_fewer_rows_than_asked_for() -> None:
    vectors = normal(3, 2)
    distances, rows = NeighbourIndex.of(vectors, ["a", "b", "a"]).search(
        vectors[:1], 5, exclude=["a"]
    )
    assert rows.tolist() == [[1, -1, -1, -1, -1]]
    assert np.isinf(distances[0, 1:]).all()
    assert np.isfinite(distances[0, 0])
    nothing = NeighbourIndex.of(vectors).search(vectors[:0], 5)
    assert [part.shape for part in nothing] == [(0, 5), (0, 5)]


@settings(max_examples=30, deadline=None)
@given(st.integers(0, 10**6), st.integers(1, 90), st.integers(1, 40), st.integers(1, 30))
def test_a_query_s_answer_is_its_own(seed: int, count: int, k: int, dim: int) -> None:
    vectors, queries = normal(count, dim, seed), normal(25, dim, seed + 1)
    index = NeighbourIndex.of(vectors)
    expected = index.search(queries, k)
    for i in (0, 24):
        alone = index.search(queries[i : i + 1], k)
        assert all(np.array_equal(a[0], w[i]) for a, w in zip(alone, expected, strict=True))
    assert_same(expected, brute_force(vectors, queries, k))


def test_rounding_of_float32_would_be_seen() -> None:
    vectors = (1e4 + 0.01 * normal(300, 50)).astype(np.float32)
    x, y = vectors[:20], vectors
    rounded = (x**2).sum(1)[:, None] + (y**2).sum(1)[None] - 2 * x @ y.T
    nearest = np.argsort(rounded, axis=1, kind="stable")[:, :5]
    assert not np.array_equal(nearest, brute_force(y, x, 5)[1])
    assert_same(NeighbourIndex.of(y).search(x, 5), brute_force(y, x, 5))


def test_what_makes_no_sense_is_refused() -> None:
    vectors = normal(4, 2)
    index, broken = NeighbourIndex.of(vectors), vectors.copy()
    broken[2, 1] = np.nan
    with pytest.raises(ConfigError, match=r"shape \(0, 2\)"):
        NeighbourIndex.of(vectors[:0])
    with pytest.raises(ConfigError, match=r"1 of the rows.*first is 2"):
        NeighbourIndex.of(broken)
    with pytest.raises(ConfigError, match="3 keys for 4 rows"):
        NeighbourIndex.of(vectors, ["a", "b", "c"])
    with pytest.raises(ConfigError, match="k is 0"):
        index.search(vectors, 0)
    with pytest.raises(ConfigError, match="1 wide; the rows of the index are 2"):
        index.search(vectors[:, :1], 1)
    with pytest.raises(ConfigError, match=r"1 of the queries.*first is 2"):
        index.search(broken, 1)
    with pytest.raises(ConfigError, match="without keys"):
        index.search(vectors, 1, exclude=list("abcd"))
    with pytest.raises(ConfigError, match="1 keys for 4 queries"):
        NeighbourIndex.of(vectors, list("abcd")).search(vectors, 1, exclude=["a"])
