"""Humanity's Last Exam (cais/hle): hard questions of experts, graded by a judge.

Questions with an image are left out and counted, since prompts are text here. The repository's
canary, by which the questions can be recognised in training data, stays with each task.
"""

from collections.abc import Iterator, Mapping
from typing import Final

from prefill_router.data import Query
from prefill_router.importers import DatasetBuilder, Record, filled_text, identifier, label_text
from prefill_router.runs import Task
from prefill_router_lab.benchmarks.source import BenchmarkCopy, LoadReport, PlacedTask, rows

IMAGE: Final = "has an image, and prompts are text"
_NEEDS = ("id", "question", "answer")
_KEPT = ("answer_type", "raw_subject", "canary")
_WANTS = ("image", "category", *_KEPT)
_TEST = ("test*.parquet", "test*.jsonl", "test*.json")
_ASKED = (
    "Answer in this form:\n"
    "Explanation: how you come to the answer\n"
    "Answer: the answer alone, short and exact\n"
    "Confidence: how sure you are of it, from 0% to 100%"
)


def read(
    copy: BenchmarkCopy, options: Mapping[str, str], report: LoadReport
) -> Iterator[PlacedTask]:
    """The questions without an image.

    Raises:
        FormatError: A file or a row isn't as expected.
    """
    del options
    return _read(copy, report)


def _read(copy: BenchmarkCopy, report: LoadReport) -> Iterator[PlacedTask]:
    one = copy.one_file()
    paths = copy.need(_TEST) if one is None else [one]
    report.source = copy.name
    strict = DatasetBuilder(strict=True)
    for path in paths:
        for place, record in rows(path, needs=_NEEDS, wants=_WANTS):
            if _has_image(record.get("image")):
                report.skipped[IMAGE] += 1
                continue
            with strict.row(place):
                yield PlacedTask(place, _task(record))


def _has_image(image: object) -> bool:
    """Whether there is an image: its data as text, or bytes or a path in an object."""
    return any(image.values()) if isinstance(image, Mapping) else bool(image)


def _task(record: Record) -> Task:
    question = filled_text(record["question"], "question").strip()
    query = Query(
        f"hle-{identifier(record['id'], 'id')}",
        f"{question}\n\n{_ASKED}",
        benchmark="hle",
        domain=label_text(record.get("category"), "category"),
    )
    known = {name: label_text(record.get(name), name) for name in _KEPT}
    return Task(
        query=query,
        grader="hle",
        answer=(filled_text(record["answer"], "answer"),),
        options={"question": question, **{name: text for name, text in known.items() if text}},
    )
