"""A small, quick fit, and a router that reads with the fake encoder."""

import dataclasses

from prefill_router.features import FeatureExtractor
from prefill_router.features.prefill import PrefillConfig
from prefill_router.fitting import FitConfig, Recipe
from prefill_router.predictors import TrunkConfig
from prefill_router.router import EncoderSources, Router
from prefill_router.testing import FakeEncoder

SMALL = FitConfig(
    test=0.15,
    recipe=Recipe(
        features=(PrefillConfig(dim=8),),
        predictor=TrunkConfig(seeds=3, keep=2, max_epochs=20, batch_size=64),
    ),
    resamples=20,
)


def with_encoder(router: Router, encoder: FakeEncoder) -> Router:
    return dataclasses.replace(router, sources=EncoderSources(loaded=(encoder,)))


def prefill(router: Router) -> FeatureExtractor:
    """The prefill features, all that a router of `SMALL` reads."""
    [family] = router.features.families
    assert isinstance(family, FeatureExtractor)
    return family
