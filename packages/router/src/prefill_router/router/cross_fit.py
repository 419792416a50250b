"""Predictions for the rows that a router learned from, each by a router that didn't see it.

The rows are divided into folds. For each fold a router is fitted on all other rows in the same way
as the one that is kept: its recipe, settings and references are chosen on these rows alone. It
predicts the fold. So every labelled row judges, and none was learned from.

A router keeps these predictions beside it, in `cross_fit.json` and `cross_fit.safetensors`, so that
every command can judge it on the rows that it was fitted on. Nothing in them affects decisions.
"""

import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, final

import numpy as np
from jaxtyping import Int64
from numpy.typing import NDArray
from pydantic import TypeAdapter, ValidationError
from safetensors.numpy import save

from prefill_router import files
from prefill_router.cost import CostScale
from prefill_router.data import RoutingDataset
from prefill_router.errors import CorruptError, DataError, PrefillRouterError
from prefill_router.policy import OperatingPoints, Policy, Predictions
from prefill_router.serialization import read_tensors
from prefill_router.short_repr import short_repr
from prefill_router.statistics import log_odds, sigmoid

if TYPE_CHECKING:
    from prefill_router.evaluation import JudgedPart

_SURE = 1e-6
"""The least distance of a probability from 0 and 1."""
FILES = ("cross_fit.json", "cross_fit.safetensors")
_FORMAT = "prefill-router cross-fit 1"


@final
@dataclass(frozen=True)
class FoldChoices:
    """What was chosen without the rows of one fold.

    Attributes:
        scale: The scale of its router's costs.
        points: The settings of its router; None where none could be chosen.
        references: What it is compared with: `evaluation.References.to_dict`.
    """

    scale: CostScale
    points: OperatingPoints | None
    references: dict[str, Any]


_FOLDS = TypeAdapter(tuple[FoldChoices, ...])


@short_repr
@final
@dataclass(frozen=True, eq=False)
class CrossFit:
    """Predictions out of fold, and what was chosen for each fold.

    Attributes:
        predictions: Every row once, by the router of its fold; on the scale of the first fold.
        fold: The fold of each row.
        choices: What was chosen for each fold.
    """

    predictions: Predictions
    fold: Int64[NDArray[np.int64], " query"]
    choices: tuple[FoldChoices, ...]

    @classmethod
    def join(cls, folds: Iterable["CrossFit"]) -> "CrossFit":
        """The rows of several folds, each of which has one."""
        parts = list(folds)
        tables = [part.predictions for part in parts]
        joined = Predictions(
            query_ids=tuple(name for table in tables for name in table.query_ids),
            targets=tables[0].targets,
            correctness=np.concatenate([table.correctness for table in tables]),
            estimated_cost=np.concatenate([table.estimated_cost for table in tables]),
            scale=tables[0].scale,
        )
        fold = np.repeat(np.arange(len(parts)), [len(table) for table in tables])
        return cls(joined, fold, tuple(part.choices[0] for part in parts))

    @property
    def comparable_predictions(self) -> Predictions:
        """The predictions of all folds, comparable across them.

        The mean log-odds of each target are those of all rows in every fold. Without that, a fold
        whose rows are easy by chance would be predicted by routers that saw the harder ones. The
        ranks of rows in different folds would then be worse than chance.
        """
        logits = log_odds(np.clip(self.predictions.correctness, _SURE, 1 - _SURE))
        means = np.stack(
            [logits[self.fold == place].mean(axis=0) for place in range(len(self.choices))]
        )
        centred = sigmoid(logits - means[self.fold] + logits.mean(axis=0))
        return replace(self.predictions, correctness=centred)

    def judged_parts(
        self, dataset: RoutingDataset, *, policy: Policy, lam: float | None = None
    ) -> "list[JudgedPart]":
        """The rows of a dataset by fold, ready for `evaluation.judge`.

        Args:
            dataset: Labels and observed costs; rows without a prediction are left out.
            policy: The router's policy.
            lam: A setting for all folds; that of each fold if not given.

        Raises:
            DataError: The dataset has none of these rows.
        """
        from prefill_router.evaluation import JudgedPart, References, Trial

        parts, there = [], set(dataset.query_ids)
        for place, choices in enumerate(self.choices):
            ids = [self.predictions.query_ids[row] for row in np.flatnonzero(self.fold == place)]
            ids = [name for name in ids if name in there]
            if not ids or np.isnan(dataset.select(ids).correct).all():
                continue
            predictions = replace(self.predictions.select(ids), scale=choices.scale)
            trial = Trial.join(predictions, dataset, policy=policy)
            references = References.from_dict(choices.references)
            parts.append(JudgedPart(trial, references, choices.points, lam))
        if not parts:
            raise DataError(
                "the dataset has no labelled query that the router was fitted on; give the dataset "
                "that it was fitted on, or judge it on new queries with --part unseen"
            )
        return parts

    def save(self, folder: Path) -> None:
        """Write both files into a folder."""
        predictions = self.predictions
        files.write_json(
            folder / FILES[0],
            {
                "format": _FORMAT,
                "targets": list(predictions.targets),
                "query_ids": list(predictions.query_ids),
                "folds": _FOLDS.dump_python(self.choices, mode="json"),
            },
        )
        tables = {"fold": self.fold.astype(np.int64), **_select_tables(predictions)}
        (folder / FILES[1]).write_bytes(save(tables))

    @classmethod
    def load(cls, folder: Path) -> "CrossFit | None":
        """Read both files; None where the folder has none.

        Raises:
            CorruptError: They aren't what was written, or are of another version.
        """
        place = folder / FILES[0]
        if not place.is_file():
            return None
        try:
            value = json.loads(place.read_text(encoding="utf-8"))
            if value["format"] != _FORMAT:
                raise ValueError(f"format {value['format']}, and this package reads {_FORMAT}")
            return cls._from_parts(value, read_tensors(folder / FILES[1]).tensors)
        except (KeyError, TypeError, ValueError, ValidationError, PrefillRouterError) as error:
            raise CorruptError(f"{place} isn't what was written: {error}; fit it again") from None

    @classmethod
    def _from_parts(
        cls, value: Mapping[str, Any], tensors: Mapping[str, NDArray[Any]]
    ) -> "CrossFit":
        choices = _FOLDS.validate_python(value["folds"])
        predictions = Predictions(
            query_ids=tuple(value["query_ids"]),
            targets=tuple(value["targets"]),
            correctness=tensors["correctness"],
            estimated_cost=tensors["estimated_cost"],
            scale=choices[0].scale,
        )
        return cls(predictions, tensors["fold"], choices)


def _select_tables(predictions: Predictions) -> dict[str, NDArray[np.float64]]:
    tables = asdict(predictions)
    return {name: tables[name] for name in ("correctness", "estimated_cost")}
