"""The test part under seal: searching code is given train rows and can't reach any other.

`seal` parts a dataset in two. What searches takes a `TrainOnly`; what judges in the end breaks the
seal of a `SealedTest`, which leaves a mark on the disk, so that nobody looks twice by accident.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, final

from prefill_router import files
from prefill_router.data import Part, RoutingDataset, Split, split
from prefill_router.errors import ConfigError, CorruptError, DataError
from prefill_router.fitting import Recipe
from prefill_router.studies.search.space import key_of

MARK = "opened.json"
"""The file that says when a test part was opened, and for which configuration."""
CALIBRATION: Mapping[Part, float] = {"train": 15 / 17, "calibration": 2 / 17}
"""What is held out of the rows that aren't test where there is a calibrator: 75 to 10 parts."""


@final
@dataclass(frozen=True, eq=False)
class TrainOnly:
    """Rows that may be searched on.

    Attributes:
        dataset: These rows, and no others.
        withheld: The ids of the test part, none of which the rows may have.

    Raises:
        DataError: Test rows are among them.
    """

    dataset: RoutingDataset
    withheld: frozenset[str] = field(repr=False)

    def __post_init__(self) -> None:
        leaked = sum(query_id in self.withheld for query_id in self.dataset.query_ids)
        if leaked:
            raise DataError(
                f"{leaked} of {len(self.dataset)} rows to search on belong to the test part; "
                "part them with studies.search.seal"
            )


@final
@dataclass(frozen=True, eq=False)
class SealedTest:
    """A dataset whose test part can be opened once, for one configuration.

    Attributes:
        mark: The file that says whether it was.
    """

    mark: Path
    _dataset: RoutingDataset = field(repr=False)
    _drawn: Split = field(repr=False)

    @property
    def openings(self) -> list[dict[str, Any]]:
        """When it was opened, and for what; empty while it is sealed.

        Raises:
            CorruptError: The mark can't be read.
        """
        try:
            value = json.loads(self.mark.read_text(encoding="utf-8"))
            found = value["openings"]
            if not all({"date", "configuration"} <= set(one) for one in found):
                raise KeyError("configuration")
        except FileNotFoundError:
            return []
        except (OSError, ValueError, KeyError, TypeError, RecursionError):
            raise CorruptError(
                f"{self.mark} isn't what was written, so nobody knows whether the test part was "
                "opened; search in another folder, on another split"
            ) from None
        return list(found)

    def split_for(self, recipe: Recipe, *, seed: int) -> Split:
        """The split that a recipe is fitted on: with a calibration part where it needs one."""
        return with_calibration(self._train(), self._drawn, seed=seed, recipe=recipe)

    def open(self, recipe: Recipe, *, again: bool = False) -> RoutingDataset:
        """Break the seal: the whole dataset, to judge one configuration.

        The mark is on the disk before anything is given out. The same configuration may be judged
        again, since nothing is learned from that.

        Args:
            recipe: What will be judged.
            again: Open it for another configuration than before, too; the mark says so.

        Raises:
            ConfigError: It was opened for another configuration.
        """
        before, key = self.openings, key_of(recipe)
        if any(one["configuration"] == key for one in before):
            return self._dataset
        if before and not again:
            raise ConfigError(
                f"the test part was opened on {before[-1]['date']} for another configuration "
                f"({before[-1]['configuration']}, now {key}); choosing by its numbers would make "
                "them worthless. Judge the new one on new data, or open it with --open-again, "
                "which the report will say"
            )
        entry = {
            "date": datetime.now(UTC).isoformat(timespec="seconds"),
            "configuration": key,
            "recipe": recipe.to_dict(),
            "again": bool(before),
        }
        files.write_json(self.mark, {"openings": [*before, entry]})
        return self._dataset

    def _train(self) -> RoutingDataset:
        return self._dataset.select(_searched(self._drawn))


def seal(dataset: RoutingDataset, drawn: Split, folder: Path) -> tuple[TrainOnly, SealedTest]:
    """Part a dataset into rows to search on and a test part under seal.

    Args:
        dataset: Scored answers.
        drawn: Its test part is sealed; all other parts are searched on.
        folder: Where the mark is made.
    """
    train = TrainOnly(dataset.select(_searched(drawn)), frozenset(drawn["test"]))
    return train, SealedTest(folder / MARK, dataset, drawn)


def with_calibration(train: RoutingDataset, drawn: Split, *, seed: int, recipe: Recipe) -> Split:
    """The same test part; the other rows are for the fit, or shared with the calibrator."""
    parts: dict[Part, tuple[str, ...]] = {"train": tuple(sorted(train.query_ids))}
    if recipe.calibration != "none":
        parts = dict(split(train, seed=seed, fractions=CALIBRATION).parts)
    return Split({**parts, "test": drawn["test"]}, drawn.seed, drawn.merged)


def _searched(drawn: Split) -> list[str]:
    return [query_id for part, ids in drawn.parts.items() if part != "test" for query_id in ids]
