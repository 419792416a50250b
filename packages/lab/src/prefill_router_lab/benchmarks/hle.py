"""Humanity's Last Exam (cais/hle): hard questions of experts, graded by a judge.

Questions with an image are left out and counted, since prompts are text here. The repository's
canary, by which the questions can be recognised in training data, stays with each task.
"""

from collections.abc import Iterator, Mapping
from typing import Final

from prefill_router.data import Query
from prefill_router.importers import DatasetBuilder, Record, identifier, label_text, require_text
from prefill_router.runs import Task
from prefill_router_lab.benchmarks.source import BenchmarkCopy, LoadReport, PlacedTask, rows

IMAGE: Final = "has an image, and prompts are text"
_NEEDS = ("id", "question", "answer")
_OPTION_FIELDS = ("answer_type", "raw_subject", "canary")
_WANTS = ("image", "category", *_OPTION_FIELDS)
_TEST = ("test*.parquet", "test*.jsonl", "test*.json")
_FORM = (
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
    return _read_tasks(copy, report)


def _read_tasks(copy: BenchmarkCopy, report: LoadReport) -> Iterator[PlacedTask]:
    file = copy.single_file()
    paths = copy.need(_TEST) if file is None else [file]
    report.source = copy.name
    strict = DatasetBuilder(strict=True)
    for path in paths:
        for place, record in rows(path, needs=_NEEDS, wants=_WANTS):
            if _has_image(record.get("image")):
                report.skipped[IMAGE] += 1
                continue
            with strict.row(place):
                yield PlacedTask(place, _make_task(record))


def _has_image(image: object) -> bool:
    """Whether there is an image: its data as text, or bytes or a path in an object."""
    return any(image.values()) if isinstance(image, Mapping) else bool(image)


def _make_task(record: Record) -> Task:
    question = require_text(record["question"], "question").strip()
    query = Query(
        f"hle-{identifier(record['id'], 'id')}",
        f"{question}\n\n{_FORM}",
        benchmark="hle",
        domain=label_text(record.get("category"), "category"),
    )
    texts = {name: label_text(record.get(name), name) for name in _OPTION_FIELDS}
    return Task(
        query=query,
        grader="hle",
        answer=(require_text(record["answer"], "answer"),),
        options={"question": question, **{name: text for name, text in texts.items() if text}},
    )
