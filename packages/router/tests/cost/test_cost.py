import numpy as np
import pytest

from prefill_router.cost import CostEstimator, CostScale
from prefill_router.data import Query, RoutingDataset
from prefill_router.errors import ConfigError
from prefill_router.policy import choose
from prefill_router.targets import Pool, Target
from prefill_router.testing import make_routing_dataset


def dataset(
    prices: list[tuple[float, float] | None],
    *,
    inputs: list[list[float]] | None = None,
    outputs: list[list[float]] | None = None,
    recorded: list[list[float]] | None = None,
    queries: int = 3,
) -> RoutingDataset:
    pool = Pool(
        tuple(
            Target(
                name=f"t{k}", **dict(zip(("input_price", "output_price"), p or (), strict=False))
            )
            for k, p in enumerate(prices)
        )
    )
    tables = {"input_tokens": inputs, "output_tokens": outputs, "recorded_cost": recorded}
    return RoutingDataset.of(
        [Query(f"q{i}", "?") for i in range(queries)],
        pool,
        np.ones((queries, len(prices))),
        **{name: np.array(table, dtype=float) for name, table in tables.items() if table},
    )


TOKENS = np.array([100, 200, 400])


def test_equation_1() -> None:
    train = dataset([(2.0, 8.0)], inputs=[[100], [200], [400]], outputs=[[10], [30], [1000]])
    estimator = CostEstimator.fit(train, TOKENS)
    got = estimator.estimate(np.array([500]))
    assert got == pytest.approx(np.array([[(500 * 2 + 30 * 8) / 1e6]]))


def test_input_tokens_of_the_target_stand_before_those_of_the_encoder() -> None:
    train = dataset([(1.0, 0.0)] * 2, inputs=[[150, 300]] * 3, outputs=[[0, 0]] * 3)
    estimator = CostEstimator.fit(train, np.array([100, 100, 100]))
    assert estimator.token_ratio == pytest.approx([1.5, 3.0])
    counts = np.array([[50.0, np.nan]])
    got = estimator.estimate(np.array([100]), input_tokens=counts)
    assert got * 1e6 == pytest.approx(np.array([[50, 300]]))


def test_missing_counts_are_left_out_of_the_medians() -> None:
    nan = np.nan
    train = dataset([(1.0, 1.0)], inputs=[[nan], [300], [nan]], outputs=[[nan], [5], [7]])
    estimator = CostEstimator.fit(train, TOKENS)
    assert estimator.median_output == pytest.approx([6])
    assert estimator.token_ratio == pytest.approx([1.5])
    assert CostEstimator.fit(dataset([None], recorded=[[1], [nan], [3]]), TOKENS).fixed == [2]


def test_targets_without_any_input_counts_take_the_encoders() -> None:
    train = dataset([(1.0, 1.0)], outputs=[[1], [1], [1]])
    assert CostEstimator.fit(train, TOKENS).token_ratio.tolist() == [1]


def test_scale_is_the_range_of_the_train_rows() -> None:
    train = make_routing_dataset(queries=60, missing=0.2)
    counts = np.random.default_rng(0).integers(5, 500, 60)
    estimator = CostEstimator.fit(train, counts)
    estimated = estimator.estimate(counts, input_tokens=train.input_tokens)
    scale = estimator.scale
    assert [scale.low, scale.high] == pytest.approx([estimated.min(), estimated.max()])
    assert scale.normalise(estimated).min() == pytest.approx(0)
    assert scale.normalise(estimated).max() == pytest.approx(1)


def test_scale_does_not_clip_and_knows_no_spread() -> None:
    assert CostScale(1.0, 3.0).normalise(np.array([0.0, 5.0])).tolist() == [-0.5, 2]
    assert CostScale(2.0, 2.0).normalise(np.array([1.0, 9.0])).tolist() == [0, 0]


def test_prices_changed_after_fitting_are_as_if_fitted_with_them() -> None:
    train = make_routing_dataset(queries=50, missing=0.1)
    counts = np.random.default_rng(0).integers(5, 500, 50)
    pool = train.pool.with_prices({"target-0": (9.0, 30.0), "target-2": (0.0, 0.0)})
    changed = CostEstimator.fit(train, counts).with_pool(pool)
    fitted = CostEstimator.fit(train.with_pool(pool), counts)
    assert (changed.estimate(counts) == fitted.estimate(counts)).all()
    assert changed.scale == fitted.scale
    assert changed.scale != CostEstimator.fit(train, counts).scale


