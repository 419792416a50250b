"""A benchmark of riddles, one a line: id | riddle | answer."""

from collections.abc import Iterator, Mapping

from prefill_router.data import Query
from prefill_router.harness.benchmarks.source import BenchmarkCopy, LoadReport, PlacedTask
from prefill_router.harness.run import Task
from prefill_router.importers import Place


def read(
    copy: BenchmarkCopy, options: Mapping[str, str], report: LoadReport
) -> Iterator[PlacedTask]:
    report.source = copy.name
    for path in copy.need(["*.txt"]):
        for number, line in enumerate(path.read_text().splitlines(), 1):
            name, riddle, answer = line.split("|")
            query = Query(name, riddle, benchmark="riddles", domain=options.get("level", ""))
            task = Task(query=query, grader="vowels", answer=(answer,))
            yield PlacedTask(Place(path.name, number), task)
