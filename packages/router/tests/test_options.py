"""Options are checked by their types."""

from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import pytest

from prefill_router.errors import ConfigError
from prefill_router.options import (
    Count,
    Dropout,
    Fraction,
    NotNegative,
    Positive,
    Several,
    Validation,
    Widths,
    check_options,
)


@dataclass(frozen=True)
class Options:
    count: Count = 1
    several: Several = 2
    rate: Positive = 0.1
    decay: NotNegative = 0.0
    drop: Dropout = 0.0
    share: Validation = 0.5
    part: Fraction = 1.0
    widths: Widths = (1,)
    layers: tuple[Count, ...] = ()
    drops: tuple[Dropout, Dropout] = (0.0, 0.9)
    either: Dropout | None = None
    kernel: Literal["flat", "steep"] = "flat"
    name: str = "anything"


INF, NAN = float("inf"), float("nan")


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"count": 0}, "count is 0; it must be at least 1"),
        ({"several": 1}, "several is 1; it must be at least 2"),
        ({"rate": 0.0}, "rate is 0.0; it must be positive and finite"),
        ({"rate": INF}, "rate is inf; it must be positive and finite"),
        ({"rate": NAN}, "rate is nan; it must be positive and finite"),
        ({"decay": -1.0}, "decay is -1.0; it must be 0 or more, and finite"),
        ({"drop": 1.0}, "drop is 1.0; it must be in [0, 1)"),
        ({"share": 0.0}, "share is 0.0; it must be in (0, 1)"),
        ({"part": 0.0}, "part is 0.0; it must be in (0, 1]"),
        ({"widths": ()}, "widths is (); it must be one width or more, at least 1 each"),
        ({"widths": (3, 0)}, "widths is (3, 0); it must be one width or more, at least 1 each"),
        ({"layers": (3, 0)}, "layers is (3, 0); it must be at least 1 each"),
        ({"drops": (0.0, 1.0)}, "drops is (0.0, 1.0); it must be in [0, 1) each"),
        ({"either": 1.0}, "either is 1.0; it must be in [0, 1)"),
        ({"kernel": "round"}, "kernel is 'round'; it must be one of ['flat', 'steep']"),
    ],
)
def test_an_option_that_makes_no_sense_is_named(wrong: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError) as error:
        check_options(Options(**wrong))
    assert str(error.value) == message


def test_options_that_make_sense() -> None:
    check_options(Options())
    check_options(Options(count=9, rate=1e9, widths=(8, 4), layers=(1,), either=0.5, part=0.2))


def test_a_text_is_no_number() -> None:
    with pytest.raises(ConfigError, match="count is '3'; it must be a number"):
        check_options(Options(count="3"))  # type: ignore[arg-type]


def test_a_number_of_another_type_is_an_error_of_its_type() -> None:
    with pytest.raises(ConfigError, match=r"count is 2\.5; Input should be a valid integer"):
        check_options(Options(count=2.5))  # type: ignore[arg-type]


class UnknownType:
    """A type that pydantic doesn't know."""


@dataclass(frozen=True)
class OwnOptions:
    kind: ClassVar[Literal["mine"]] = "mine"
    own: UnknownType | Literal["auto"] = "auto"


def test_options_may_have_types_of_their_own() -> None:
    check_options(OwnOptions(own=UnknownType()))
    with pytest.raises(ConfigError, match="own is 'other'"):
        check_options(OwnOptions(own="other"))  # type: ignore[arg-type]
