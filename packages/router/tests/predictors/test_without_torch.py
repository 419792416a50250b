"""Predictors are fitted where torch isn't installed."""

import subprocess
import sys
from typing import Any

import pytest

pytestmark = pytest.mark.slow

KINDS: dict[str, dict[str, Any]] = {
    "shared_trunk": {"hidden": [8, 8], "seeds": 2, "keep": 1, "max_epochs": 2},
    "unified_multitask": {"seeds": 2, "pairs": 0.5, "max_epochs": 2},
    "logistic": {},
    "knn_score": {},
    "stack": {},
}
PROGRAM = """
import sys


class NoTorch:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] == "torch":
            raise ImportError("torch was asked for")


sys.meta_path.insert(0, NoTorch())

import numpy as np

from prefill_router.predictors import Examples, predictor_config

random = np.random.default_rng(0)
features = random.normal(size=(120, 4)).astype(np.float32)
correct = (random.logistic(size=(120, 3)) < features[:, :3]).astype(np.float64)
examples = Examples(features, correct, ("a", "b", "c"), ("",) * 120)
for kind, options in KINDS.items():
    predictor = predictor_config({"kind": kind, **options}).fit(examples).predictor
    assert np.isfinite(predictor.correctness(features)).all(), kind
    print(kind)
assert not [name for name in sys.modules if name.partition(".")[0] == "torch"]
"""


def check_without_torch(kinds: dict[str, dict[str, Any]]) -> None:
    """Check that these kinds are fitted, with these options, where torch isn't installed."""
    program = PROGRAM.replace("KINDS", repr(kinds), 1)
    process = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=False
    )
    assert process.returncode == 0, process.stderr
    assert process.stdout.split() == list(kinds)


def test_fitting_never_imports_torch() -> None:
    check_without_torch(KINDS)
