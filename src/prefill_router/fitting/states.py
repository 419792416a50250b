"""The states that a recipe's features read: from stores that hold them, or encoded now."""

from collections.abc import Sequence
from pathlib import Path

from prefill_router.activations import Activations
from prefill_router.data import RoutingDataset
from prefill_router.encoders import default_sites, load_encoder, recorded_name
from prefill_router.features import Need
from prefill_router.progress import Progress
from prefill_router.router import EncoderSources
from prefill_router.router.states import cached_states, default_cache


def gather(
    needs: Sequence[Need],
    dataset: RoutingDataset,
    stores: Sequence[Activations],
    *,
    sources: EncoderSources | None = None,
    cache: Path | None = None,
    progress: Progress,
) -> tuple[Activations, ...]:
    """The stores given, and those that had to be made for needs that none of them meets.

    Args:
        needs: What must be there.
        dataset: The queries.
        stores: What is there.
        sources: Where encoders are found.
        cache: Keeps what is encoded now; the user's cache if not given.
        progress: Shows how far the encoding is.

    Raises:
        ConfigError: An encoder isn't found.
    """
    found = list(stores)
    for need in needs:
        if not any(_meets(store, need, dataset) for store in found):
            found.append(_encoded(need, dataset, sources or EncoderSources(), cache, progress))
    return tuple(found)


def _meets(store: Activations, need: Need, dataset: RoutingDataset) -> bool:
    return (
        store.provenance.encoder == recorded_name(need.encoder)
        and set(need.sites or ()) <= set(store.sites)
        and not store.missing(dataset.prompt_keys)
    )


def _encoded(
    need: Need,
    dataset: RoutingDataset,
    sources: EncoderSources,
    cache: Path | None,
    progress: Progress,
) -> Activations:
    by_name = {encoder.provenance.encoder: encoder for encoder in sources.loaded}
    encoder = by_name.get(recorded_name(need.encoder)) or load_encoder(
        sources.place_of(need.encoder) or need.encoder,
        device=sources.device,
        trust_remote_code=sources.trust_remote_code,
    )
    return cached_states(
        dataset,
        encoder,
        cache or default_cache(),
        sites=need.sites or default_sites(encoder.provenance),
        rounding="bfloat16",
        progress=progress,
    )
