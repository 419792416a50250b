"""Small routers for forecasts: one whose encoder another process can load, and a saved folder."""

from collections.abc import Callable
from pathlib import Path

import torch

from packages.router.tests.fakes.tiny_encoder import save_tiny_encoder
from prefill_router.activations import POOLINGS, Pooling, Site
from prefill_router.data import split
from prefill_router.encoders import load_encoder
from prefill_router.features.prefill import PrefillConfig
from prefill_router.fitting import FitConfig, Recipe, fit_router
from prefill_router.predictors import TrunkConfig
from prefill_router.router import EncoderSources, Router
from prefill_router.testing import make_routing_dataset

QUICK_CONFIG = FitConfig(
    recipe=Recipe(
        features=(PrefillConfig(dim=4, poolings=POOLINGS),),
        predictor=TrunkConfig(seeds=2, keep=1, max_epochs=3, batch_size=64),
    ),
    resamples=20,
)


def save_causal_encoder(folder: Path) -> Path:
    """Write a folder with a tiny causal network that reads bytes."""
    from transformers import LlamaConfig, LlamaModel  # takes seconds

    save_tiny_encoder(folder)  # for its tokenizer
    config = LlamaConfig(
        vocab_size=300,
        hidden_size=16,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=1,
        intermediate_size=32,
        max_position_embeddings=512,
    )
    with torch.random.fork_rng():
        torch.manual_seed(0)
        LlamaModel(config).save_pretrained(folder)
    return folder


def save_router(
    folder: Path, *, save: Callable[[Path], Path] = save_tiny_encoder, pooling: Pooling = "mean"
) -> tuple[Path, EncoderSources]:
    """Fit and save a router over a tiny network; its folder, and the sources of its encoder."""
    tiny = save(folder / "tiny")
    answers = make_routing_dataset(queries=120, targets=3)
    states = load_encoder(tiny, device="cpu").encode(answers.queries, [Site(2, pooling)])
    fit_router(answers, [states], config=QUICK_CONFIG, split=split(answers)).router.save(
        folder / "router"
    )
    return folder / "router", EncoderSources(folders={"tiny": tiny}, device="cpu")


def probabilities(router: Router, prompt: object) -> list[float]:
    """The router's probabilities, computed in this process."""
    return list(router.route(prompt).correctness.values())  # type: ignore[arg-type]
