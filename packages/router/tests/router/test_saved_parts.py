"""Parts as they were saved once: read, used and written as ever.

`saved_parts.json` holds one of each kind, what it was given and what it gave.
"""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from prefill_router.calibration import KINDS as CALIBRATORS, Shrinkage, load_calibrator
from prefill_router.cost import OutputHead
from prefill_router.errors import CorruptError
from prefill_router.features.base import FAMILIES, load_family
from prefill_router.policy import KINDS as POLICIES, from_dict
from prefill_router.predictors import load_predictor
from prefill_router.predictors.base import PREDICTORS
from prefill_router.router.reference import TrainReference

SAVED: dict[str, dict[str, Any]] = json.loads(
    (Path(__file__).parent / "saved_parts.json").read_text(encoding="utf-8")
)
LOAD: dict[str, Any] = {
    "predictor": load_predictor,
    "calibrator": load_calibrator,
    "features": load_family,
    "policy": lambda config, _: from_dict(config),
    "shrinkage": Shrinkage.from_dict,
    "output": OutputHead.from_dict,
    "reference": TrainReference.from_dict,
}
ELSEWHERE = {"text_network"}
"""Needs a network on disk; see its own tests."""


def arrays(name: str) -> dict[str, np.ndarray]:
    return {
        key: np.array(one["values"], dtype=one["dtype"]).reshape(one["shape"])
        for key, one in SAVED[name]["tensors"].items()
    }


def load(name: str) -> Any:
    return LOAD[name.split()[0]](SAVED[name]["config"], arrays(name))


def test_every_kind_is_there() -> None:
    found = {(name.split()[0], one["config"].get("kind")) for name, one in SAVED.items()}
    for sort, kinds in (
        ("predictor", PREDICTORS.names),
        ("calibrator", CALIBRATORS),
        ("features", FAMILIES.names),
        ("policy", POLICIES),
    ):
        assert {kind for one, kind in found if one == sort} == set(kinds) - ELSEWHERE
    assert {"shrinkage", "output", "reference"} <= {sort for sort, _ in found}


@pytest.mark.parametrize("name", SAVED)
def test_it_is_written_as_it_was(name: str) -> None:
    part = load(name)
    assert json.dumps(part.to_dict()) == json.dumps(SAVED[name]["config"])
    tensors = part.tensors()
    assert tensors.keys() == arrays(name).keys()
    for key, array in arrays(name).items():
        assert tensors[key].dtype == array.dtype
        np.testing.assert_array_equal(tensors[key], array)


@pytest.mark.parametrize("name", [name for name in SAVED if not name.startswith("features")])
def test_it_gives_what_it_gave(name: str) -> None:
    part, given = load(name), np.array(SAVED[name]["given"])
    rows = given.astype(np.float32)
    match name.split()[0]:
        case "predictor":
            gives = part.correctness(rows)
        case "calibrator":
            gives = part.calibrate(given)
        case "policy":
            gives = part.choose(*given, 0.6, targets=("a", "b", "c"))
        case "shrinkage":
            gives = part.shrink(given)
        case "output":
            gives = np.nan_to_num(part.expect(rows, np.array([5, 10, 20, 40])).mean, nan=-1)
        case _:
            gives = part.novelty(rows)
    np.testing.assert_allclose(gives, SAVED[name]["gives"], rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize("name", SAVED)
def test_code_is_never_named(name: str) -> None:
    """Whatever JSON says, the class is told by the kind, and a surplus name is refused."""
    config = SAVED[name]["config"]
    for more in ({"class": "os.system"}, {"__reduce__": ["os.system"]}):
        with pytest.raises(CorruptError):
            LOAD[name.split()[0]](config | more, arrays(name))
    if "kind" in config:
        for kind in ("os:system", "builtins:eval", "trunk:ENTRY", "..router.router:Router"):
            with pytest.raises(CorruptError, match="known are"):
                LOAD[name.split()[0]](config | {"kind": kind}, arrays(name))


@pytest.mark.parametrize(
    ("name", "field"),
    [
        ("predictor graph", "layers"),
        ("predictor graph", "networks"),
        ("predictor mlp", "networks"),
        ("predictor clusters", "clusters"),
        ("predictor shared_trunk", "networks"),
        ("calibrator isotonic", "knots"),
        ("reference", "rows"),
        ("features embedding", "dim"),
    ],
)
def test_sizes_beyond_all_bounds_are_refused_at_once(name: str, field: str) -> None:
    """No memory is taken and no loop is run for what a file only claims."""
    config = SAVED[name]["config"]
    claimed: Any = 10**30 if isinstance(config[field], int) else [10**30] * len(config[field])
    with pytest.raises(CorruptError):
        LOAD[name.split()[0]](config | {field: claimed}, arrays(name))


def test_a_reference_of_more_columns_than_memory_holds_is_only_read() -> None:
    config = SAVED["reference"]["config"] | {"width": 10**30}
    assert TrainReference.from_dict(config, arrays("reference")).width == 10**30
