"""Public fakes: small, deterministic stand-ins for tests of code that uses this package."""

import hashlib
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import final

import numpy as np
from numpy.typing import NDArray

from prefill_router.activations import Provenance, Site
from prefill_router.data import Query, RoutingDataset, prompt_text
from prefill_router.encoders import Encoder, States, TokenizedPrompt, check_prompt, pair_tokens
from prefill_router.progress import Progress, SilentProgress
from prefill_router.targets import Pool, Target

_DIFFICULTY = re.compile(r"of difficulty ([0-9.]+[0-9])")


def make_routing_dataset(
    *,
    queries: int = 200,
    targets: int = 3,
    missing: float = 0.0,
    benchmarks: int = 2,
    seed: int = 0,
) -> RoutingDataset:
    """A made-up dataset whose labels follow from the prompts.

    Each prompt states its own difficulty. Target k is better and more expensive than target k - 1,
    and its answer is correct where its skill, with some noise, exceeds the difficulty.

    Args:
        queries: The number of queries.
        targets: The number of targets.
        missing: The share of outcomes that weren't measured.
        benchmarks: The number of benchmarks, to which the queries are assigned in turn.
        seed: The seed of the random numbers.
    """
    random = np.random.default_rng(seed)
    difficulty = random.random(queries)
    skill = np.linspace(0.3, 0.8, targets)
    shape = (queries, targets)
    correct = (skill + random.normal(0, 0.15, shape) > difficulty[:, None]).astype(np.float64)
    correct[random.random(shape) < missing] = np.nan
    pool = Pool(
        tuple(
            Target(name=f"target-{k}", input_price=0.1 * 4.0**k, output_price=0.4 * 4.0**k)
            for k in range(targets)
        ),
        prices_date="2026-01-01",
    )
    rows = tuple(
        Query(
            f"q{i}",
            f"Question {i} of difficulty {hard:.2f}: {'why ' * int(1 + 20 * hard)}?",
            benchmark=f"benchmark-{i % benchmarks}",
            domain=f"domain-{i % 3}",
        )
        for i, hard in enumerate(difficulty.tolist())
    )
    inputs = np.repeat(random.integers(10, 200, (queries, 1)), targets, axis=1)
    outputs = random.integers(20, 400, shape)
    unknown = np.where(np.isnan(correct), np.nan, 1.0)
    return RoutingDataset.of(
        rows,
        pool,
        correct,
        input_tokens=inputs.astype(np.float64) * unknown,
        output_tokens=outputs.astype(np.float64) * unknown,
    )


@final
@dataclass(frozen=True)
class FakeEncoder(Encoder):
    """An encoder without a network: its states follow from the text alone.

    A token is a character. Every state is noise drawn from the text, the layer and the pooling. At
    `planted_layer` the difficulty that a prompt of `make_routing_dataset` states is added along one
    direction, so that a good layer selection finds that layer.

    Attributes:
        num_layers: Blocks, L.
        hidden_size: Width of the states.
        planted_layer: The layer whose states depend on the difficulty.
        signal: How far the difficulty moves a state there, in standard deviations of the noise.
        max_tokens: Longer prompts lose their middle.
        name: The encoder's name, from which its noise is drawn too.
    """

    num_layers: int = 4
    hidden_size: int = 16
    planted_layer: int = 3
    signal: float = 8.0
    max_tokens: int = 256
    name: str = "fake"

    @property
    def provenance(self) -> Provenance:
        """How the states are made."""
        return Provenance(
            encoder=self.name,
            revision=f"fake:{self.planted_layer}:{self.signal}",
            template="plain",
            template_hash="characters",
            max_tokens=self.max_tokens,
            dtype="float32",
            num_layers=self.num_layers,
            hidden_size=self.hidden_size,
        )

    @property
    def layers(self) -> tuple[int, ...]:
        """The layers that can be read."""
        return tuple(range(self.num_layers + 1))

    def tokenize(self, queries: Sequence[Query]) -> list[TokenizedPrompt]:
        """The characters of each prompt.

        Raises:
            PromptError: A prompt is empty or can't be encoded.
        """
        for query in queries:
            check_prompt(query)
        ids = [[ord(character) for character in prompt_text(query.prompt)] for query in queries]
        return pair_tokens(queries, ids, max_tokens=self.max_tokens, encoder=self.name)

    def states(
        self,
        prompts: Sequence[TokenizedPrompt],
        sites: Sequence[Site],
        *,
        progress: Progress | None = None,
    ) -> dict[Site, States]:
        """The states of each prompt at each site, in order."""
        self.check_sites(sites)
        rows: dict[Site, list[NDArray[np.float64]]] = {site: [] for site in sites}
        with (progress or SilentProgress()).task("prompts", total=float(len(prompts))) as advance:
            for prompt in prompts:
                text = "".join(map(chr, prompt.ids))
                for site in sites:
                    rows[site].append(self._make_state(text, site))
                advance(1.0)
        shape = (len(prompts), self.hidden_size)
        return {s: np.array(r, dtype=np.float32).reshape(shape) for s, r in rows.items()}

    def _make_state(self, text: str, site: Site) -> NDArray[np.float64]:
        seed = hashlib.sha256(f"{self.name} {site.name} {text}".encode()).digest()
        words = np.frombuffer(seed, np.uint8).astype(np.uint32)  # read faster than a list
        state = np.random.default_rng(words).normal(size=self.hidden_size)
        match = _DIFFICULTY.search(text)
        if site.layer == self.planted_layer and match:
            direction = np.sqrt(np.arange(1, self.hidden_size + 1) / self.hidden_size)
            state += self.signal * (float(match[1]) - 0.5) * direction
        return state
