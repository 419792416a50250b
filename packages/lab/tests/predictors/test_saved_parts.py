"""The lab's predictors, as they were saved once: read, used and written as ever."""

from pathlib import Path

import pytest

from packages.lab.tests.predictors import network_cases, test_fitting_kinds
from packages.router.tests.router.saved_part_contract import (
    check_claimed_size,
    check_names_no_code,
    check_results,
    check_written,
    read_parts,
)

SAVED = read_parts(Path(__file__).parent / "saved_parts.json")


def test_every_predictor_is_there() -> None:
    cases = (*test_fitting_kinds.CASES, *network_cases.CASES)
    assert {part.config["kind"] for part in SAVED.values()} == {name.split()[0] for name in cases}


@pytest.mark.parametrize("name", SAVED)
def test_it_is_written_as_it_was(name: str) -> None:
    check_written(SAVED[name])


@pytest.mark.parametrize("name", SAVED)
def test_it_gives_what_it_gave(name: str) -> None:
    check_results(SAVED[name])


@pytest.mark.parametrize("name", SAVED)
def test_code_is_never_named(name: str) -> None:
    check_names_no_code(SAVED[name])


@pytest.mark.parametrize(
    ("name", "field"),
    [
        ("predictor graph", "layers"),
        ("predictor graph", "networks"),
        ("predictor mlp", "networks"),
        ("predictor clusters", "clusters"),
    ],
)
def test_sizes_beyond_all_bounds_are_refused_at_once(name: str, field: str) -> None:
    check_claimed_size(SAVED[name], field)
