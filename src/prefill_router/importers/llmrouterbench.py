"""LLMRouterBench: a tree of JSON files, a tar of it, or its interchange form as JSON Lines.

A result is at `<dataset>/<split>/<target>/<dataset>-<split>-<target>-YYYYMMDD_HHMMSS.json`. For
each (dataset, split, target) the newest file is used, by the time in its name; files with
`"demo": true` are skipped. Records of different targets are joined on (dataset, split, index). The
prompt is `origin_query`, or `prompt` where that is missing; a score of null is a missing label.
"""

import re
from collections.abc import Iterator, Sequence
from pathlib import Path, PurePosixPath
from typing import Any, NamedTuple, final

from prefill_router.data import MOST_COST, Query
from prefill_router.errors import DataError, FormatError
from prefill_router.importers import sources, tables, values
from prefill_router.importers.builder import DatasetBuilder, Place, TargetOutcome
from prefill_router.importers.columns import Columns
from prefill_router.importers.sources import Document

_STAMP = re.compile(r"-(\d{8}_\d{6})\.json", re.ASCII)
_TARS = (".tar", ".tar.gz", ".tgz", ".tar.xz", ".tar.bz2")
_LINES = (".jsonl", ".ndjson")
_Key = tuple[str, str, str]


@final
class _ResultRecord(NamedTuple):
    """The parts of a record that are used."""

    place: Place
    query: Query | None
    outcome: TargetOutcome
    reason: str


@final
class _ResultsFile(NamedTuple):
    """One results file."""

    stamp: str
    items: list[_ResultRecord]


def read(paths: Sequence[Path], into: DatasetBuilder, columns: Columns) -> None:
    """Read trees, tars and interchange files.

    Raises:
        FormatError: A source doesn't exist.
    """
    del columns
    runs: dict[_Key, _ResultsFile] = {}
    texts: dict[str, str] = {}
    for path in sources.expand(paths, (".json", *_TARS, *_LINES)):
        if path.name.lower().endswith(_LINES):
            with into.file(path):
                _read_lines(path, into)
            continue
        with into.file(path):
            is_tar = path.name.lower().endswith(_TARS)
            for document in sources.tar_documents(path) if is_tar else sources.documents(path):
                with into.file(document.name):
                    _keep_newest(document, runs, texts, into)
    for (_, _, target), run in sorted(runs.items()):
        for item in run.items:
            with into.row(item.place):
                if item.query is None:
                    raise DataError(item.reason)
                into.add(item.place, item.query, {target: item.outcome})


def _keep_newest(
    document: Document, runs: dict[_Key, _ResultsFile], texts: dict[str, str], into: DatasetBuilder
) -> None:
    found = _key(document.path)
    if found is None:
        into.skip("without the name of a result")
        return
    key, stamp = found
    content = sources.parse(document)
    if not isinstance(content, dict) or not isinstance(content.get("records"), list):
        raise FormatError("isn't a result; it must be an object with records", file=document.name)
    if content.get("demo") is True:
        into.skip("demo")
        return
    if key in runs:
        into.skip("older than another run")
        if stamp <= runs[key].stamp:
            return
    items = [
        _result_record(r, Place(document.name, n), key, texts)
        for n, r in enumerate(content["records"], 1)
    ]
    runs[key] = _ResultsFile(stamp, items)


def _key(path: PurePosixPath) -> tuple[_Key, str] | None:
    """(dataset, split, target) and the time, from the path; None where it isn't a result's."""
    match = _STAMP.search(path.name)
    if len(path.parts) < 4 or match is None:
        return None
    dataset, split, target = path.parts[-4:-1]
    if path.name != f"{dataset}-{split}-{target}-{match[1]}.json":
        return None
    return (dataset, split, target), match[1]


def _result_record(record: Any, place: Place, key: _Key, texts: dict[str, str]) -> _ResultRecord:
    try:
        if not isinstance(record, dict):
            raise DataError(f"is a {type(record).__name__}; a record must be an object")
        return _ResultRecord(
            place, _query(record, key, texts), _outcome(record, record.get("score")), ""
        )
    except DataError as error:
        return _ResultRecord(place, None, TargetOutcome(), str(error))


def _query(record: dict[str, Any], key: _Key, texts: dict[str, str]) -> Query:
    dataset, split, _ = key
    given = record.get("origin_query")
    name = "prompt" if given in (None, "") else "origin_query"
    prompt = values.filled_text(record.get(name), name)
    index = values.identifier(record.get("index"), "index")
    prompt = texts.setdefault(prompt, prompt)  # one copy for all targets
    return Query(f"{dataset}/{split}/{index}", prompt, benchmark=dataset)


def _outcome(usage: dict[str, Any], score: object) -> TargetOutcome:
    return TargetOutcome(
        values.label(score, "score"),
        values.cell_amount(usage.get("prompt_tokens"), "prompt_tokens"),
        values.cell_amount(usage.get("completion_tokens"), "completion_tokens"),
        values.cell_amount(usage.get("cost"), "cost", most=MOST_COST),
    )


def _read_lines(path: Path, into: DatasetBuilder) -> None:
    for place, record in tables.records(path, into, needs=()):
        with into.row(place):
            dataset = values.filled_text(record.get("dataset"), "dataset")
            query = Query(
                f"{dataset}/{values.identifier(record.get('index'), 'index')}",
                values.filled_text(record.get("query"), "query"),
                benchmark=dataset,
            )
            into.add(
                place, query, dict(_line_outcomes(record.get("records"), record.get("usages")))
            )


def _line_outcomes(scores: object, usages: object) -> Iterator[tuple[str, TargetOutcome]]:
    if not isinstance(scores, dict):
        raise DataError("records must be an object of target and score")
    if usages is None:
        usages = {}
    if not isinstance(usages, dict):
        raise DataError("usages must be an object of target and usage")
    for target, score in scores.items():
        usage = usages.get(target) or {}
        if not isinstance(usage, dict):
            raise DataError(f"the usage of {target!r} must be an object")
        yield values.filled_text(target, "a target's name"), _outcome(usage, score)
