"""What the labels of a dataset mean: right answers, scores on a scale, or votes between answers."""

import json
import math
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Literal, cast, final, get_args

from prefill_router import files
from prefill_router.errors import ConfigError, DataError, FormatError

Kind = Literal["right", "score", "vote"]
FILE: Final = "labels.json"
"""The file of a dataset's folder that has the meaning; without it labels say right or wrong."""
CHANCES: Final[dict[Kind, str]] = {
    "right": "P(correct)",
    "score": "P(correct)",
    "vote": "P(win)",
}
"""What a router's prediction is called in tables, by what it learned from."""
_TITLES: Final = {"right": "accuracy", "score": "mean score", "vote": "win rate"}


@final
@dataclass(frozen=True, kw_only=True)
class LabelMeaning:
    """What labels from 0 to 1 mean.

    Attributes:
        kind: `right`, the share of right answers; `score`, a score that was mapped linearly;
            `vote`, 1 for the better of two answers, 0 for the worse, a half for a tie.
        worst: The score that became 0.
        best: The score that became 1; it may be the lower one.
        threshold: The score from which on an answer counts as right, where one was given.

    Raises:
        ConfigError: The kind is unknown, or a number isn't finite or makes no scale.
    """

    kind: Kind = "right"
    worst: float = 0.0
    best: float = 1.0
    threshold: float | None = None

    def __post_init__(self) -> None:
        if self.kind not in get_args(Kind):
            raise ConfigError(
                f"the kind of labels is {self.kind!r}; it must be one of "
                f"{', '.join(get_args(Kind))}"
            )
        ends = (self.worst, self.best, self.threshold or 0.0)
        if not all(map(math.isfinite, ends)) or self.worst == self.best:
            raise ConfigError(
                f"the scale is from {self.worst} to {self.best}; give two different finite numbers"
            )

    @classmethod
    def of_labels(cls, labels: Iterable[float | None]) -> "LabelMeaning":
        """What labels of single answers mean: scores, if one that is known is neither 0 nor 1."""
        is_score = any(label not in (None, 0, 1) and label == label for label in labels)
        return cls(kind="score" if is_score else "right")

    @property
    def title(self) -> str:
        """What the mean of labels is called."""
        return _TITLES[self.kind]

    @property
    def note(self) -> str:
        """The scale, and what means right, in a sentence; empty where labels say right or wrong."""
        if self.kind == "vote":
            return "labels are votes between two answers: a share of wins, a tie being half a win"
        if self.kind == "score":
            half = self.worst + (self.best - self.worst) / 2
            side = "more" if self.best > self.worst else "less"
            return (
                f"labels are scores: {self.worst:g} is the worst, {self.best:g} the best; where "
                f"an accuracy is given, it is the mean score, 0 % for {self.worst:g} and 100 % for "
                f"{self.best:g}; where labels are right or wrong, right is {half:g} or {side}"
            )
        if self.threshold is not None:
            return f"an answer counts as right from the score {self.threshold:g} on"
        return ""

    @property
    def is_vote(self) -> bool:
        """Whether they are votes between two answers."""
        return self.kind == "vote"

    def refuse_votes(self, what: str) -> None:
        """Check that labels say how good each answer is.

        Args:
            what: What needs that, as the subject of a sentence.

        Raises:
            DataError: They are votes.
        """
        if self.is_vote:
            raise DataError(
                f"{what} needs labels that say how good each answer is. These labels are "
                "votes: they only say which of two answers is better. Judge a router that "
                "learned from votes in win rate, with: prefill-router evaluate"
            )

    def words(self, mean: float) -> str:
        """The mean of labels: a percentage, or a score on its scale; a dash where unknown."""
        if not math.isfinite(mean):
            return "-"
        if self.kind != "score":
            return f"{100 * mean:.1f} %"
        return f"{self.worst + (self.best - self.worst) * mean:.2f}"

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON."""
        return dict(vars(self))

    def write(self, folder: Path) -> None:
        """Write it into a dataset's folder, unless labels say right or wrong."""
        if self != LabelMeaning():
            files.write_json(folder / FILE, self.to_dict())

    @classmethod
    def read(cls, folder: Path) -> "LabelMeaning":
        """What the labels of a dataset's folder mean.

        Raises:
            FormatError: The file is malformed.
        """
        path = folder / FILE
        if not path.is_file():
            return cls()
        try:
            fields = json.loads(path.read_bytes())
            return cls(
                kind=cast("Kind", fields["kind"]),
                worst=float(fields["worst"]),
                best=float(fields["best"]),
                threshold=None if fields["threshold"] is None else float(fields["threshold"]),
            )
        except (ValueError, TypeError, KeyError, RecursionError, ConfigError) as error:
            raise FormatError(f"isn't a meaning of labels: {error}", file=path) from None
