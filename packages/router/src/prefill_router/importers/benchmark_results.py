"""Published results of benchmarks: the files of LLMRouterBench, MMLU-Pro and RouterArena.

A result of LLMRouterBench is at
`<dataset>/<split>/<target>/<dataset>-<split>-<target>-YYYYMMDD_HHMMSS.json`. For each (dataset,
split, target) the newest file is used, by the time in its name; files with `"demo": true` are
skipped. Records of different targets are joined on (dataset, split, index). The prompt is
`origin_query`, or `prompt` where that is missing; a score of null is a missing label.

MMLU-Pro's `eval_results` are one zip, or unpacked JSON list, per target, whose name is in the file
name: `model_outputs_<target>_5shots.zip`. An answer from which no letter could be extracted (`pred`
is null) counts as wrong, as in the published scores. The prompt is the question and its lettered
options, without the five shots. The archives were made over months in which questions were
corrected: the first text is kept, and each label is by its own file's answer key.

RouterArena's predictions are JSON lists with an entry per answer. `prediction` names the target,
`global index` the query; `accuracy` is the label and null where the answer wasn't scored. The
benchmark is the index without its number: `AIME_112` is from `AIME`. The cost of a failed call is
unknown if it is given as zero. RouterArena's questions are JSON lists too, `router_data.json` and
`router_robustness.json`, of entries with `global index` and `prompt_formatted` or `prompt`.
"""

import re
from collections.abc import Iterator, Sequence
from pathlib import Path, PurePosixPath
from string import ascii_uppercase
from typing import Any, NamedTuple, final

from prefill_router.data import MOST_COST, Query
from prefill_router.errors import DataError, FormatError
from prefill_router.importers import sources, tables, values
from prefill_router.importers.builder import DatasetBuilder, Place, TargetOutcome
from prefill_router.importers.sources import Document
from prefill_router.importers.values import Columns

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


def read_llmrouterbench(paths: Sequence[Path], into: DatasetBuilder, columns: Columns) -> None:
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
    dated_key = _read_key(document.path)
    if dated_key is None:
        into.skip("without the name of a result")
        return
    key, stamp = dated_key
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


def _read_key(path: PurePosixPath) -> tuple[_Key, str] | None:
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
            place, _bench_query(record, key, texts), _read_outcome(record, record.get("score")), ""
        )
    except DataError as error:
        return _ResultRecord(place, None, TargetOutcome(), str(error))


def _bench_query(record: dict[str, Any], key: _Key, texts: dict[str, str]) -> Query:
    dataset, split, _ = key
    query = record.get("origin_query")
    name = "prompt" if query in (None, "") else "origin_query"
    prompt = values.require_text(record.get(name), name)
    index = values.identifier(record.get("index"), "index")
    prompt = texts.setdefault(prompt, prompt)  # one copy for all targets
    return Query(f"{dataset}/{split}/{index}", prompt, benchmark=dataset)


def _read_outcome(usage: dict[str, Any], score: object) -> TargetOutcome:
    return TargetOutcome(
        values.label(score, "score"),
        values.cell_amount(usage.get("prompt_tokens"), "prompt_tokens"),
        values.cell_amount(usage.get("completion_tokens"), "completion_tokens"),
        values.cell_amount(usage.get("cost"), "cost", most=MOST_COST),
    )


