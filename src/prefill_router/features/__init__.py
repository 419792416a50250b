"""Equation 3: what the predictor reads of a query, of prefill states and of the text itself."""

from prefill_router.features.base import EncoderStates, Family, FamilyConfig, Need, PromptStates
from prefill_router.features.extractor import Block, FeatureExtractor
from prefill_router.features.modes import Mode

__all__ = [
    "Block",
    "EncoderStates",
    "Family",
    "FamilyConfig",
    "FeatureExtractor",
    "Mode",
    "Need",
    "PromptStates",
]
