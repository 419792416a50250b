"""A made-up dataset of any size, and an encoder without a network whose states carry its signal.

A prompt holds its number and six latent numbers; the labels of each target follow from these, and
so do the states. Tables are written as columns, so that making a million queries takes seconds.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import final

import numpy as np
import polars as pl
from numpy.typing import NDArray

from prefill_router.activations import Provenance, Site
from prefill_router.data import Query
from prefill_router.encoders import Encoder, States, TokenizedPrompt, pair_tokens
from prefill_router.progress import Progress
from prefill_router.targets import Pool, Target, write_pool

LATENTS, TARGETS, MISSING, AT_ONCE = 6, 14, 0.05, 100_000
BENCHMARKS, DOMAINS = 4, 10


def write_world(folder: Path, queries: int, *, seed: int = 0, answers: bool = True) -> None:
    """Write the dataset's folder; without answers, only its prompts."""
    folder.mkdir(parents=True)
    latent = np.random.default_rng(seed).integers(10, 100, (queries, LATENTS), dtype=np.int64)
    number = np.arange(queries)
    columns = {f"z{k}": latent[:, k] for k in range(LATENTS)}
    named = [pl.col(name) for name in columns]
    frame = pl.DataFrame({"i": number, **columns}).select(
        query_id=pl.format("q{}", pl.col("i")),
        prompt=pl.format("{} " + " ".join(["{}"] * LATENTS) + "{}", pl.col("i"), *named, _tail()),
        benchmark=pl.format("benchmark-{}", pl.col("i") % BENCHMARKS),
        domain=pl.format("domain-{}", pl.col("i") % DOMAINS),
    )
    frame.write_parquet(folder / "queries.parquet", row_group_size=AT_ONCE)
    pool = Pool(
        tuple(
            Target(name=f"target-{k}", input_price=0.05 * 1.4**k, output_price=0.2 * 1.4**k)
            for k in range(TARGETS)
        ),
        prices_date="2026-01-01",
    )
    write_pool(pool, folder / "pool.yaml")
    if answers:
        _outcomes(latent, seed).write_parquet(folder / "outcomes.parquet")


def _tail() -> pl.Expr:
    """Up to seven further words, so that prompts differ in length."""
    return pl.lit(" more").repeat_by(pl.col("i") % 8).list.join("")


def _outcomes(latent: NDArray[np.int64], seed: int) -> pl.DataFrame:
    random = np.random.default_rng([seed, 1])
    taste = random.normal(0, 0.7, (LATENTS, TARGETS))
    logits = _scale(latent).astype(np.float64) @ taste + np.linspace(-1, 1, TARGETS)
    correct = random.random(logits.shape) < 1 / (1 + np.exp(-logits))
    rows, columns = np.nonzero(random.random(logits.shape) >= MISSING)
    return pl.DataFrame(
        {
            "i": rows,
            "k": columns,
            "correct": correct[rows, columns],
            "input_tokens": 8 + rows % 8,
            "output_tokens": random.integers(20, 400, len(rows)),
        }
    ).select(
        query_id=pl.format("q{}", pl.col("i")),
        target=pl.format("target-{}", pl.col("k")),
        correct="correct",
        input_tokens="input_tokens",
        output_tokens="output_tokens",
    )


def _scale(latent: NDArray[np.int64]) -> NDArray[np.float32]:
    return ((latent - 54.5) / 26).astype(np.float32)


@final
@dataclass(frozen=True)
class LatentEncoder(Encoder):
    """States are a fixed mixture of a prompt's latent numbers, and noise drawn from its number.

    Attributes:
        hidden_size: Width of the states.
        num_layers: Blocks.
    """

    hidden_size: int = 128
    num_layers: int = 4

    @property
    def provenance(self) -> Provenance:
        """How the states are made."""
        return Provenance(
            encoder="latent",
            revision=f"latent:{self.hidden_size}",
            template="plain",
            template_hash="words",
            max_tokens=64,
            dtype="float32",
            num_layers=self.num_layers,
            hidden_size=self.hidden_size,
        )

    @property
    def layers(self) -> tuple[int, ...]:
        """The layers that can be read."""
        return tuple(range(self.num_layers + 1))

    def tokenize(self, queries: Sequence[Query]) -> list[TokenizedPrompt]:
        """The words of each prompt; one that is no number is 0."""
        ids = [
            [int(word) if word.isdecimal() else 0 for word in str(query.prompt).split()]
            for query in queries
        ]
        return pair_tokens(queries, ids, max_tokens=64, encoder="latent")

    def states(
        self,
        prompts: Sequence[TokenizedPrompt],
        sites: Sequence[Site],
        *,
        progress: Progress | None = None,
    ) -> dict[Site, States]:
        """The states of each prompt at each site."""
        del progress
        ids = np.stack([prompt.ids[: 1 + LATENTS] for prompt in prompts]).astype(np.int64)
        return {site: self._site(ids, site) for site in sites}

    def _site(self, ids: NDArray[np.int64], site: Site) -> States:
        random = np.random.default_rng([site.layer, len(site.pooling)])
        mixture = random.normal(0, 1, (LATENTS, self.hidden_size)).astype(np.float32)
        waves = random.uniform(1, 100, self.hidden_size)
        noise = np.sin(ids[:, :1] * waves).astype(np.float32)
        states: States = _scale(ids[:, 1:]) @ mixture + 2 * noise
        return states
