"""The sealed test part: the search is given train rows and has no access to others.

`seal` divides a dataset in two. The search takes a `TrainOnly`. The final evaluation opens a
`SealedTest`, which leaves a mark on disk, so that nobody uses the test part twice by accident.
"""

import json
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, final

from prefill_router import files
from prefill_router.data import Part, RoutingDataset, Split, split
from prefill_router.errors import ConfigError, CorruptError
from prefill_router.fitting import CALIBRATION, Recipe, TrainOnly
from prefill_router_lab.search.space import key_of

MARK = "opened.json"
"""The file that records when a test part was opened, and for which configuration."""


@final
@dataclass(frozen=True, eq=False)
class SealedTest:
    """A dataset whose test part can be opened once, for one configuration.

    Attributes:
        mark: The file that records the openings.
    """

    mark: Path
    _dataset: RoutingDataset = field(repr=False)
    _split: Split = field(repr=False)

    @property
    def openings(self) -> list[dict[str, Any]]:
        """The date and configuration of each opening; empty while the test part is sealed.

        Raises:
            CorruptError: The file of openings can't be read.
        """
        try:
            value = json.loads(self.mark.read_text(encoding="utf-8"))
            openings = value["openings"]
            if not all({"date", "configuration"} <= set(opening) for opening in openings):
                raise KeyError("configuration")
        except FileNotFoundError:
            return []
        except (OSError, ValueError, KeyError, TypeError, RecursionError):
            raise CorruptError(
                f"{self.mark} is damaged, so nothing says whether the test part was opened; "
                "search in another folder, on another split"
            ) from None
        return list(openings)

    def split_for(self, recipe: Recipe, *, seed: int) -> Split:
        """The split that a recipe is fitted on, with a calibration part if it needs one."""
        return with_calibration(self._train(), self._split, seed=seed, recipe=recipe)

    def open(self, recipe: Recipe, *, again: bool = False) -> RoutingDataset:
        """Open the test part: the whole dataset, to judge one configuration.

        The opening is recorded on disk before the dataset is returned. The same configuration may
        be judged again, since nothing is learned from that.

        Args:
            recipe: The configuration to judge.
            again: Whether to open it even if it was opened for another configuration; this is
                recorded.

        Raises:
            ConfigError: It was opened for another configuration.
        """
        before, key = self.openings, key_of(recipe)
        if any(opening["configuration"] == key for opening in before):
            return self._dataset
        if before and not again:
            raise ConfigError(
                f"the test part was opened on {before[-1]['date']} for another configuration "
                f"({before[-1]['configuration']}, now {key}). Test numbers mean nothing once a "
                "configuration was chosen by them. Judge the new one on new data, or pass "
                "--open-again, which the report will mention"
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
        return self._dataset.select(_list_searched_ids(self._split))


def seal(dataset: RoutingDataset, split: Split, folder: Path) -> tuple[TrainOnly, SealedTest]:
    """Divide a dataset into rows to search on and a sealed test part.

    Args:
        dataset: Scored answers.
        split: The split; its test part is sealed, all other parts are searched on.
        folder: The folder for the file that records openings.
    """
    train = TrainOnly(dataset.select(_list_searched_ids(split)), frozenset(split["test"]))
    return train, SealedTest(folder / MARK, dataset, split)


def with_calibration(
    train: RoutingDataset, test_split: Split, *, seed: int, recipe: Recipe
) -> Split:
    """A split with the same test part whose other rows are divided between fit and calibrator."""
    parts: dict[Part, tuple[str, ...]] = {"train": tuple(sorted(train.query_ids))}
    if recipe.calibration != "none":
        parts = dict(split(train, seed=seed, fractions=CALIBRATION).parts)
    return Split({**parts, "test": test_split["test"]}, test_split.seed, test_split.merged)


def _list_searched_ids(split: Split) -> list[str]:
    return [query_id for part, ids in split.parts.items() if part != "test" for query_id in ids]
