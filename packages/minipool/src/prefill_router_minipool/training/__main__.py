"""Trains the models of the tiny pool, each into a folder of its own."""

import os
from pathlib import Path
from typing import Annotated

import typer

from prefill_router.errors import PrefillRouterError
from prefill_router_minipool.training.network import PROFILES


def main(
    out: Annotated[Path, typer.Option(help="The folder to write the models' folders to.")],
    only: Annotated[
        list[str] | None, typer.Option(help="One model; repeatable. All by default.")
    ] = None,
    threads: Annotated[
        int, typer.Option(help="More than one is faster, but not bitwise reproducible.")
    ] = 1,
    steps: Annotated[
        int | None, typer.Option(help="Fewer steps than the models' own, for a trial.")
    ] = None,
) -> None:
    """Train the tiny pool's models from their seeds.

    Example: python -m prefill_router_minipool.training --out weights
    """
    os.environ["TOKENIZERS_PARALLELISM"] = "false"  # for reproducibility with one thread
    from prefill_router_minipool.training.loop import summarise, train_models

    try:
        train_models(out, only or list(PROFILES), threads=threads, steps=steps)
        summarise(out)
    except PrefillRouterError as error:
        raise SystemExit(f"error: {error}") from None


if __name__ == "__main__":
    typer.run(main)
