"""Batch files of OpenAI and Anthropic: requests and results, joined by their `custom_id`.

OpenAI: requests are JSON Lines of `{custom_id, method, url, body}`, results of `{custom_id,
response: {status_code, body}, error}`. Anthropic: requests are `{custom_id, params}`, by themselves
or in a list `requests`; results are `{custom_id, result: {type, message}}`. A target is a model as
it was requested. There are token counts, but neither scores nor costs.

A `custom_id` is unique in one batch. If the sources have it in several batches, the model of the
result tells which request it answers: a provider appends a date to the model's name.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from prefill_router.errors import DataError
from prefill_router.importers import call_logs, values
from prefill_router.importers.builder import DatasetBuilder, Place, TargetOutcome
from prefill_router.importers.columns import Columns

_OPENAI_INPUT = ("prompt_tokens", "input_tokens")
_OPENAI_OUTPUT = ("completion_tokens", "output_tokens")
_ANTHROPIC_INPUT = ("input_tokens", "cache_creation_input_tokens", "cache_read_input_tokens")


class _Dialect(NamedTuple):
    """Where a provider's files have the request, and how its result is read."""

    request: str
    result: str
    input_tokens: tuple[str, ...]
    output_tokens: tuple[str, ...]


_OPENAI = _Dialect("body", "response", _OPENAI_INPUT, _OPENAI_OUTPUT)
_ANTHROPIC = _Dialect("params", "result", _ANTHROPIC_INPUT, ("output_tokens",))
_HINT = "; give the files of the requests and of the results together, or their folder"


def read_openai(paths: Sequence[Path], into: DatasetBuilder, columns: Columns) -> None:
    """Read OpenAI's batch files, requests and results.

    Raises:
        FormatError: A source doesn't exist, or no result can be used.
    """
    del columns
    _read(paths, into, _OPENAI)


def read_anthropic(paths: Sequence[Path], into: DatasetBuilder, columns: Columns) -> None:
    """Read Anthropic's message batches, requests and results.

    Raises:
        FormatError: A source doesn't exist, or no result can be used.
    """
    del columns
    _read(paths, into, _ANTHROPIC)


def _read(paths: Sequence[Path], into: DatasetBuilder, dialect: _Dialect) -> None:
    requests: dict[str, list[Mapping[str, Any]]] = {}
    results: list[tuple[Place, Mapping[str, Any]]] = []
    with call_logs.calls_of(paths, into, hint=_HINT) as (log, found):
        for path in found:
            with into.file(path):
                for place, record in call_logs.log_records(path, into):
                    asked = call_logs.fields_of(record.get(dialect.request))
                    if asked:
                        requests.setdefault(str(record.get("custom_id")), []).append(asked)
                    else:
                        results.append((place, record))
        for place, record in results:
            with into.row(place):
                _add(place, record, requests, dialect, log)
        if requests and not results:
            log.leave_out("requests, and no result")


def _add(
    place: Place,
    record: Mapping[str, Any],
    requests: Mapping[str, list[Mapping[str, Any]]],
    dialect: _Dialect,
    log: call_logs.CallLog,
) -> None:
    name = values.identifier(record.get("custom_id"), "custom_id")
    result = call_logs.object_at(record, dialect.result)
    if dialect is _OPENAI:
        answer = result.get("body") if result.get("status_code") == 200 else None
    else:
        answer = result.get("message") if result.get("type") == "succeeded" else None
    if not isinstance(answer, dict):
        log.leave_out("requests that failed, expired or were cancelled")
        return
    asked = _request(requests.get(name, []), answer.get("model"))
    if asked is None:
        log.leave_out("results whose request isn't in the sources")
        return
    usage = call_logs.fields_of(answer.get("usage"))
    outcome = TargetOutcome(
        input_tokens=call_logs.total(usage, *dialect.input_tokens),
        output_tokens=call_logs.total(usage, *dialect.output_tokens),
    )
    log.add(
        place,
        call=answer.get("id"),
        prompt=call_logs.last_user_text(asked),
        target=asked.get("model"),
        outcome=outcome,
    )


def _request(asked: Sequence[Mapping[str, Any]], answered_by: object) -> Mapping[str, Any] | None:
    """The request that was answered; None where the sources don't have it.

    Raises:
        DataError: Several could be.
    """
    if len(asked) < 2:
        return asked[0] if asked else None
    names = {one.get("model"): one for one in asked if _serves(answered_by, one.get("model"))}
    if not names:
        return None
    longest = max(names, key=lambda name: len(str(name)))
    same = [one for one in asked if one.get("model") == longest]
    if len({call_logs.last_user_text(one) for one in same}) > 1:
        raise DataError(
            f"several requests to {longest} have this custom_id; import each batch by itself and "
            "merge the datasets"
        )
    return names[longest]


def _serves(answered_by: object, requested: object) -> bool:
    return isinstance(requested, str) and str(answered_by).startswith(requested)
