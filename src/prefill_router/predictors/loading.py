"""Finds the class of a saved predictor."""

from collections.abc import Mapping
from typing import Any

from prefill_router.errors import CorruptError
from prefill_router.predictors.base import Predictor, Tensors
from prefill_router.predictors.trunk import SharedTrunkNet

_KINDS: Mapping[str, type[Predictor]] = {kind.kind: kind for kind in (SharedTrunkNet,)}


def load_predictor(config: Mapping[str, Any], tensors: Tensors) -> Predictor:
    """The predictor of `Predictor.to_dict` and `Predictor.tensors`.

    Raises:
        CorruptError: The kind is unknown, or the rest contradicts itself.
    """
    kind = config.get("kind")
    if not isinstance(kind, str) or kind not in _KINDS:
        raise CorruptError(
            f"the predictor is of the kind {kind!r}; known are {sorted(_KINDS)}; "
            "it may need a newer version of prefill-router"
        )
    return _KINDS[kind].from_dict(config, tensors)
