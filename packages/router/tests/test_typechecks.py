"""Types and shapes are checked while tests run, in each call."""

from collections.abc import Callable

import numpy as np
import pytest
from jaxtyping import TypeCheckError

from packages.router.tests.fakes.planted_signal import without_checks
from prefill_router.evaluation.bootstrap import Band
from prefill_router.statistics import base_rates, cross_entropy

pytestmark = pytest.mark.slow  # types aren't checked in what is quick

THREE, FOUR = np.arange(3.0), np.arange(4.0)


@pytest.mark.parametrize(
    "call",
    [
        lambda: cross_entropy([0.0], np.zeros(1)),
        lambda: cross_entropy(np.zeros(1, dtype=np.int64), np.zeros(1)),
        lambda: cross_entropy(THREE, FOUR),
        lambda: base_rates(THREE),
        lambda: Band(THREE, THREE, FOUR),
        lambda: Band.of(FOUR, np.zeros((5, 3))),
    ],
    ids=["no array", "type", "shapes that differ", "axes", "field", "class method"],
)
def test_what_the_annotations_forbid_is_refused(call: Callable[[], object]) -> None:
    with pytest.raises(TypeCheckError):
        call()


def test_sizes_of_axes_are_those_of_one_call() -> None:
    for row in (THREE, FOUR, THREE):
        assert Band(row, row, row).x is row
        assert Band.of(row, np.zeros((5, len(row)))).lower.shape == row.shape


def test_what_a_function_gives_is_checked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(np, "logaddexp", lambda _, logits: np.stack([logits, logits]))
    with pytest.raises(TypeCheckError, match="return"):
        cross_entropy(THREE, THREE)


def test_nothing_is_checked_where_that_is_said() -> None:
    with without_checks():
        assert Band(THREE, THREE, FOUR).upper is FOUR
