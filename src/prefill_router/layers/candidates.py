"""Which sites of a store are considered."""

from collections.abc import Sequence

from prefill_router.activations import POOLINGS, Activations, Pooling, Site
from prefill_router.encoders import candidate_layers
from prefill_router.errors import ConfigError


def candidate_sites(
    activations: Activations,
    *,
    poolings: Sequence[Pooling] = POOLINGS,
    all_layers: bool = False,
) -> tuple[Site, ...]:
    """The held sites of these poolings, by default from layer ceil(L/2) to L (section 3.1).

    Args:
        activations: What is held.
        poolings: `last`, `mean` or both.
        all_layers: Whether layers below ceil(L/2) are candidates too.

    Raises:
        ConfigError: Nothing that is held is a candidate.
    """
    upper = candidate_layers(activations.provenance.num_layers)
    sites = tuple(
        site
        for site in sorted(activations.sites)
        if site.pooling in poolings and (all_layers or site.layer in upper)
    )
    if not sites:
        held = ", ".join(site.name for site in activations.sites)
        wanted = "any layer" if all_layers else f"layers {upper[0]} to {upper[-1]}"
        raise ConfigError(
            f"{activations.name} holds {held or 'no site'}, which has none of {wanted} with the "
            f"poolings {list(poolings)}; encode those, or allow all layers"
        )
    return sites
