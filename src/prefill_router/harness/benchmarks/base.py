"""The frame of all loaders: rows come in, tasks go out with the place they stand at."""

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import NamedTuple, final

from prefill_router.errors import FormatError
from prefill_router.harness.task import Task
from prefill_router.importers.base import Place


class Placed(NamedTuple):
    """A task, and where it was read."""

    place: Place
    task: Task


@final
@dataclass(kw_only=True)
class LoadReport:
    """What a loader read and left out; it fills as the tasks are taken.

    Attributes:
        source: The file, folder, or repository with its commit; empty until the first task.
        skipped: How many questions were left out, by reason.
    """

    source: str = ""
    skipped: Counter[str] = field(default_factory=Counter)


def distinct(found: Iterable[Placed], *, source: str, report: LoadReport) -> Iterator[Task]:
    """The tasks, at least one and each with an id of its own.

    Raises:
        FormatError: An id repeats, or there is no task.
    """
    first: dict[str, Place] = {}
    for place, task in found:
        name = task.query.id
        if name in first:
            raise FormatError(
                f"the id {name!r} stands at {first[name]} already (without ids, equal prompts have "
                "the same); give each question an id of its own, or remove the repeat",
                file=place.file,
                line=place.line,
            )
        first[name] = place
        yield task
    if not first:
        left_out = "".join(f"; {count:,} left out: {why}" for why, count in report.skipped.items())
        raise FormatError(f"holds no tasks; at least one is needed{left_out}", file=source)
