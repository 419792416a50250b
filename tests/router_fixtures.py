"""A small, quick fit, and a router that reads with the fake encoder."""

import dataclasses

from prefill_router.fitting import FitConfig
from prefill_router.predictors import TrunkConfig
from prefill_router.router import EncoderSources, Router
from prefill_router.testing import FakeEncoder

SMALL = FitConfig(
    dim=8, trunk=TrunkConfig(seeds=3, keep=2, max_epochs=20, batch_size=64), resamples=20
)


def with_encoder(router: Router, encoder: FakeEncoder) -> Router:
    return dataclasses.replace(router, sources=EncoderSources(loaded=(encoder,)))
