"""The predictions of fits on less data, each kept as soon as it is made."""

import hashlib
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import save

from prefill_router import __version__, files
from prefill_router.activations import Activations
from prefill_router.cost import CostScale
from prefill_router.data import RoutingDataset, Split
from prefill_router.errors import CorruptError, DataError
from prefill_router.evaluation import Predictions
from prefill_router.fitting import FitConfig
from prefill_router.studies.learning.thinning import Size
from prefill_router.tensors import read_tensors

_TABLES = ("correctness", "estimated_cost")


def key_of(
    dataset: RoutingDataset,
    states: Sequence[Activations],
    drawn: Split,
    config: FitConfig,
    size: Size,
) -> str:
    """What makes these predictions and no others, as a file's name."""
    told = {
        "package": __version__,
        "dataset": dataset.fingerprint,
        "costs": hashlib.sha256(np.nan_to_num(dataset.observed_cost).tobytes()).hexdigest(),
        "pool": [repr(target) for target in dataset.pool],
        "states": sorted(json.dumps(s.provenance.to_dict(), sort_keys=True) for s in states),
        "split": drawn.to_dict(),
        "config": config.to_dict(),
        "size": [size.share, size.measured],
    }
    return hashlib.sha256(json.dumps(told, sort_keys=True).encode()).hexdigest()[:24]


def held(path: Path, ids: tuple[str, ...], targets: tuple[str, ...]) -> Predictions | None:
    """The predictions that were kept, if they are there and whole."""
    try:
        found = read_tensors(path)
        tables: Mapping[str, Any] = {name: found.tensors[name] for name in _TABLES}
        low, high, digest = json.loads(found.metadata["made"])
        if digest != _digest(tables):
            return None
        scale = CostScale(float(low), float(high))
        return Predictions(query_ids=ids, targets=targets, scale=scale, **tables)
    except (CorruptError, DataError, ValueError, KeyError, TypeError):
        return None


def keep(path: Path, predictions: Predictions) -> None:
    """Keep predictions, whole or not at all."""
    tables = {name: np.ascontiguousarray(getattr(predictions, name)) for name in _TABLES}
    scale = predictions.scale
    made = json.dumps([scale.low, scale.high, _digest(tables)])
    with files.replacing_file(path) as temporary:
        temporary.write_bytes(save(tables, metadata={"made": made}))


def _digest(tables: Mapping[str, Any]) -> str:
    return hashlib.sha256(b"".join(tables[name].tobytes() for name in _TABLES)).hexdigest()
