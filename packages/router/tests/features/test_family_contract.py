"""The contract holds for the family of the paper, and finds each fault of one that is bent."""

from collections.abc import Mapping
from typing import Any, ClassVar

import numpy as np
import pytest
from numpy.typing import NDArray

from packages.router.tests.fakes.planted_signal import states_of
from packages.router.tests.features.family_contract import check_family
from prefill_router.activations import MemoryActivations, Provenance, Site, round_states
from prefill_router.errors import CorruptError, ProvenanceError, StoreError
from prefill_router.features import EncoderStates, Family, FeatureExtractor, PromptStates
from prefill_router.features.base import Columns, find_store
from prefill_router.testing import FakeEncoder, make_routing_dataset

DATASET = make_routing_dataset(queries=60)
SITE = Site(3, "mean")


def states(rounding: str = "bfloat16") -> MemoryActivations:
    return FakeEncoder().encode(DATASET.queries, [SITE], rounding=rounding)


class Bent(Family):
    """The mean of some states beside the prompt's length, with a fault to choose."""

    kind: ClassVar[str] = "bent"

    def __init__(self, source: EncoderStates, scale: NDArray[np.float32], fault: str) -> None:
        self._source, self._scale, self._fault, self._calls = source, scale, fault, 0

    @property
    def width(self) -> int:
        return 3 if self._fault == "width" else 2

    @property
    def sources(self) -> tuple[EncoderStates, ...]:
        return (self._source,)

    def sites_of(self, provenance: Provenance) -> tuple[Site, ...]:
        is_mine = provenance == self._source.provenance
        return (SITE,) if is_mine or self._fault == "claims all" else ()

    def read(self, reading: PromptStates) -> Columns:
        self._calls += 1
        means = self._states(self._store(reading), reading.keys).mean(axis=1) * self._scale
        lengths = np.array([len(str(prompt)) for prompt in reading.prompts], dtype=np.float32)
        if self._fault == "batch" and len(lengths):
            lengths -= lengths.mean()
        if self._fault == "order":
            lengths += np.arange(len(lengths))
        columns = np.stack([means, lengths], axis=1) + (self._fault == "state") * self._calls
        if self._fault == "nan":
            columns[:1] = np.nan
        return columns.astype(np.float64 if self._fault == "dtype" else np.float32)

    def _store(self, reading: PromptStates) -> Any:
        if self._fault == "takes the first":
            return reading.states[0]
        store = find_store(reading.states, self._source.provenance)
        if store.rounding not in ("float32", self._source.rounding) and self._fault != "any type":
            raise ProvenanceError("of another type")
        return store

    def _states(self, store: Any, keys: tuple[str, ...]) -> NDArray[np.float32]:
        if self._fault == "makes up":
            keys = tuple(key if not store.missing([key]) else store.keys[0] for key in keys)
        if self._fault == "changes its input":
            store.states[SITE][:] *= 2
        rows = store.read(SITE, keys)
        return rows if self._fault == "exact" else round_states(rows, self._source.rounding)

    def to_dict(self) -> dict[str, Any]:
        return {"kind": self.kind, "nested": {"sizes": [1, 2]}}

    def tensors(self) -> dict[str, NDArray[Any]]:
        return {"scale": self._scale}

    def load(self, config: Any, tensors: Mapping[str, NDArray[Any]]) -> "Bent":
        is_same = config == self.to_dict()
        if self._fault == "unchecked inside":
            is_same = is_same or (config.keys() == {"kind", "nested"} and config["kind"] == "bent")
        if set(tensors) != {"scale"} or not (is_same or self._fault == "unchecked"):
            raise CorruptError("not a bent family")
        scale = tensors["scale"]
        is_finite = self._fault == "unchecked values" or np.isfinite(scale).all()
        if scale.shape != (1,) or scale.dtype != np.float32 or not is_finite:
            raise CorruptError("its scale")
        return Bent(self._source, scale + np.float32(self._fault == "load"), self._fault)

    @classmethod
    def from_dict(cls, config: Mapping[str, Any], tensors: Mapping[str, NDArray[Any]]) -> "Bent":
        raise NotImplementedError


FAULTS = [
    "any type",
    "batch",
    "changes its input",
    "claims all",
    "dtype",
    "exact",
    "load",
    "makes up",
    "nan",
    "order",
    "state",
    "takes the first",
    "unchecked",
    "unchecked inside",
    "unchecked values",
    "width",
]


def check_bent(fault: str) -> None:
    activations = states()
    bent = Bent(EncoderStates.of(activations), np.ones(1, np.float32), fault)
    check_family(bent, PromptStates.of_dataset(DATASET, [activations]), load=bent.load)


def test_contract_passes_a_sound_family() -> None:
    check_bent("")


@pytest.mark.parametrize("fault", FAULTS)
def test_contract_finds(fault: str) -> None:
    with pytest.raises((AssertionError, pytest.fail.Exception, StoreError)):
        check_bent(fault)


def test_the_features_of_prefill_keep_the_contract() -> None:
    stores = [states_of(DATASET, encoder=FakeEncoder(name=name)) for name in ("one", "two")]
    whose = dict(zip(DATASET.pool.names, [*stores, stores[0]], strict=True))
    extractor = FeatureExtractor.fit(stores, DATASET, dim=5, mode="per_model", assignments=whose)
    check_family(
        extractor, PromptStates.of_dataset(DATASET, stores), load=FeatureExtractor.from_dict
    )
    extractor = FeatureExtractor.fit([states()], DATASET, dim=5)
    check_family(
        extractor, PromptStates.of_dataset(DATASET, [states()]), load=FeatureExtractor.from_dict
    )
