"""Fits of few epochs and folds, for tests that aren't about what a router has learned."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from unittest import mock

from prefill_router import training
from prefill_router.fitting import cross_fitting
from prefill_router.layers import selection

MOST_EPOCHS = 3


@contextmanager
def short_training() -> Iterator[None]:
    """Train networks for three epochs at most, and judge and choose layers on two folds."""
    train = training.train_epochs

    def train_shortly(trainer: training.Trainer, *, max_epochs: int, **options: Any) -> None:
        train(trainer, max_epochs=min(max_epochs, MOST_EPOCHS), **options)

    with (
        mock.patch.object(training, "train_epochs", train_shortly),
        mock.patch.object(cross_fitting, "FOLDS", 2),
        mock.patch.object(selection, "FOLDS", 2),
    ):
        yield
