"""The locations of a router's encoders, and the states of a dataset.

States come from a complete store, from the cache, or from the encoder at run time.
"""

import hashlib
import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import final

import numpy as np
from jaxtyping import Int
from numpy.typing import NDArray

from prefill_router.activations import Activations, Provenance, Rounding, Site
from prefill_router.data import Query, RoutingDataset, prompt_text
from prefill_router.encoders import Encoder, EncoderName, encode_dataset
from prefill_router.features import FeatureSet, PromptStates, find_store
from prefill_router.progress import Progress, SilentProgress


@final
@dataclass(frozen=True, kw_only=True)
class EncoderSources:
    """The locations of a router's encoders.

    Attributes:
        loaded: Encoders that are loaded already; these are tried first.
        folders: Folders of local encoders, by their names on the router's card.
        device: The device to run them on, such as `cpu` or `cuda:1`; by default a GPU where there
            is one.
        trust_remote_code: Whether code that comes with the weights may run.
    """

    loaded: tuple[Encoder, ...] = ()
    folders: Mapping[str, Path | str] = field(default_factory=dict)
    device: str | None = None
    trust_remote_code: bool = False

    def place_of(self, name: str) -> Path | str | None:
        """The folder of an encoder; for `sentence:x` and `signals:x` also that given for x."""
        place = EncoderName.parse(name).place
        return self.folders.get(name, self.folders.get(place))


Load = Callable[[Provenance], Encoder]
"""Loads the encoder of a provenance."""
_WORD = re.compile(r"\w+|[^\w\s]")


def finished_store(
    stores: Sequence[Activations],
    provenance: Provenance,
    sites: Sequence[Site],
    rounding: Rounding,
    keys: Sequence[str],
) -> Activations | None:
    """The store that holds all these states, if one of `stores` does."""
    for store in stores:
        same = store.provenance == provenance and store.rounding == rounding
        if same and set(sites) <= set(store.sites) and not store.missing(keys):
            return store
    return None


def cached_states(
    dataset: RoutingDataset,
    encoder: Encoder,
    cache: Path,
    *,
    sites: Sequence[Site],
    rounding: Rounding,
    progress: Progress,
) -> Activations:
    """Encode what the cache lacks; after an interruption the next call continues from there."""
    what = [encoder.provenance.to_dict(), [site.name for site in sites], rounding]
    name = hashlib.sha256(json.dumps(what, sort_keys=True).encode()).hexdigest()[:16]
    return encode_dataset(
        dataset, encoder, cache / name, sites=sites, rounding=rounding, progress=progress
    )


def dataset_states(
    dataset: RoutingDataset,
    features: FeatureSet,
    *,
    stores: Sequence[Activations],
    cache: Path | None,
    load: Load,
    progress: Progress,
) -> list[Activations]:
    """The states of a dataset that the features need: from complete stores, or encoded now.

    Args:
        dataset: The dataset.
        features: The features.
        stores: Stores of any encoders.
        cache: The folder for states that are encoded now; in memory if not given.
        load: Loads an encoder if it is needed.
        progress: Shows the progress of encoding.
    """
    states: list[Activations] = []
    for provenance, rounding, sites in _read_of(features):
        held = finished_store(stores, provenance, sites, rounding, dataset.prompt_keys)
        if held is not None:
            states.append(held)
        elif cache is None:
            made = load(provenance).encode(
                dataset.queries, sites, rounding=rounding, progress=progress
            )
            states.append(made)
        else:
            kept = cached_states(
                dataset, load(provenance), cache, sites=sites, rounding=rounding, progress=progress
            )
            states.append(kept)
    return states


def encoded_states(
    queries: Sequence[Query],
    features: FeatureSet,
    *,
    load: Load,
    progress: Progress | None = None,
) -> list[Activations]:
    """The states of some queries that the features need, encoded now."""
    return [
        load(provenance).encode(
            queries, sites, rounding=rounding, progress=progress or SilentProgress()
        )
        for provenance, rounding, sites in _read_of(features)
    ]


def _read_of(features: FeatureSet) -> Iterator[tuple[Provenance, Rounding, tuple[Site, ...]]]:
    for source in features.sources:
        yield source.provenance, source.rounding, features.sites_of(source.provenance)


def count_tokens(features: FeatureSet, reading: PromptStates) -> Int[NDArray[np.int64], " query"]:
    """The length of each prompt in tokens of the first encoder; without one, in words and symbols.

    Each target's own count is this times a learned ratio (`cost.CostEstimator`).
    """
    if features.provenances:
        store = find_store(reading.states, features.provenances[0])
        return store.tokens(reading.keys)
    lengths = [max(1, len(_WORD.findall(prompt_text(prompt)))) for prompt in reading.prompts]
    return np.array(lengths, dtype=np.int64)
