"""The options of a command are those of the study's dataclass: defaults, ranges, order."""

import inspect
from dataclasses import dataclass
from typing import Annotated

import pytest
import typer
from typing_extensions import Doc

from prefill_router.cli.commands import UsageError
from prefill_router.cli.ranges import find_ranges
from prefill_router.options import AT_LEAST_TWO
from prefill_router_lab.cli.typed_options import list_options, with_options
from prefill_router_lab.depth import DepthOptions, SweepOptions
from prefill_router_lab.end_to_end import EndToEndOptions
from prefill_router_lab.learning_curves import LearningOptions
from prefill_router_lab.reproduce import ReproduceOptions
from prefill_router_lab.search import SearchConfig
from prefill_router_lab.studies import (
    AblationOptions,
    DimensionOptions,
    RatioOptions,
    SeedOptions,
    ShiftOptions,
)
from prefill_router_lab.study_options import StudyOptions

KINDS = (
    *(SeedOptions, RatioOptions, ShiftOptions, AblationOptions, DimensionOptions, DepthOptions),
    *(SweepOptions, LearningOptions, EndToEndOptions, SearchConfig, ReproduceOptions),
)


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
def test_a_command_line_without_options_gives_the_defaults(kind: type[StudyOptions]) -> None:
    given = {option.name: option.read(option.parameter.default) for option in list_options(kind)}
    assert kind(**given) == kind()


@dataclass(frozen=True, kw_only=True)
class Options(StudyOptions):
    """A required field, one with a range, and one that isn't an option."""

    name: Annotated[str, Doc("A name.")]
    count: Annotated[int, AT_LEAST_TWO, Doc("How many.")] = 3
    hidden: int = 1


def test_fields_stand_in_the_place_of_the_dataclass() -> None:
    calls: list[tuple[Options, bool]] = []

    @with_options
    def command(
        *, options: Options, as_json: Annotated[bool, typer.Option("--json")] = False
    ) -> None:
        calls.append((options, as_json))

    parameters = inspect.signature(command).parameters
    assert list(parameters) == ["name", "count", "seed", "as_json"]
    assert find_ranges(command) == {"count": {"ge": 2}, "seed": {"ge": 0}}
    command(name="x", count=4, seed=5, as_json=True)
    assert calls == [(Options(name="x", count=4, seed=5), True)]


@pytest.mark.parametrize(
    ("kind", "name", "text"),
    [
        (DimensionOptions, "dims", "2,x"),
        (SweepOptions, "poolings", "first"),
        (SearchConfig, "objective", "luck"),
    ],
)
def test_texts_that_name_nothing_are_refused(
    kind: type[StudyOptions], name: str, text: str
) -> None:
    [option] = [one for one in list_options(kind) if one.name == name]
    with pytest.raises(UsageError, match=text):
        option.read(text)