def test_another_currency_changes_no_choice() -> None:
    train = make_routing_dataset(queries=80, targets=5)
    counts = np.random.default_rng(0).integers(5, 500, 80)
    estimator = CostEstimator.fit(train, counts)
    prices = {t.name: (4 * (t.input_price or 0), 4 * (t.output_price or 0)) for t in train.pool}
    dearer = estimator.with_pool(train.pool.with_prices(prices))
    assert dearer.scale.high == 4 * estimator.scale.high
    correctness = np.random.default_rng(1).random((80, 5))
    for lam in (0.2, 0.5, 0.9):
        first, second = (
            choose(correctness, e.scale.normalise(e.estimate(counts)), lam)
            for e in (estimator, dearer)
        )
        assert (first == second).all()


def test_fixed_costs_serve_targets_without_prices() -> None:
    train = dataset(
        [(1.0, 0.0), None], inputs=[[100, 100]] * 3, outputs=[[1, 1]] * 3,
        recorded=[[9, 0.1], [9, 0.3], [9, 0.2]],
    )  # fmt: skip
    estimator = CostEstimator.fit(train, np.array([100, 100, 100]))
    assert estimator.estimate(np.array([100])) == pytest.approx(np.array([[1e-4, 0.2]]))
    assert [estimator.scale.low, estimator.scale.high] == pytest.approx([1e-4, 0.2])


def test_prices_without_output_counts_leave_the_recorded_cost_and_it_is_told() -> None:
    train = dataset(
        [(1.0, 0.0), (2.0, 2.0), None], outputs=[[1, np.nan, np.nan]] * 3,
        recorded=[[9, 0.1, 0.2]] * 3,
    )  # fmt: skip
    estimator = CostEstimator.fit(train, TOKENS)
    assert estimator.recorded_targets == ("t1", "t2")
    assert estimator.estimate(np.array([100]))[0, 1:].tolist() == [0.1, 0.2]


def test_assumed_output_tokens_stand_in_where_none_are_known() -> None:
    train = dataset([(0.0, 1.0)] * 2, outputs=[[8, np.nan]] * 3)
    with pytest.raises(ConfigError, match=r"\['t1'\] can't be estimated"):
        CostEstimator.fit(train, TOKENS)
    assumed = CostEstimator.fit(train, TOKENS, assumed_output_tokens=50)
    assert assumed.median_output.tolist() == [8, 50]


def test_a_pool_of_which_nothing_is_known_is_free() -> None:
    train = dataset([None, None])
    estimator = CostEstimator.fit(train, TOKENS)
    assert estimator.is_free
    assert (estimator.estimate(TOKENS) == 0).all()
    assert estimator.scale == CostScale(0.0, 0.0)


def test_half_a_pool_of_which_nothing_is_known_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"\['t1'\]"):
        CostEstimator.fit(dataset([(1.0, 1.0), None], outputs=[[1, 1]] * 3), TOKENS)


def test_a_pool_of_other_names_is_refused() -> None:
    train = make_routing_dataset(queries=5)
    estimator = CostEstimator.fit(train, np.arange(5))
    with pytest.raises(ConfigError, match="the router needs"):
        estimator.with_pool(train.pool.select(["target-1", "target-0", "target-2"]))


def test_estimates_never_look_at_the_answer() -> None:
    train = make_routing_dataset(queries=30)
    estimator = CostEstimator.fit(train, np.full(30, 50))
    first = estimator.estimate(np.array([10, 20]))
    assert (np.diff(first, axis=0) > 0).all()
    assert (first == estimator.estimate(np.array([10, 20]))).all()


def test_observed_cost_is_recorded_or_follows_from_tokens() -> None:
    data = dataset(
        [(1.0, 2.0)] * 2,
        inputs=[[100, 100], [100, np.nan], [100, 100]],
        outputs=[[10, 10]] * 3,
        recorded=[[np.nan, 5.0], [np.nan, np.nan], [np.nan, np.nan]],
    )
    cost = data.observed_cost
    assert cost[0].tolist() == [120 / 1e6, 5.0]
    assert np.isnan(cost[1, 1])


def test_free_output_needs_no_count() -> None:
    train = dataset([(2.0, 0.0), (0.0, 0.0)], inputs=[[100, 100]] * 3)
    estimator = CostEstimator.fit(train, TOKENS)
    assert estimator.estimate(np.array([100])) * 1e6 == pytest.approx(
        np.array([[100 * estimator.token_ratio[0] * 2, 0]])
    )
    assert estimator.recorded_targets == ()
    with pytest.raises(ConfigError, match="can't be estimated"):
        CostEstimator.fit(dataset([(2.0, 1.0), (0.0, 0.0)], inputs=[[1, 1]] * 3), TOKENS)
