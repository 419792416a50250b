"""Where the states of a dataset come from: a finished store, the cache, or the encoder, now."""

import hashlib
import json
import os
from collections.abc import Sequence
from pathlib import Path

from prefill_router.activations import Activations, Provenance, Rounding, Site
from prefill_router.data import RoutingDataset
from prefill_router.encoders import Encoder, encode_dataset
from prefill_router.progress import Progress


def default_cache() -> Path:
    """The folder of states that were encoded on the way.

    `PREFILL_ROUTER_CACHE` where it is set, else `prefill-router` in the user's cache folder.
    """
    chosen = os.environ.get("PREFILL_ROUTER_CACHE")
    if chosen:
        return Path(chosen)
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(base) / "prefill-router"


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
    """Encode what the cache lacks; interrupted, it goes on from there the next time."""
    what = [encoder.provenance.to_dict(), [site.name for site in sites], rounding]
    name = hashlib.sha256(json.dumps(what, sort_keys=True).encode()).hexdigest()[:16]
    return encode_dataset(
        dataset, encoder, cache / name, sites=sites, rounding=rounding, progress=progress
    )
