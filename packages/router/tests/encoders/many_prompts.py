"""Encodes more and more prompts, and prints the most memory that it had after each folder."""

import resource
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from prefill_router.activations import Provenance, Site
from prefill_router.data import Query, QueryFile, folder as folder_module
from prefill_router.encoders import (
    Encoder,
    States,
    TokenizedPrompt,
    pair_tokens,
    plan_encoding,
    run_encoding,
)
from prefill_router.progress import Progress
from prefill_router.testing import FakeEncoder

SITE = Site(1, "mean")


class LengthEncoder(Encoder):
    """Its states are the lengths of prompts, in two dimensions."""

    @property
    def provenance(self) -> Provenance:
        return replace(FakeEncoder().provenance, hidden_size=2)

    @property
    def layers(self) -> tuple[int, ...]:
        return (1,)

    def tokenize(self, queries: Sequence[Query]) -> list[TokenizedPrompt]:
        ids = [range(1 + len(query.prompt) % 20) for query in queries]
        return pair_tokens(queries, ids, max_tokens=64, encoder="length")

    def states(
        self,
        prompts: Sequence[TokenizedPrompt],
        sites: Sequence[Site],
        *,
        progress: Progress | None = None,
    ) -> dict[Site, States]:
        del progress
        lengths = np.array([[prompt.count] * 2 for prompt in prompts], dtype=np.float32)
        return dict.fromkeys(sites, lengths)


def main() -> None:
    for folder in map(Path, sys.argv[1:]):
        encode_twice(folder)
        most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
        sys.stdout.write(f"{most}\n")


def encode_twice(folder: Path) -> None:
    folder_module.BLOCK_ROWS = 5000  # so that few prompts are many
    encoder, cache = LengthEncoder(), folder / "cache"
    plan = plan_encoding(
        QueryFile.open(folder / "data"), encoder, folder / "s", sites=[SITE], cache=cache
    )
    run_encoding(plan, encoder)
    again = plan_encoding(
        QueryFile.open(folder / "data"), encoder, folder / "s", sites=[SITE], cache=cache
    )
    if (again.left, again.in_store) != (0, plan.prompts):
        raise SystemExit("not every prompt was encoded")


if __name__ == "__main__":
    main()
