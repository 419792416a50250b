"""MMLU-Pro (TIGER-Lab/MMLU-Pro): multiple choice with up to ten options, 14 subjects.

The prompt asks for reasoning and for the benchmark's closing phrase, "The answer is (X)". With
`shots=5` it begins with five solved questions of the same subject from the validation part, as for
the published scores. Without `shots` it has none.
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
    identifier,
    label_text,
    require_text,
)
from prefill_router.runs import Task
from prefill_router_lab.benchmarks.source import BenchmarkCopy, LoadReport, PlacedTask, rows

_NEEDS = ("question_id", "question", "options", "answer")
_WANTS = ("answer_index", "category", "cot_content")
_TEST = ("test*.parquet", "test*.jsonl", "test*.json")
_EXAMPLES = ("validation*.parquet", "validation*.jsonl", "validation*.json")
_MOST_SHOTS = 5
_PADDING = "N/A"
_INSTRUCTIONS = (
    "Work through this multiple-choice question about {subject} step by step. Finish with the "
    'words "The answer is (X)", where X is the letter of the right option.'
)
_INSTRUCTIONS_WITH_EXAMPLES = (
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
    shots = options.get("shots", "0")
    if shots not in {str(n) for n in range(_MOST_SHOTS + 1)}:
        raise ConfigError(f"shots is {shots!r}; it must be a whole number from 0 to {_MOST_SHOTS}")
    return _read_tasks(copy, int(shots), report)


def _read_tasks(copy: BenchmarkCopy, shots: int, report: LoadReport) -> Iterator[PlacedTask]:
    file = copy.single_file()
    paths = copy.need(_TEST) if file is None else [file]
    report.source = copy.name
    examples = _read_examples(copy) if shots else {}
    strict = DatasetBuilder(strict=True)
    for path in paths:
        for place, record in rows(path, needs=_NEEDS, wants=_WANTS):
            with strict.row(place):
                yield PlacedTask(place, _make_task(record, examples, shots))


def _read_examples(copy: BenchmarkCopy) -> dict[str, list[str]]:
    """The solved questions as text, by subject."""
    examples: dict[str, list[str]] = {}
    strict = DatasetBuilder(strict=True)
    for path in copy.need(_EXAMPLES):
        for place, record in rows(path, needs=(*_NEEDS, "cot_content"), wants=_WANTS):
            with strict.row(place):
                solution = require_text(record["cot_content"], "cot_content").strip()
                question = _format_question(record, _read_choices(record))
                subject = label_text(record.get("category"), "category")
                examples.setdefault(subject, []).append(
                    f"{question}\n{solution.removeprefix('A: ')}"
                )
    return examples


def _make_task(record: Record, examples: Mapping[str, list[str]], shots: int) -> Task:
    choices = _read_choices(record)
    subject = label_text(record.get("category"), "category")
    query = Query(
        f"mmlu_pro-{identifier(record['question_id'], 'question_id')}",
        _write_prompt(_format_question(record, choices), subject, examples.get(subject, ()), shots),
        benchmark="mmlu_pro",
        domain=subject,
    )
    answer = _read_letter(record, len(choices))
    return Task(query=query, grader="mmlu_pro", answer=(answer,), options={"choices": choices})


def _write_prompt(question: str, subject: str, examples: Sequence[str], shots: int) -> str:
    about = subject or "any subject"
    if not shots:
        return f"{_INSTRUCTIONS.format(subject=about)}\n\n{question}"
    if len(examples) < shots:
        raise DataError(
            f"asks for {shots} solved questions about {about}; the validation part has "
            f"{len(examples)}; ask with fewer shots"
        )
    return "\n\n".join(
        [_INSTRUCTIONS_WITH_EXAMPLES.format(subject=about), *examples[:shots], question]
    )


def _format_question(record: Record, choices: Sequence[str]) -> str:
    question = require_text(record["question"], "question").strip()
    lettered = [f"{letter}. {text}" for letter, text in zip(ascii_uppercase, choices, strict=False)]
    return "\n".join([f"Question: {question}", "Options:", *lettered, "Answer:"])


def _read_choices(record: Record) -> list[str]:
    """The options, without the padding at their end."""
    options = record["options"]
    if not isinstance(options, list) or not 0 < len(options) <= len(ascii_uppercase):
        raise DataError("options must be a list of 1 to 26 texts")
    texts = [cell_text(option, "an option") for option in options]
    while len(texts) > 1 and texts[-1] == _PADDING:
        texts.pop()
    return texts


def _read_letter(record: Record, count: int) -> str:
    """The letter of the right option; where `answer_index` is given, both must agree."""
    letter = cell_text(record["answer"], "answer")
    if len(letter) != 1 or letter not in ascii_uppercase[:count]:
        raise DataError(f"answer must be a letter from A to {ascii_uppercase[count - 1]}")
    index = cell_amount(record.get("answer_index"), "answer_index")
    if index is not None and index != ascii_uppercase.index(letter):
        raise DataError(f"answer is {letter}, but answer_index is {index:g}; they must agree")
    return letter
