from dataclasses import replace

import numpy as np
import pytest
from numpy.typing import NDArray

from prefill_router.cost import HIGH, CostEstimator, OutputFit, OutputHead, fit_output
from prefill_router.data import Query, RoutingDataset
from prefill_router.errors import ConfigError, CorruptError, PrefillRouterError
from prefill_router.policy import lambda_path
from prefill_router.targets import Pool, Target

Array = NDArray[np.float64]
FOLDS = np.arange(1200) % 5
RANDOM = np.random.default_rng(5)
FEATURES = RANDOM.normal(size=(2400, 8)).astype(np.float32)
TOKENS = RANDOM.integers(20, 400, 2400)
NOISE = RANDOM.normal(size=(2400, 3))
SLOPES = np.array([0.9, 0.0, 0.4])
OUTPUT = np.exp(5 + FEATURES[:, :1] * SLOPES + np.array([0.8, 0.6, 0.2]) * NOISE)
PRICES = ((1.0, 2.0), (3.0, 4.0), (0.5, 8.0))


def build_dataset(
    output: Array, *, prices: tuple[tuple[float, float] | None, ...] = PRICES, cost: bool = False
) -> RoutingDataset:
    """A dataset in which the targets write so many tokens, or cost so much."""
    pool = [
        Target(
            name=f"t{k}",
            **dict(zip(("input_price", "output_price"), target_prices or (), strict=False)),
        )
        for k, target_prices in enumerate(prices)
    ]
    return RoutingDataset.of(
        [Query(f"q{i}", f"prompt {i}") for i in range(len(output))],
        Pool(tuple(pool)),
        np.ones(output.shape),
        **{"recorded_cost" if cost else "output_tokens": output},
    )


def fit(data: RoutingDataset, *, rows: int = 1200, features: NDArray[np.float32] = FEATURES):  # noqa: ANN201
    train = data.select(data.query_ids[:rows])
    costs = CostEstimator.fit(train, TOKENS[:rows])
    return fit_output(features[:rows], train, TOKENS[:rows], FOLDS[:rows], costs), costs


@pytest.fixture(scope="module")
def output_fit() -> OutputFit:
    return fit(build_dataset(OUTPUT))[0]


def expect_unseen(output_fit: OutputFit) -> tuple[Array, Array]:
    """The expected amounts of rows that weren't in the fit."""
    return output_fit.head.expect(FEATURES[1200:], TOKENS[1200:])


def test_means_of_lognormal_outputs_are_unbiased_where_medians_are_not(
    output_fit: OutputFit,
) -> None:
    mean, _ = expect_unseen(output_fit)
    truth = np.exp(5 + FEATURES[1200:, :1] * SLOPES + np.array([0.64, 0.36, 0.04]) / 2)
    np.testing.assert_allclose(mean.mean(axis=0), truth.mean(axis=0), rtol=0.06)
    low, middle, far = np.quantile(FEATURES[1200:, 0], [0.1, 0.5, 0.9])
    for place in (low, middle, far):  # near each place, not only over all rows
        near = np.abs(FEATURES[1200:, 0] - place) < 0.3
        np.testing.assert_allclose(mean[near].mean(axis=0), truth[near].mean(axis=0), rtol=0.12)
    medians = np.median(OUTPUT[:1200], axis=0)
    assert (medians[:2] < 0.87 * truth[:, :2].mean(axis=0)).all()  # control


def test_high_amounts_cover_nine_of_ten(output_fit: OutputFit) -> None:
    mean, high = expect_unseen(output_fit)
    covered = (OUTPUT[1200:] <= high).mean(axis=0)
    np.testing.assert_allclose(covered, HIGH, atol=0.03)
    assert (high >= mean).all()
    own = (OUTPUT[:1200] <= output_fit.out_of_fold.high).mean(axis=0)
    np.testing.assert_allclose(own, HIGH, atol=0.02)


def test_r2_is_what_other_rows_bear_out(output_fit: OutputFit) -> None:
    truth = SLOPES**2 / (SLOPES**2 + np.array([0.64, 0.36, 0.04]))
    np.testing.assert_allclose(output_fit.head.r2, truth, atol=0.06)
    assert output_fit.head.words.startswith("predicted output")


