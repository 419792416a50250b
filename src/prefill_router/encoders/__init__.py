"""Encoders: prompts in, hidden states at prefill out. Importing this loads no torch."""

from prefill_router.encoders.base import Encoder, TokenizedPrompt, candidate_layers
from prefill_router.encoders.load import MINILM, load_encoder, load_encoder_for
from prefill_router.encoders.run import (
    EncodingPlan,
    EncodingReport,
    encode_dataset,
    plan_encoding,
    run_encoding,
)

__all__ = [
    "MINILM",
    "Encoder",
    "EncodingPlan",
    "EncodingReport",
    "TokenizedPrompt",
    "candidate_layers",
    "encode_dataset",
    "load_encoder",
    "load_encoder_for",
    "plan_encoding",
    "run_encoding",
]
