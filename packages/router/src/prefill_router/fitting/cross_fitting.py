"""Judges a fitted router on all rows that it learned from, by fitting it again without them.

Each fold is fitted as the router was: with its recipe chosen again where it was chosen, its
calibration part drawn again, its neighbours searched among the other rows. A finished fold is kept
until all are done, so that interrupted work goes on where it stopped.
"""

import hashlib
import json
import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import final

import numpy as np
from jaxtyping import Int64
from numpy.typing import NDArray
from pydantic_core import to_jsonable_python

from prefill_router import __version__, files
from prefill_router.activations import Activations
from prefill_router.data import RoutingDataset, Split, stratified_folds
from prefill_router.errors import ConfigError, CorruptError, DataError, FitError
from prefill_router.fitting.recipe import FitConfig
from prefill_router.progress import Progress, SilentProgress
from prefill_router.router import CrossFit, FoldChoices, Router

FOLDS = 5
"""Folds of the cross-fit; each is fitted on four fifths of the rows."""
Learn = Callable[[RoutingDataset], Router]
"""Fits a router on all rows of a dataset, with its recipe chosen as for the router that is kept."""


@final
@dataclass(frozen=True, eq=False)
class CrossFitter:
    """Fits the folds of a router's rows.

    Attributes:
        dataset: The scored answers.
        states: The states of its queries.
        split: The router's split; its test part takes no part.
        config: The options of the fit.
        folder: Where finished folds are kept until all are; None keeps them in memory.
    """

    dataset: RoutingDataset
    states: Sequence[Activations]
    split: Split
    config: FitConfig
    folder: Path | None = None

    def fit(self, learn: Learn, *, progress: Progress | None = None) -> CrossFit:
        """Predict every row by a router that is fitted without it.

        Args:
            learn: Fits a router.
            progress: Shows the folds done.

        Raises:
            FitError: There are too few distinct queries, or a fold can't be fitted.
        """
        rows = self.dataset.select(_list_learned_ids(self.split))
        try:
            fold = stratified_folds(rows, count=FOLDS, seed=self.config.seed)
        except DataError as error:
            raise FitError(f"a verdict by cross-fitting needs more queries: {error}") from None
        cache = None if self.folder is None else self.folder / self._hash_inputs()
        parts = []
        with (progress or SilentProgress()).task("verdict", total=float(FOLDS)) as advance:
            for number in range(FOLDS):
                parts.append(self._load_or_fit(rows, fold, number, learn, cache))
                advance(note=f"fold {number + 1} of {FOLDS}")
        return CrossFit.join(parts)

    def forget(self) -> None:
        """Remove the finished folds, once what they are for is done."""
        if self.folder is not None:
            shutil.rmtree(self.folder / self._hash_inputs(), ignore_errors=True)

    def _load_or_fit(
        self,
        rows: RoutingDataset,
        fold: Int64[NDArray[np.int64], " query"],
        number: int,
        learn: Learn,
        cache: Path | None,
    ) -> CrossFit:
        """One fold, as it was kept or fitted now."""
        folder = None if cache is None else cache / str(number)
        ids = np.array(rows.query_ids, dtype=object)
        judged = rows.select(ids[fold == number].tolist())
        entry = None if folder is None else _load_fold(folder, judged.query_ids)
        if entry is not None:
            return entry
        router = learn(rows.select(ids[fold != number].tolist()))
        predictions = router.predict(judged, stores=self.states)
        references = router.record.references
        if references is None:
            raise ConfigError("a fold's router has no references; fit it with this package")
        choices = FoldChoices(predictions.scale, router.record.chosen, references)
        result = CrossFit(predictions, np.zeros(len(judged), dtype=np.int64), (choices,))
        if folder is not None:
            with files.replacing_folder(folder) as temporary:
                result.save(temporary)
        return result

    def _hash_inputs(self) -> str:
        """A hash of everything that the folds depend on."""
        inputs = {
            "dataset": self.dataset.fingerprint,
            "split": self.split.to_dict(),
            "config": to_jsonable_python(self.config.to_dict()),
            "pool": self.dataset.pool.public().to_dict(),
            "tables": _hash_tables(self.dataset),
            "soft labels": _hash_soft_labels(self.config),
            "states": sorted(f"{store.provenance} {store.sites}" for store in self.states),
            "package": __version__,
        }
        text = json.dumps(inputs, sort_keys=True)
        return "cross-fit-" + hashlib.sha256(text.encode()).hexdigest()[:16]


def _load_fold(folder: Path, ids: Sequence[str]) -> CrossFit | None:
    """A fold that was kept; None where there is none of these queries that can be read."""
    try:
        entry = CrossFit.load(folder)
    except CorruptError:
        return None
    return entry if entry is not None and entry.predictions.query_ids == tuple(ids) else None


def _hash_tables(dataset: RoutingDataset) -> str:
    """A hash of everything that is known of the answers."""
    digest = hashlib.sha256(json.dumps(dataset.domains).encode())
    for table in (
        *(dataset.correct, dataset.observed_cost, dataset.input_tokens, dataset.output_tokens),
        *(dataset.propensity, dataset.label_error, dataset.runs),
    ):
        digest.update(b"none" if table is None else np.ascontiguousarray(table).tobytes())
    return digest.hexdigest()


def _hash_soft_labels(config: FitConfig) -> str:
    soft = config.recipe.soft_labels
    return "" if soft is None else files.file_digest(soft.file)


def _list_learned_ids(split: Split) -> list[str]:
    return [name for part, ids in split.parts.items() if part != "test" for name in ids]
