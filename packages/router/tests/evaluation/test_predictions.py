import numpy as np
import pytest

from packages.router.tests.evaluation.trials import random_system
from prefill_router.errors import DataError
from prefill_router.policy import Predictions


def change_fields(**fields: object) -> Predictions:
    predictions, _ = random_system(queries=4, targets=2)
    return Predictions(**{**vars(predictions), **fields})  # type: ignore[arg-type]


EMPTY = {"correctness": np.ones((0, 2)), "estimated_cost": np.ones((0, 2))}


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"query_ids": ("a", "a", "b", "c")}, "query ids repeat"),
        ({"targets": ("a", "a")}, "targets repeat"),
        ({"query_ids": ("a",)}, r"correctness has the shape \(4, 2\)"),
        ({"correctness": np.full((4, 2), np.nan)}, r"probabilities in \[0, 1\]"),
        ({"correctness": np.full((4, 2), 55.0)}, r"probabilities in \[0, 1\]"),
        ({"estimated_cost": np.full((4, 2), np.inf)}, "finite"),
        ({"estimated_cost": np.full((4, 2), -1.0)}, "not negative"),
        ({"query_ids": (), **EMPTY}, "give at least one"),
    ],
)
def test_malformed_predictions_are_refused(fields: dict[str, object], message: str) -> None:
    with pytest.raises(DataError, match=message):
        change_fields(**fields)


def test_select_reorders_rows_and_columns_together() -> None:
    predictions, _ = random_system(queries=4, targets=3)
    some = predictions.select(["q3", "q1"], targets=["t2", "t0"])
    assert some.query_ids == ("q3", "q1")
    assert some.targets == ("t2", "t0")
    for name in ("correctness", "estimated_cost"):
        table = getattr(predictions, name)
        assert getattr(some, name).tolist() == table[[3, 1]][:, [2, 0]].tolist()
    assert some.scale == predictions.scale


def test_select_names_what_is_missing() -> None:
    predictions, _ = random_system(queries=2)
    with pytest.raises(DataError, match=r"lack 1 of 2 queries, the first is 'nope'"):
        predictions.select(["q1", "nope"])
    with pytest.raises(DataError, match=r"lack 1 of 1 targets"):
        predictions.select(targets=["nope"])