def _read_lines(path: Path, into: DatasetBuilder) -> None:
    for place, record in tables.records(path, into, needs=()):
        with into.row(place):
            dataset = values.require_text(record.get("dataset"), "dataset")
            query = Query(
                f"{dataset}/{values.identifier(record.get('index'), 'index')}",
                values.require_text(record.get("query"), "query"),
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
        yield values.require_text(target, "a target's name"), _read_outcome(usage, score)


_NAME = re.compile(r"model_outputs_(.+?)(?:_\d+_?shots?)?\.(?:zip|json)", re.IGNORECASE)


def read_mmlu_pro(paths: Sequence[Path], into: DatasetBuilder, columns: Columns) -> None:
    """Read archives or lists, one per target.

    Raises:
        FormatError: A source doesn't exist.
    """
    del columns
    for path in sources.expand(paths, (".zip", ".json")):
        with into.file(path):
            for document in sources.documents(path):
                _read_list(document, _read_target(document, path), into)


def _read_target(document: Document, path: Path) -> str:
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
            into.add(
                place,
                _read_question(item),
                {target: TargetOutcome(_read_label(item))},
                revisions=True,
            )


def _read_question(item: dict[str, object]) -> Query:
    options = item.get("options")
    if not isinstance(options, list) or not 0 < len(options) <= len(ascii_uppercase):
        raise DataError("options must be a list of 1 to 26 texts")
    question = values.require_text(item.get("question"), "question").strip()
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


def _read_label(item: dict[str, object]) -> float:
    answer = _check_letter(item.get("answer"), "answer")
    if "pred" not in item:
        raise DataError("lacks pred; it must be a letter or null")
    return float(item["pred"] is not None and _check_letter(item["pred"], "pred") == answer)


def _check_letter(value: object, name: str) -> str:
    letter = values.cell_text(value, name)
    if len(letter) != 1 or letter not in ascii_uppercase:
        raise DataError(f"{name} is {values.show_cell(value)}; it must be a letter from A to Z")
    return letter


_NUMBERED_ID = re.compile(r"(.+)_\d+", re.DOTALL)


def read_routerarena(paths: Sequence[Path], into: DatasetBuilder, columns: Columns) -> None:
    """Read files of predictions.

    Raises:
        FormatError: A source doesn't exist.
    """
    del columns
    failed = 0
    for path in sources.expand(paths, (".json",)):
        with into.file(path):
            for document in sources.documents(path):
                for number, item in enumerate(sources.parse_list(document), 1):
                    failed += _read_item(item, Place(document.name, number), into)
    if failed:
        into.note(f"{failed} calls failed; their labels are as scored, their costs unknown")


def _read_item(item: Any, place: Place, into: DatasetBuilder) -> bool:
    """Add one entry; returns whether its call failed."""
    has_failed = False
    with into.row(place):
        if not isinstance(item, dict):
            raise DataError(f"is a {type(item).__name__}; an entry must be an object")
        result = item.get("generated_result") or {}
        usage = result.get("token_usage") if isinstance(result, dict) else None
        if not isinstance(result, dict) or not isinstance(usage or {}, dict):
            raise DataError("generated_result and token_usage must be objects or null")
        has_failed = result.get("success") is False
        target = values.require_text(item.get("prediction"), "prediction")
        into.add(
            place,
            _arena_query(item),
            {target: _arena_outcome(item, usage or {}, failed=has_failed)},
        )
    return has_failed


def _arena_query(item: dict[str, Any]) -> Query:
    index = values.identifier(item.get("global index"), "global index")
    match = _NUMBERED_ID.fullmatch(index)
    return Query(
        index,
        values.require_text(item.get("prompt"), "prompt"),
        benchmark="" if match is None else match[1],
    )


def _arena_outcome(item: dict[str, Any], usage: dict[str, Any], *, failed: bool) -> TargetOutcome:
    cost = values.cell_amount(item.get("cost"), "cost", most=MOST_COST)
    return TargetOutcome(
        values.label(item.get("accuracy"), "accuracy"),
        values.cell_amount(usage.get("input_tokens"), "input_tokens"),
        values.cell_amount(usage.get("output_tokens"), "output_tokens"),
        None if failed and not cost else cost,
    )


def read_questions(path: Path) -> list[Query]:
    """Read questions without answers.

    Raises:
        FormatError: The file isn't such a list.
    """
    queries: dict[str, Query] = {}
    for document in sources.documents(path):
        for number, item in enumerate(sources.parse_list(document), 1):
            try:
                if not isinstance(item, dict):
                    raise DataError(f"is a {type(item).__name__}; an entry must be an object")
                prompt = item.get("prompt_formatted") or item.get("prompt")
                query = _arena_query({**item, "prompt": prompt})
                if query.id in queries:
                    raise DataError(f"global index {query.id!r} was there before")
            except DataError as error:
                raise FormatError(f"entry {number}: {error}", file=path) from None
            queries[query.id] = query
    if not queries:
        raise FormatError("holds no question", file=path)
    return list(queries.values())
