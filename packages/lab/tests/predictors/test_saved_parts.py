"""The lab's predictors, as they were saved once: read, used and written as ever."""

from pathlib import Path

import pytest

from packages.router.tests.part_cases import check_cases
from packages.router.tests.router.saved_part_contract import (
    check_claimed_size,
    check_names_no_code,
    check_results,
    check_written,
    read_parts,
)
from prefill_router.plugins import names_of

SAVED = read_parts(Path(__file__).parent / "saved_parts.json")


def test_every_predictor_is_there() -> None:
    kinds = names_of("prefill-router-lab", "prefill_router.predictors")
    saved = {part.config["kind"] for part in SAVED.values()}
    to = "packages/lab/tests/predictors/saved_parts.json"
    check_cases(kinds, saved, add="a saved part", to=to)


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
