"""The consensus regimes."""

import numpy as np
import pytest
from hypothesis import given, strategies as st
from hypothesis.extra import numpy as hnp

from prefill_router.data import Regime, Table, binary, regimes

NAN = float("nan")
TABLES = hnp.arrays(
    np.float64,
    hnp.array_shapes(min_dims=2, max_dims=2, max_side=6),
    elements=st.sampled_from([0.0, 0.3, 0.5, 0.8, 1.0, NAN]),
)


def test_each_regime() -> None:
    table = np.array(
        [[1, 1, 1], [1, NAN, 0.5], [0, 0, 0], [NAN, 0.49, NAN], [1, 0, NAN], [NAN, NAN, NAN]]
    )
    assert regimes(table).tolist() == [
        *(Regime.ALL_CORRECT, Regime.ALL_CORRECT, Regime.ALL_INCORRECT, Regime.ALL_INCORRECT),
        *(Regime.DISAGREEMENT, Regime.UNMEASURED),
    ]


def test_soft_labels_are_cut_at_a_half() -> None:
    cut = binary(np.array([[0.0, 0.49, 0.5, 1.0, NAN]]))
    assert np.array_equal(cut, [[0, 0, 1, 1, NAN]], equal_nan=True)


@pytest.mark.slow
@given(TABLES, st.randoms())
def test_the_order_of_targets_and_missing_ones_change_nothing(table: Table, random: object) -> None:
    order = np.random.default_rng(random.randrange(99)).permutation(table.shape[1])  # type: ignore[attr-defined]
    assert regimes(table[:, order]).tolist() == regimes(table).tolist()
    wider = np.column_stack([table, np.full(len(table), np.nan)])
    assert regimes(wider).tolist() == regimes(table).tolist()


@pytest.mark.slow
@given(TABLES)
def test_swapping_right_and_wrong_swaps_the_regimes(table: Table) -> None:
    swap = {
        Regime.ALL_CORRECT: Regime.ALL_INCORRECT,
        Regime.ALL_INCORRECT: Regime.ALL_CORRECT,
        Regime.DISAGREEMENT: Regime.DISAGREEMENT,
        Regime.UNMEASURED: Regime.UNMEASURED,
    }
    swapped = regimes(1 - binary(table)).tolist()
    assert swapped == [swap[Regime(name)] for name in regimes(table).tolist()]