def test_a_target_of_which_nothing_is_told_is_a_constant() -> None:
    """Neither features nor length change its mean."""
    features = np.random.default_rng(8).normal(size=(300, 40)).astype(np.float32)
    output = np.random.default_rng(9).lognormal(5, 1, size=(300, 3)).round() + 1
    constant = 0
    for start in range(0, 300, 100):
        data = build_dataset(output[start : start + 100])
        costs = CostEstimator.fit(data, TOKENS[:100])
        output_fit = fit_output(
            features[start : start + 100], data, TOKENS[:100], FOLDS[:100], costs
        )
        mean, _ = output_fit.head.expect(features * 9, TOKENS[:300])
        still = mean.std(axis=0) < 1e-9
        np.testing.assert_allclose(
            mean[0, still], output[start : start + 100].mean(axis=0)[still], rtol=1e-6
        )
        assert (output_fit.head.r2[still] == 0).all()
        constant += int(still.sum())
    assert constant >= 7  # of nine


def test_few_rows_teach_the_mean_alone() -> None:
    output_fit, costs = fit(build_dataset(OUTPUT), rows=12)
    mean, high = expect_unseen(output_fit)
    np.testing.assert_allclose(mean, np.tile(OUTPUT[:12].mean(axis=0), (1200, 1)), rtol=1e-6)
    assert (high <= OUTPUT[:12].max(axis=0) * (1 + 1e-9)).all()
    assert (costs.estimate(TOKENS[:5], expected=mean[:5]) > 0).all()


def test_amounts_stay_within_what_was_seen(output_fit: OutputFit) -> None:
    features = np.array([[1e4] * 8, [-1e4] * 8, [3e38] * 8], dtype=np.float32)
    with np.errstate(over="ignore", invalid="ignore"):
        mean, high = output_fit.head.expect(features[:2], np.array([1, 10**9]))
    train_output = OUTPUT[:1200]
    for amounts in (mean, high):
        assert np.isfinite(amounts).all()
        assert (amounts > 0).all()
        assert (amounts <= train_output.max(axis=0) * (1 + 1e-9)).all()
        assert (amounts >= 0.99 * train_output.min(axis=0)).all()


def test_a_prompt_of_another_length_is_taken_for_the_longest_seen(output_fit: OutputFit) -> None:
    row = np.repeat(FEATURES[:1], 2, axis=0)
    mean, _ = output_fit.head.expect(row, np.array([TOKENS[:1200].max(), 10**8]))
    np.testing.assert_array_equal(mean[0], mean[1])


@pytest.mark.slow
def test_missing_counts_change_no_other_target() -> None:
    dataset = build_dataset(OUTPUT)
    gaps = OUTPUT.copy()
    gaps[RANDOM.random(2400) < 0.5, 0] = np.nan
    gaps[:, 1] = np.nan
    costs = ((1.0, 2.0), (3.0, 0.0), (0.5, 8.0))
    some, estimator = fit(build_dataset(gaps, prices=costs))
    full, _ = fit(dataset)
    (mean, high), (other, _) = expect_unseen(some), expect_unseen(full)
    np.testing.assert_array_equal(mean[:, 2], other[:, 2])
    assert np.isnan(mean[:, 1]).all()
    assert np.isnan(high[:, 1]).all()
    assert not np.array_equal(mean[:, 0], other[:, 0])
    np.testing.assert_allclose(mean[:, 0].mean(), other[:, 0].mean(), rtol=0.1)
    assert not np.isnan(some.out_of_fold.mean[:, [0, 2]]).any()  # rows without a count too
    assert np.isfinite(estimator.estimate(TOKENS[1200:], expected=mean)).all()


def test_recorded_costs_are_learned_where_nothing_is_counted() -> None:
    output_fit, costs = fit(build_dataset(OUTPUT / 1e6, prices=(None,) * 3, cost=True))
    mean, _ = expect_unseen(output_fit)
    estimated = costs.estimate(TOKENS[1200:], expected=mean)
    np.testing.assert_array_equal(estimated, mean)
    np.testing.assert_allclose(mean.mean(axis=0), OUTPUT[1200:].mean(axis=0) / 1e6, rtol=0.1)
    assert np.corrcoef(np.log(estimated[:, 0]), np.log(OUTPUT[1200:, 0]))[0, 1] > 0.6
    nothing = costs.estimate(TOKENS[1200:1202])
    np.testing.assert_array_equal(nothing, [costs.fixed] * 2)


def test_counted_targets_without_prices_cost_in_proportion() -> None:
    data = build_dataset(OUTPUT, prices=(None,) * 3)
    data = replace(data, recorded_cost=OUTPUT / 1e5)
    output_fit, costs = fit(data)
    mean, _ = expect_unseen(output_fit)
    estimated = costs.estimate(TOKENS[1200:], expected=mean)
    np.testing.assert_allclose(estimated, mean * costs.fixed / costs.median_output)


