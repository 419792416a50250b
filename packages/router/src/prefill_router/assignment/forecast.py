"""The predictions for a file of prompts, in blocks, so that memory holds one block of texts."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from prefill_router.activations import Activations
from prefill_router.assignment.prompt_file import PromptFile
from prefill_router.data import BLOCK_ROWS, RoutingDataset, missing_table
from prefill_router.errors import ConfigError, FormatError
from prefill_router.policy import Predictions
from prefill_router.progress import Progress, SilentProgress
from prefill_router.router import Router

_ENCODING_ROWS = 2048
"""The prompts of a block where states are encoded: one shard of a store."""


def predict_prompts(
    router: Router,
    prompts: PromptFile,
    *,
    stores: Sequence[Activations] = (),
    cache: Path | None = None,
    progress: Progress | None = None,
) -> Predictions:
    """Predict every target for every prompt.

    Args:
        router: It must have learned from labels, not from votes, and know costs.
        prompts: The prompts.
        stores: Stores of states; prompts that none has are encoded now.
        cache: The folder for states that are encoded now; in memory if not given.
        progress: Shows the number of prompts that are predicted.

    Raises:
        ConfigError: The router learned from votes, or knows no costs.
        FormatError: There is no prompt, or one can't be read.
        PromptError: A prompt can't be encoded.
    """
    _check_router(router)
    parts: list[Predictions] = []
    size = BLOCK_ROWS if stores else _ENCODING_ROWS
    with (progress or SilentProgress()).task("prompts", total=prompts.size()) as advance:
        for block in prompts.blocks(size):
            queries = [record.query for record in block]
            nothing = missing_table((len(queries), len(router.pool)))
            dataset = RoutingDataset.of(queries, router.pool, nothing)
            parts.append(router.predict(dataset, stores=stores, cache=cache))
            advance(len(block))
    if not parts:
        raise FormatError("holds no prompt; give one a line", file=prompts.path)
    return _join_parts(parts)


def _join_parts(parts: Sequence[Predictions]) -> Predictions:
    return Predictions(
        query_ids=tuple(name for part in parts for name in part.query_ids),
        targets=parts[0].targets,
        correctness=np.concatenate([part.correctness for part in parts]),
        estimated_cost=np.concatenate([part.estimated_cost for part in parts]),
        scale=parts[0].scale,
    )


def _check_router(router: Router) -> None:
    if router.is_voted:
        raise ConfigError(
            "the router learned from votes, so it doesn't predict right answers; "
            "give a router that was fitted on labels"
        )
    if router.costs.is_free:
        raise ConfigError(
            "the router knows no costs, so it can't keep to a budget; give it prices with: "
            "prefill-router reprice ROUTER --prices pool.yaml"
        )
