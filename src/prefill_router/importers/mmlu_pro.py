"""MMLU-Pro `eval_results`: one zip, or unpacked JSON list, per target.

The file name contains the target: `model_outputs_<target>_5shots.zip`. An answer from which no
letter could be extracted (`pred` is null) counts as wrong, as in the published scores. The prompt
is the question and its lettered options, without the five shots. The archives were made over months
in which questions were corrected: the first text is kept, and each label is by its own file's
answer key.
"""

import re
from collections.abc import Sequence
from pathlib import Path, PurePosixPath
from string import ascii_uppercase

from prefill_router.data import Query
from prefill_router.errors import DataError, FormatError
from prefill_router.importers import sources, values
from prefill_router.importers.builder import DatasetBuilder, Place, TargetOutcome
from prefill_router.importers.columns import Columns
from prefill_router.importers.sources import Document

_NAME = re.compile(r"model_outputs_(.+?)(?:_\d+_?shots?)?\.(?:zip|json)", re.IGNORECASE)


def read(paths: Sequence[Path], into: DatasetBuilder, columns: Columns) -> None:
    """Read archives or lists, one per target.

    Raises:
        FormatError: A source doesn't exist.
    """
    del columns
    for path in sources.expand(paths, (".zip", ".json")):
        with into.file(path):
            for document in sources.documents(path):
                _read_list(document, _target(document, path), into)


def _target(document: Document, path: Path) -> str:
    for name in (document.path.name, path.name):
        match = _NAME.fullmatch(PurePosixPath(name).name)
        if match:
            return match[1]
    raise FormatError(
        "its name doesn't contain the target; name it model_outputs_<target>_5shots.json",
        file=document.name,
    )


def _read_list(document: Document, target: str, into: DatasetBuilder) -> None:
    for number, item in enumerate(sources.parse_list(document), 1):
        place = Place(document.name, number)
        with into.row(place):
            if not isinstance(item, dict):
                raise DataError(f"is a {type(item).__name__}; an answer must be an object")
            into.add(place, _query(item), {target: TargetOutcome(_label(item))}, revisions=True)


def _query(item: dict[str, object]) -> Query:
    options = item.get("options")
    if not isinstance(options, list) or not 0 < len(options) <= len(ascii_uppercase):
        raise DataError("options must be a list of 1 to 26 texts")
    question = values.filled_text(item.get("question"), "question").strip()
    lettered = [
        f"{letter}. {values.cell_text(option, 'an option')}"
        for letter, option in zip(ascii_uppercase, options, strict=False)
    ]
    return Query(
        f"mmlu_pro-{values.identifier(item.get('question_id'), 'question_id')}",
        "\n".join([question, "", *lettered]),
        benchmark="mmlu_pro",
        domain=values.label_text(item.get("category"), "category"),
    )


def _label(item: dict[str, object]) -> float:
    answer = _letter(item.get("answer"), "answer")
    if "pred" not in item:
        raise DataError("lacks pred; it must be a letter or null")
    return float(item["pred"] is not None and _letter(item["pred"], "pred") == answer)


def _letter(value: object, name: str) -> str:
    letter = values.cell_text(value, name)
    if len(letter) != 1 or letter not in ascii_uppercase:
        raise DataError(f"{name} is {values.shown_cell(value)}; it must be a letter from A to Z")
    return letter
