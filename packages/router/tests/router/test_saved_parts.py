"""Parts of the router's own kinds, as they were saved once: read, used and written as ever."""

from pathlib import Path

import pytest

from packages.router.tests.part_cases import check_cases
from packages.router.tests.router.saved_part_contract import (
    add_predictor,
    check_claimed_size,
    check_names_no_code,
    check_results,
    check_written,
    read_parts,
)
from prefill_router.calibration import KINDS as CALIBRATORS
from prefill_router.features import FAMILIES
from prefill_router.policy import POLICIES
from prefill_router.predictors import PREDICTORS

SAVED = read_parts(Path(__file__).parent / "saved_parts.json")
KINDS = {
    "predictor": PREDICTORS.own,
    "calibrator": CALIBRATORS,
    "features": FAMILIES.own,
    "policy": POLICIES.own,
}


@pytest.mark.parametrize("sort", KINDS)
def test_every_kind_is_there(sort: str) -> None:
    kinds = {saved.config["kind"] for saved in SAVED.values() if saved.sort == sort}
    check_cases(
        KINDS[sort], kinds, add="a saved part", to="packages/router/tests/router/saved_parts.json"
    )


def test_a_predictor_is_added_once(tmp_path: Path) -> None:
    file = tmp_path / "saved_parts.json"
    file.write_text("{}")
    name = add_predictor(file, {"kind": "knn_score", "k": 3})
    (saved,) = read_parts(file).values()
    assert (saved.name, name) == ("predictor knn_score",) * 2
    check_written(saved)
    check_results(saved)
    with pytest.raises(SystemExit, match="already"):
        add_predictor(file, {"kind": "knn_score", "k": 4})


def test_parts_without_a_kind_are_there() -> None:
    assert {"shrinkage", "output", "reference"} <= {saved.sort for saved in SAVED.values()}


@pytest.mark.parametrize("name", SAVED)
def test_it_is_written_as_it_was(name: str) -> None:
    check_written(SAVED[name])


@pytest.mark.parametrize("name", [name for name in SAVED if not name.startswith("features")])
def test_it_gives_what_it_gave(name: str) -> None:
    check_results(SAVED[name])


@pytest.mark.parametrize("name", SAVED)
def test_code_is_never_named(name: str) -> None:
    check_names_no_code(SAVED[name])


@pytest.mark.parametrize(
    ("name", "field"),
    [
        ("predictor unified_multitask", "networks"),
        ("predictor knn_score", "rows"),
        ("predictor shared_trunk", "networks"),
        ("calibrator isotonic", "knots"),
        ("reference", "rows"),
        ("features embedding", "dim"),
    ],
)
def test_sizes_beyond_all_bounds_are_refused_at_once(name: str, field: str) -> None:
    check_claimed_size(SAVED[name], field)


def test_a_reference_of_more_columns_than_memory_holds_is_only_read() -> None:
    assert SAVED["reference"].load(width=10**30).width == 10**30
