"""A saved extractor comes back exactly, and what is inconsistent is refused."""

import copy
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from packages.router.tests.fakes.planted_signal import states_of
from prefill_router.errors import CorruptError
from prefill_router.features import FeatureExtractor
from prefill_router.features.base import FeatureSet
from prefill_router.testing import FakeEncoder, make_routing_dataset

DATASET = make_routing_dataset(queries=120)
STORES = [states_of(DATASET, encoder=FakeEncoder(name=name)) for name in ("one", "two")]
KEYS = DATASET.prompt_keys


def fit() -> FeatureExtractor:
    return FeatureExtractor.fit(
        STORES,
        DATASET,
        dim=5,
        mode="per_model",
        assignments=dict(zip(DATASET.pool.names, [*STORES, STORES[0]], strict=True)),
    )


def test_it_comes_back_exactly(tmp_path: Path) -> None:
    extractor = fit()
    save_file(extractor.tensors(), tmp_path / "weights.safetensors")
    config = json.loads(json.dumps(extractor.to_dict(), allow_nan=False))
    again = FeatureExtractor.from_dict(config, load_file(tmp_path / "weights.safetensors"))
    assert again.to_dict() == extractor.to_dict()
    assert FeatureSet((again,)).provenances == FeatureSet((extractor,)).provenances
    np.testing.assert_array_equal(again.transform(STORES, KEYS), extractor.transform(STORES, KEYS))


Change = Callable[[dict[str, Any], dict[str, Any]], object]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda c, _: c.pop("blocks"), "lacks the options"),
        (lambda c, _: c.update(surplus=1), "surplus"),
        (lambda c, _: c.update(targets="abc"), "targets"),
        (lambda c, _: c["block_of"].pop(), "3 targets with the blocks"),
        (lambda c, _: c["block_of"].__setitem__(0, 7), "every target needs one"),
        (lambda c, _: c["block_of"].__setitem__(0, -1), r"block_of\.0"),
        (lambda c, _: c["targets"].__setitem__(0, "target-1"), "names repeat"),
        (lambda c, _: c["blocks"][0].update(encoder=9), "there are 2"),
        (lambda c, _: c["blocks"][0].update(site="first.3"), "isn't a site"),
        (lambda c, _: c["blocks"][0].update(site="last.99"), "has 4 layers"),
        (lambda c, _: c["blocks"][0].update(dim=6), r"\(6, 16\)"),
        (lambda c, _: c["blocks"][0].update(dim="5"), r"blocks\.0\.dim"),
        (lambda c, _: c["encoders"][0].update(hidden_size=17), r"\(17,\)"),
        (lambda c, _: c["encoders"][0].update(rounding="int8"), "rounding"),
        (lambda c, _: c["encoders"][0].update(template="jinja"), "template"),
        (lambda _, t: t.pop("block1.scale"), "got"),
        (lambda _, t: t.update(extra=np.zeros(1, np.float32)), r"unknown arrays \['extra'\]"),
        (lambda _, t: t["block0.mean"].__setitem__(0, np.nan), "finite"),
        (lambda _, t: t["block0.scale"].__setitem__(0, 0), "positive"),
        (
            lambda _, t: t.update({"block0.mean": t["block0.mean"].astype(np.float64)}),
            "got float64",
        ),
    ],
)
def test_what_does_not_hold_together_is_refused(change: Change, message: str) -> None:
    extractor = fit()
    config = copy.deepcopy(extractor.to_dict())
    tensors = {name: array.copy() for name, array in extractor.tensors().items()}
    change(config, tensors)
    with pytest.raises(CorruptError, match=message):
        FeatureExtractor.from_dict(config, tensors)


def test_anything_else_is_refused() -> None:
    with pytest.raises(CorruptError):
        FeatureExtractor.from_dict({}, {})
    empty = {"targets": [], "encoders": [], "blocks": [], "block_of": [], "selection": {}}
    none = {"kind": "prefill", **empty}
    with pytest.raises(CorruptError, match="no target"):
        FeatureExtractor.from_dict(none, {})
