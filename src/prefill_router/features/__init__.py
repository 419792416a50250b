"""Equation 3: what the predictor reads of a query."""

from prefill_router.features.block import Block, EncoderStates
from prefill_router.features.extractor import FeatureExtractor
from prefill_router.features.modes import Mode

__all__ = ["Block", "EncoderStates", "FeatureExtractor", "Mode"]
