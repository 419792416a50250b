"""Encoders: prompts in, hidden states at prefill out. Importing this loads no torch."""

from prefill_router.encoders.base import Encoder, TokenizedPrompt, candidate_layers
from prefill_router.encoders.load import MINILM, load_encoder, load_encoder_for, recorded_name
from prefill_router.encoders.names import OWN, EncoderName, default_sites, gives_own_vectors
from prefill_router.encoders.run import (
    EncodingPlan,
    EncodingReport,
    encode_dataset,
    plan_encoding,
    run_encoding,
)

__all__ = [
    "MINILM",
    "OWN",
    "Encoder",
    "EncoderName",
    "EncodingPlan",
    "EncodingReport",
    "TokenizedPrompt",
    "candidate_layers",
    "default_sites",
    "encode_dataset",
    "gives_own_vectors",
    "load_encoder",
    "load_encoder_for",
    "plan_encoding",
    "recorded_name",
    "run_encoding",
]
