"""A format of lines: query | target | right | cost | prompt."""

from collections.abc import Sequence
from pathlib import Path

from prefill_router.data import Query
from prefill_router.importers.builder import DatasetBuilder, Place, TargetOutcome
from prefill_router.importers.values import Columns


def read(paths: Sequence[Path], into: DatasetBuilder, columns: Columns) -> None:
    for path in paths:
        with into.file(path):
            for number, line in enumerate(path.read_text().splitlines(), 1):
                place = Place(path.name, number)
                with into.row(place):
                    query, target, right, cost, prompt = line.split("|")
                    outcome = TargetOutcome(float(right), 10, 10, float(cost))
                    into.add(place, Query(query, prompt), {target: outcome})
