"""MMLU-Pro (TIGER-Lab/MMLU-Pro): multiple choice with up to ten options, 14 subjects.

The prompt asks for reasoning and for the benchmark's closing phrase, "The answer is (X)". With
`shots=5` it begins with five solved questions of the same subject from the validation part, as for
the published scores; without `shots` it has none.
"""

from collections.abc import Iterator, Mapping, Sequence
from string import ascii_uppercase

from prefill_router.data import Query
from prefill_router.errors import ConfigError, DataError
from prefill_router.importers import (
    DatasetBuilder,
    Record,
    cell_amount,
    cell_text,
    filled_text,
    identifier,
    label_text,
)
from prefill_router.runs import Task
from prefill_router_lab.benchmarks.source import BenchmarkCopy, LoadReport, PlacedTask, rows

_NEEDS = ("question_id", "question", "options", "answer")
_WANTS = ("answer_index", "category", "cot_content")
_TEST = ("test*.parquet", "test*.jsonl", "test*.json")
_SOLVED = ("validation*.parquet", "validation*.jsonl", "validation*.json")
_MOST_SHOTS = 5
_PADDING = "N/A"
_ASKED = (
    "Work through this multiple-choice question about {subject} step by step. Finish with the "
    'words "The answer is (X)", where X is the letter of the right option.'
)
_ASKED_WITH_SHOTS = (
    "Here are solved multiple-choice questions about {subject}, and one that is not. Work through "
    'the last one step by step, as the others do, and finish with the words "The answer is (X)", '
    "where X is the letter of the right option."
)


def read(
    copy: BenchmarkCopy, options: Mapping[str, str], report: LoadReport
) -> Iterator[PlacedTask]:
    """The questions of the test part.

    Raises:
        ConfigError: `shots` isn't a number from 0 to 5.
        FormatError: A file or a row isn't as expected.
    """
    asked = options.get("shots", "0")
    if asked not in {str(n) for n in range(_MOST_SHOTS + 1)}:
        raise ConfigError(f"shots is {asked!r}; it must be a whole number from 0 to {_MOST_SHOTS}")
    return _read(copy, int(asked), report)


def _read(copy: BenchmarkCopy, shots: int, report: LoadReport) -> Iterator[PlacedTask]:
    one = copy.one_file()
    paths = copy.need(_TEST) if one is None else [one]
    report.source = copy.name
    examples = _solved(copy) if shots else {}
    strict = DatasetBuilder(strict=True)
    for path in paths:
        for place, record in rows(path, needs=_NEEDS, wants=_WANTS):
            with strict.row(place):
                yield PlacedTask(place, _task(record, examples, shots))


def _solved(copy: BenchmarkCopy) -> dict[str, list[str]]:
    """The solved questions as text, by subject."""
    found: dict[str, list[str]] = {}
    strict = DatasetBuilder(strict=True)
    for path in copy.need(_SOLVED):
        for place, record in rows(path, needs=(*_NEEDS, "cot_content"), wants=_WANTS):
            with strict.row(place):
                told = filled_text(record["cot_content"], "cot_content").strip()
                asked = _question(record, _choices(record))
                subject = label_text(record.get("category"), "category")
                found.setdefault(subject, []).append(f"{asked}\n{told.removeprefix('A: ')}")
    return found


def _task(record: Record, examples: Mapping[str, list[str]], shots: int) -> Task:
    choices = _choices(record)
    subject = label_text(record.get("category"), "category")
    query = Query(
        f"mmlu_pro-{identifier(record['question_id'], 'question_id')}",
        _prompt(_question(record, choices), subject, examples.get(subject, ()), shots),
        benchmark="mmlu_pro",
        domain=subject,
    )
    answer = _letter(record, len(choices))
    return Task(query=query, grader="mmlu_pro", answer=(answer,), options={"choices": choices})


def _prompt(question: str, subject: str, solved: Sequence[str], shots: int) -> str:
    about = subject or "any subject"
    if not shots:
        return f"{_ASKED.format(subject=about)}\n\n{question}"
    if len(solved) < shots:
        raise DataError(
            f"asks for {shots} solved questions about {about}; the validation part has "
            f"{len(solved)}; ask with fewer shots"
        )
    return "\n\n".join([_ASKED_WITH_SHOTS.format(subject=about), *solved[:shots], question])


def _question(record: Record, choices: Sequence[str]) -> str:
    question = filled_text(record["question"], "question").strip()
    lettered = [f"{letter}. {text}" for letter, text in zip(ascii_uppercase, choices, strict=False)]
    return "\n".join([f"Question: {question}", "Options:", *lettered, "Answer:"])


def _choices(record: Record) -> list[str]:
    """The options, without the padding at their end."""
    found = record["options"]
    if not isinstance(found, list) or not 0 < len(found) <= len(ascii_uppercase):
        raise DataError("options must be a list of 1 to 26 texts")
    texts = [cell_text(option, "an option") for option in found]
    while len(texts) > 1 and texts[-1] == _PADDING:
        texts.pop()
    return texts


def _letter(record: Record, count: int) -> str:
    """The letter of the right option; where `answer_index` is given, both must agree."""
    letter = cell_text(record["answer"], "answer")
    if len(letter) != 1 or letter not in ascii_uppercase[:count]:
        raise DataError(f"answer must be a letter from A to {ascii_uppercase[count - 1]}")
    index = cell_amount(record.get("answer_index"), "answer_index")
    if index is not None and index != ascii_uppercase.index(letter):
        raise DataError(f"answer is {letter}, but answer_index is {index:g}; they must agree")
    return letter
