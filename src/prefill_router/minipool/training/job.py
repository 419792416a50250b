"""The whole job: every model trained and written."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import torch
from transformers.utils import logging as transformers_logging

from prefill_router.errors import ConfigError
from prefill_router.files import check_place
from prefill_router.minipool.training.loop import train
from prefill_router.minipool.training.picture import draw_curves
from prefill_router.minipool.training.profiles import PROFILES
from prefill_router.minipool.training.saving import save
from prefill_router.minipool.training.skills import write_skills
from prefill_router.minipool.training.vocabulary import make_tokenizer
from prefill_router.progress import BarProgress, Progress


def train_models(
    out: Path,
    names: Sequence[str],
    *,
    threads: int = 1,
    steps: int | None = None,
    progress: Progress | None = None,
) -> None:
    """Train these models and write each to a folder of its name.

    Args:
        out: Where the folders go; what stands there under their names is replaced.
        names: The models.
        threads: Of torch; with one, the weights are the same bit for bit each time.
        steps: Instead of the models' own.
        progress: Shows how far it is.

    Raises:
        ConfigError: There is no such model, the folder can't be made, or a number makes no sense.
    """
    unknown = sorted(set(names) - set(PROFILES))
    if unknown:
        raise ConfigError(f"there are no models {unknown}; the pool has {list(PROFILES)}")
    if threads < 1 or (steps is not None and steps < 1):
        raise ConfigError(f"threads are {threads} and steps {steps}; both must be at least one")
    torch.set_num_threads(threads)
    transformers_logging.disable_progress_bar()  # type: ignore[no-untyped-call]
    tokenizer = make_tokenizer()
    for name in names:
        check_place(out / name)
        profile = PROFILES[name]
        if steps is not None:
            profile = replace(profile, steps=steps)
        trained = train(profile, tokenizer, progress=progress or BarProgress())
        save(trained, tokenizer, profile, out / name)


def summarise(out: Path) -> None:
    """Draw the curves of the models that are there, and write a table of what they can do."""
    names = [name for name in PROFILES if (out / name / "config.json").is_file()]
    draw_curves(out, names)
    write_skills(out, names)
