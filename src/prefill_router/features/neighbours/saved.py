"""Neighbour statistics as plain values and arrays, and back, checking everything."""

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from prefill_router.errors import ConfigError, CorruptError
from prefill_router.features.neighbours.family import Neighbours
from prefill_router.features.neighbours.statistics import STATISTICS, Kernel, check_options
from prefill_router.features.one_site import SavedSite, validated
from prefill_router.features.standard import Standard
from prefill_router.neighbours import NeighbourIndex

_KEY_BYTES = 32  # of a SHA-256


class _Saved(SavedSite):
    normalise: bool
    ks: list[int]
    kernel: Kernel


def to_dict(family: Neighbours) -> dict[str, Any]:
    """Plain values for JSON."""
    return {
        "kind": family.kind,
        **family.where.to_dict(),
        "normalise": family.normalise,
        "ks": list(family.ks),
        "kernel": family.kernel,
    }


def to_tensors(family: Neighbours) -> dict[str, NDArray[Any]]:
    """The train rows' vectors, labels (-1 where missing) and content keys, and the scaler."""
    correct = family.correct
    keys = np.frombuffer(bytes.fromhex("".join(family.index.keys)), dtype=np.uint8)
    return {
        "vectors": family.index.vectors,
        "correct": np.where(np.isnan(correct), np.float32(-1), correct),
        "keys": keys.reshape(-1, _KEY_BYTES),
        **family.standard.tensors(),
    }


def from_dict(config: Mapping[str, Any], tensors: Mapping[str, NDArray[Any]]) -> Neighbours:
    """The family of `to_dict` and `to_tensors`.

    Raises:
        CorruptError: They are incomplete or contradict each other.
    """
    saved = validated(Neighbours.kind, _Saved, config)
    try:
        check_options(saved.ks, saved.kernel)
        where = saved.where()
    except ConfigError as error:
        raise CorruptError(f"the router's neighbour features: {error}") from None
    vectors, correct, keys, rest = _take(tensors, where.source.provenance.hidden_size)
    width = len(saved.ks) * len(STATISTICS) * correct.shape[1]
    index = NeighbourIndex.of(vectors, [row.tobytes().hex() for row in keys])
    standard = Standard.from_tensors(rest, width=width)
    known = np.where(correct < 0, np.float32(np.nan), correct)
    return Neighbours(where, saved.normalise, index, known, tuple(saved.ks), saved.kernel, standard)


def _take(
    tensors: Mapping[str, NDArray[Any]], hidden: int
) -> tuple[NDArray[np.float32], NDArray[np.float32], NDArray[np.uint8], dict[str, NDArray[Any]]]:
    """The rows' vectors, labels and keys, checked; and what is left."""
    rest = dict(tensors)
    try:
        vectors, correct, keys = (rest.pop(name) for name in ("vectors", "correct", "keys"))
    except KeyError as error:
        raise CorruptError(f"the router's neighbour features lack the array {error}") from None
    rows, targets = correct.shape if correct.ndim == 2 else (0, 0)
    sound = (
        rows >= 2
        and targets >= 1
        and _is(vectors, np.float32, (rows, hidden))
        and _is(keys, np.uint8, (rows, _KEY_BYTES))
        and _is(correct, np.float32, (rows, targets))
        and bool(np.isfinite(vectors).all())
        and bool(((correct == -1) | ((correct >= 0) & (correct <= 1))).all())
    )
    if not sound:
        raise CorruptError(
            f"the router's neighbour features' vectors {vectors.dtype} {vectors.shape}, labels "
            f"{correct.dtype} {correct.shape} and keys {keys.dtype} {keys.shape} aren't those of "
            f"two rows or more with {hidden} numbers each; copy or make the router again"
        )
    return vectors, correct, keys, rest


def _is(array: NDArray[Any], kind: type[np.generic], shape: tuple[int, ...]) -> bool:
    return array.dtype == np.dtype(kind) and array.shape == shape
