"""What must hold for parts as they were saved once: read, used and written as ever.

A JSON file holds one of each kind, what it was given and what it gave. A predictor of a new kind
is added once, before it is first used:

    python -m packages.router.tests.router.saved_part_contract FILE '{"kind": "logistic"}'
"""

import json
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from prefill_router.calibration import Shrinkage, load_calibrator
from prefill_router.cost import OutputHead
from prefill_router.errors import CorruptError
from prefill_router.features.base import load_family
from prefill_router.policy import from_dict
from prefill_router.predictors import Examples, load_predictor, predictor_config
from prefill_router.router.reference import TrainReference

LOAD: dict[str, Any] = {
    "predictor": load_predictor,
    "calibrator": load_calibrator,
    "features": load_family,
    "policy": lambda config, _: from_dict(config),
    "shrinkage": Shrinkage.from_dict,
    "output": OutputHead.from_dict,
    "reference": TrainReference.from_dict,
}


@dataclass(frozen=True)
class SavedPart:
    """A part of a file, by its name: its sort, and its kind where it has one."""

    name: str
    content: dict[str, Any]

    @property
    def sort(self) -> str:
        return self.name.split()[0]

    @property
    def config(self) -> dict[str, Any]:
        config: dict[str, Any] = self.content["config"]
        return config

    @property
    def arrays(self) -> dict[str, np.ndarray]:
        return {
            key: np.array(tensor["values"], dtype=tensor["dtype"]).reshape(tensor["shape"])
            for key, tensor in self.content["tensors"].items()
        }

    def load(self, **changes: Any) -> Any:
        return LOAD[self.sort](self.config | changes, self.arrays)


def read_parts(file: Path) -> dict[str, SavedPart]:
    content = json.loads(file.read_text(encoding="utf-8"))
    return {name: SavedPart(name, part) for name, part in content.items()}


def check_written(saved: SavedPart) -> None:
    """Check that the part is written as before."""
    part = saved.load()
    assert json.dumps(part.to_dict()) == json.dumps(saved.config)
    tensors = part.tensors()
    assert tensors.keys() == saved.arrays.keys()
    for key, array in saved.arrays.items():
        assert tensors[key].dtype == array.dtype
        np.testing.assert_array_equal(tensors[key], array)


def check_results(saved: SavedPart) -> None:
    """Check that the part gives the results of before."""
    part, inputs = saved.load(), np.array(saved.content["given"])
    rows = inputs.astype(np.float32)
    match saved.sort:
        case "predictor":
            gives = part.correctness(rows)
        case "calibrator":
            gives = part.calibrate(inputs)
        case "policy":
            gives = part.choose(*inputs, 0.6, targets=("a", "b", "c"))
        case "shrinkage":
            gives = part.shrink(inputs)
        case "output":
            gives = np.nan_to_num(part.expect(rows, np.array([5, 10, 20, 40])).mean, nan=-1)
        case _:
            gives = part.novelty(rows)
    np.testing.assert_allclose(gives, saved.content["gives"], rtol=1e-6, atol=1e-7)


def check_names_no_code(saved: SavedPart) -> None:
    """Check that the kind alone chooses the class, and that a surplus name is refused."""
    changes: tuple[dict[str, Any], ...] = (
        {"class": "os.system"},
        {"__reduce__": ["os.system"]},
    )
    for change in changes:
        with pytest.raises(CorruptError):
            saved.load(**change)
    if "kind" in saved.config:
        for kind in ("os:system", "builtins:eval", "trunk:ENTRY", "..router.router:Router"):
            with pytest.raises(CorruptError, match="known are"):
                saved.load(kind=kind)


def check_claimed_size(saved: SavedPart, field: str) -> None:
    """Check that a size which a file only claims takes no memory and no time."""
    value = saved.config[field]
    claimed: Any = 10**30 if isinstance(value, int) else [10**30] * len(value)
    with pytest.raises(CorruptError):
        saved.load(**{field: claimed})


def add_predictor(file: Path, options: dict[str, Any]) -> str:
    """Fit a predictor on a few rows, and add it to a file that has none of its name; its name."""
    config = predictor_config(options)
    random = np.random.default_rng(0)
    features = random.normal(size=(16, 3)).astype(np.float32)
    correct = (features + random.normal(size=(16, 3)) > 0).astype(np.float64)
    predictor = config.fit(Examples(features, correct, ("a", "b", "c"), ("",) * 16)).predictor
    tensors = {
        key: {"dtype": str(array.dtype), "shape": array.shape, "values": array.ravel().tolist()}
        for key, array in predictor.tensors().items()
    }
    content = json.loads(file.read_text(encoding="utf-8"))
    name = f"predictor {predictor.kind}"
    if name in content:
        raise SystemExit(f"{file} has {name!r} already; what was saved once must stay readable")
    content[name] = {
        "config": predictor.to_dict(),
        "tensors": tensors,
        "given": features[:4].tolist(),
        "gives": predictor.correctness(features[:4]).tolist(),
    }
    lines = (f"{json.dumps(k)}:{json.dumps(v, separators=(',', ':'))}" for k, v in content.items())
    file.write_text("{\n" + ",\n".join(lines) + "\n}\n", encoding="utf-8")
    return name


if __name__ == "__main__":
    added = add_predictor(Path(sys.argv[1]), json.loads(sys.argv[2]))
    sys.stdout.write(f"{added!r} was added to {sys.argv[1]}\n")
