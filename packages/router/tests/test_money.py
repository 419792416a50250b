"""Amounts of dollars as people read them."""

import pytest

from prefill_router.money import dollars, list_price


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0.0, "$0"),
        (0.0000188, "$0.0000188"),
        (0.000012, "$0.0000120"),
        (0.4567, "$0.457"),
        (0.09996, "$0.100"),
        (0.9996, "$1.00"),
        (12.3, "$12.30"),
        (1234.5, "$1,234.50"),
        (-0.03, "-$0.0300"),
    ],
)
def test_an_amount_has_cents_or_three_significant_digits(value: float, text: str) -> None:
    assert dollars(value) == text


def test_a_column_of_amounts_has_the_digits_that_it_asks_for() -> None:
    assert dollars(0.25, digits=7) == "$0.2500000"
    assert dollars(0.0, digits=2) == "$0.00"


@pytest.mark.parametrize(
    ("value", "text"), [(0.4, "$0.4"), (5.0, "$5"), (0.00001, "$0.00001"), (2e6, "$2000000")]
)
def test_a_price_is_shown_as_it_was_given(value: float, text: str) -> None:
    assert list_price(value) == text