def test_other_prices_multiply_the_same_tokens(output_fit: OutputFit) -> None:
    costs = fit(build_dataset(OUTPUT))[1]
    mean, _ = expect_unseen(output_fit)
    expensive = costs.with_pool(costs.pool.with_prices({"t0": (10.0, 20.0), "t1": (0.0, 4.0)}))
    before, after = (
        estimator.estimate(TOKENS[1200:], expected=mean) for estimator in (costs, expensive)
    )
    np.testing.assert_allclose(after[:, 0], 10 * before[:, 0])
    np.testing.assert_allclose(after[:, 1], mean[:, 1] * 4 / 1e6)
    np.testing.assert_array_equal(after[:, 2], before[:, 2])
    limited = costs.estimate(TOKENS[1200:], expected=mean, most_output=10)
    prices = np.array(PRICES)
    input_costs = TOKENS[1200:, None] * prices[:, 0]
    np.testing.assert_allclose(limited, (input_costs + 10 * prices[:, 1]) / 1e6)


def test_a_head_is_saved_exactly(output_fit: OutputFit) -> None:
    head = output_fit.head
    again = OutputHead.from_dict(head.to_dict(), head.tensors())
    for amounts, loaded_amounts in zip(
        expect_unseen(output_fit), again.expect(FEATURES[1200:], TOKENS[1200:]), strict=True
    ):
        np.testing.assert_array_equal(amounts, loaded_amounts)
    with pytest.raises(ConfigError, match="the router has 3"):
        head.check(width=3, names=head.names)


@pytest.mark.parametrize(
    "weights",
    [
        None,
        np.zeros((11, 3)),
        np.zeros((11, 2), dtype=np.float32),
        np.zeros((2, 3), dtype=np.float32),
        np.zeros(11, dtype=np.float32),
        np.full((11, 3), np.nan, dtype=np.float32),
    ],
)
def test_tensors_that_make_no_sense_are_refused(
    output_fit: OutputFit, weights: NDArray[np.float32] | None
) -> None:
    tensors = {} if weights is None else {"weights": weights}
    with pytest.raises(PrefillRouterError):
        OutputHead.from_dict(output_fit.head.to_dict(), tensors)


@pytest.mark.parametrize(
    ("part", "value"),
    [
        ("names", ["t0", "t0", "t2"]),
        ("names", []),
        ("targets", [None]),
        ("length", [0.0, 0.0, 1.0, 2.0]),
        ("length", [0.0, 1.0]),
        ("length", [0.0, float("inf"), 1.0, 2.0]),
        ("surprise", 1),
    ],
)
def test_numbers_that_make_no_sense_are_refused(
    output_fit: OutputFit, part: str, value: object
) -> None:
    with pytest.raises(PrefillRouterError):
        OutputHead.from_dict(output_fit.head.to_dict() | {part: value}, output_fit.head.tensors())


@pytest.mark.parametrize("name", ["level", "low", "top", "smearing", "high", "r2"])
@pytest.mark.parametrize("value", [None, float("nan"), float("inf"), -1e300, "1"])
def test_numbers_of_a_target_that_make_no_sense_are_refused(
    output_fit: OutputFit, name: str, value: object
) -> None:
    content = output_fit.head.to_dict()
    content["targets"][0] |= {name: value}
    with pytest.raises(CorruptError):
        OutputHead.from_dict(content, output_fit.head.tensors())


def test_predicted_costs_are_not_below_the_mix_at_the_cheap_end() -> None:
    """The expensive target helps most where it writes most; the median sends it these queries."""
    random = np.random.default_rng(1)
    hard = FEATURES[:, 0].astype(np.float64)
    output = np.exp(
        5 + np.stack([0.0 * hard, 2 * hard], axis=1) + 0.2 * random.normal(size=(2400, 2))
    )
    gain = 0.25 + 0.1 * np.tanh(hard)
    p = np.stack([np.full(2400, 0.5), 0.5 + gain], axis=1)
    data = build_dataset(output, prices=((0.0, 1.0), (0.0, 10.0)))
    output_fit, costs = fit(data)
    mean, _ = expect_unseen(output_fit)
    observed, p = output[1200:] * [1, 10] / 1e6, p[1200:]
    ends, right = observed.mean(axis=0), p.mean(axis=0)

    def least(estimated: Array) -> float:
        """The least accuracy above the mix of both targets, over all lam."""
        path = lambda_path(p, costs.scale.normalise(estimated))
        rows = np.arange(1200)
        chosen = [path.at(lam) for lam in np.linspace(0, 1, 101)]
        points = [(observed[rows, k].mean(), p[rows, k].mean()) for k in chosen]
        return min(accuracy - np.interp(cost, ends, right) for cost, accuracy in points)

    assert least(costs.estimate(TOKENS[1200:])) < -0.05
    assert least(costs.estimate(TOKENS[1200:], expected=mean)) > -0.002
