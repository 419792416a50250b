"""Logs of calls: what their importers share, LiteLLM's spend logs, and providers' batches.

A log has prompts, answers, token counts and often costs, but scores seldom. A query is what the
gateway reads of a call by default (`scored_text`), and is identified by it. Calls with the same
text are the same query, and those of one target are runs of it.

LiteLLM's spend logs are the table `LiteLLM_SpendLogs`, or the reply of `/spend/logs`. A target is
the `model_group`, the name that clients ask for, or else the `model`. Prompts are there only if the
proxy keeps them. `spend` is the cost in US dollars; an answer from LiteLLM's own cache cost nothing
and is left out. There are no scores.

Batch files of OpenAI and Anthropic have requests and results, joined by their `custom_id`. OpenAI's
requests are JSON Lines of `{custom_id, method, url, body}`, the results of `{custom_id, response:
{status_code, body}, error}`. Anthropic's requests are `{custom_id, params}`, by themselves or in a
list `requests`; the results are `{custom_id, result: {type, message}}`. A target is a model as it
was requested. There are token counts, but neither scores nor costs. A `custom_id` is unique in one
batch. If the sources have it in several batches, the model of the result tells which request it
answers: a provider appends a date to the model's name.
"""

import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple, final

from prefill_router.agents import Harnesses, Turn, TurnRole, load_harnesses, read_request
from prefill_router.data import MOST_COST, Query, prompt_key
from prefill_router.errors import ConfigError, DataError, FormatError
from prefill_router.importers import sources, tables, values
from prefill_router.importers.builder import DatasetBuilder, Place, TargetOutcome
from prefill_router.importers.values import Columns

LOG_SUFFIXES = (".json", ".jsonl", ".ndjson", ".csv", ".parquet")


def log_records(path: Path, into: DatasetBuilder) -> Iterator[tuple[Place, Mapping[str, Any]]]:
    """The records of a log in JSON, JSON Lines, CSV or Parquet.

    Args:
        path: The file.
        into: Collects malformed lines.

    Raises:
        FormatError: The file can't be read.
    """
    wants = tables.columns_of(path) if path.suffix.lower() == ".parquet" else ()
    yield from tables.records(path, into, needs=(), wants=wants)


def as_json(cell: object) -> Any:
    """The value of a cell that may hold JSON as text, as in CSV; other texts stay texts."""
    if not isinstance(cell, str) or cell.lstrip()[:1] not in ("{", "[", '"'):
        return cell
    try:
        return json.loads(cell)
    except (ValueError, RecursionError):
        return cell


def fields_of(value: object) -> Mapping[str, Any]:
    """A value's fields; none where it isn't an object."""
    fields = as_json(value)
    return fields if isinstance(fields, dict) else {}


def scored_text(request: object, harnesses: Harnesses | None = None) -> str | None:
    """What the gateway reads of a request by default; None where it has no text of a user.

    It is the person's newest text, without what a coding agent wrote around it, and before a short
    one the texts that it refers to (`agents.read_request`).

    Args:
        request: A text, messages of any provider, or an object that holds them.
        harnesses: The marks of agents; those of this package if not given.
    """
    content = as_json(request)
    system: object = None
    while isinstance(content, dict):
        system = content.get("system", content.get("instructions", system))
        inner = content.get(
            "messages", content.get("prompt", content.get("input", content.get("content")))
        )
        content = as_json(inner)
    if isinstance(content, str):
        return content if content.strip() else None
    if not isinstance(content, list):
        return None
    turns = [Turn("system", _read_texts(system))] if system else []
    turns += [turn for value in content if isinstance(value, dict) for turn in _read_turns(value)]
    marks = harnesses or load_harnesses()
    return read_request(turns, headers={}, harnesses=marks).scored_text


_ROLES: Mapping[object, TurnRole] = {
    "user": "user",
    "assistant": "assistant",
    "system": "system",
    "developer": "system",
}


def _read_turns(value: Mapping[str, Any]) -> Iterator[Turn]:
    """The turns of one message; tools' results in a user's message are turns of their own."""
    content = value.get("content")
    parts = content if isinstance(content, list) else [content]
    results = [part for part in parts if isinstance(part, dict) and "tool_use_id" in part]
    for part in results:
        yield Turn("tool", has_failed=part.get("is_error") is True)
    others = [part for part in parts if part not in results] if results else parts
    if others:
        role = _ROLES.get(value.get("role"), "tool")
        yield Turn(role, _read_texts(others), is_one_text=isinstance(content, str))


def _read_texts(content: object) -> tuple[str, ...]:
    """The texts of a content's parts; parts of other kinds are left out."""
    parts = content if isinstance(content, list) else [content]
    texts = (part.get("text") if isinstance(part, dict) else part for part in parts)
    return tuple(text for text in texts if isinstance(text, str))


def total(usage: Mapping[str, Any], *names: str) -> float | None:
    """The sum of those of these token counts that are there; None where none is.

    Raises:
        DataError: A count isn't a number.
    """
    amounts = [values.cell_amount(usage.get(name), name) for name in names]
    return sum(filter(None, amounts)) if any(amount is not None for amount in amounts) else None


def dollars(*cells: object) -> float | None:
    """The first of these costs that is there.

    Raises:
        DataError: It isn't an amount.
    """
    amounts = (values.cell_amount(cell, "the cost", most=MOST_COST) for cell in cells)
    return next((amount for amount in amounts if amount is not None), None)


@final
class CallLog:
    """Adds the calls of logs to an import, and counts those that can't be used, by reason.

    Args:
        into: The import.
    """

    def __init__(self, into: DatasetBuilder) -> None:
        self.into = into
        self._used_calls: set[str] = set()
        self._left_out_counts: Counter[str] = Counter()

    def add(
        self,
        place: Place,
        *,
        call: object,
        prompt: str | None,
        target: object,
        outcome: TargetOutcome,
    ) -> None:
        """Add a call; one without text is left out, since there is nothing to route by.

        Args:
            place: Its place in the source.
            call: Its id; logs that overlap have a call twice. None for one of its own.
            prompt: What is read of it (`scored_text`); None where it has no text.
            target: The language model that was asked.
            outcome: What it took, and its score.

        Raises:
            DataError: The target isn't a name.
        """
        if str(call) in self._used_calls:
            self.into.duplicate()
            return
        if prompt is None:
            self.leave_out("calls without the text of a user turn")
            return
        name = values.require_text(target, "the model")
        query = Query(prompt_key(prompt)[:16], values.require_text(prompt, "the prompt"))
        self.into.add(place, query, {name: outcome})
        self._used_calls.add(str(place if call is None else call))

    def leave_out(self, why: str) -> None:
        """Count a record that isn't used."""
        self._left_out_counts[why] += 1

    def close(self, paths: Sequence[Path], *, hint: str = "") -> None:
        """Note what was left out.

        Args:
            paths: The sources.
            hint: What would help if no call could be used.

        Raises:
            FormatError: Only calls without what is needed were found.
        """
        reasons = ", ".join(f"{count:,} {why}" for why, count in self._left_out_counts.items())
        if self._left_out_counts and not self._used_calls:
            raise FormatError(f"holds no call that can be used: {reasons}{hint}", file=paths[0])
        if reasons:
            self.into.note(f"left out: {reasons}")


@contextmanager
def calls_of(
    paths: Sequence[Path], into: DatasetBuilder, *, hint: str = ""
) -> Iterator[tuple[CallLog, list[Path]]]:
    """A log to add calls to, and the files of the sources.

    Raises:
        FormatError: A source doesn't exist, or no call can be used.
    """
    log = CallLog(into)
    yield log, sources.expand(paths, LOG_SUFFIXES)
    log.close(paths, hint=hint)


def object_at(record: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    """A field that must be an object.

    Raises:
        DataError: It isn't an object.
    """
    value = as_json(record.get(name))
    if not isinstance(value, dict):
        raise DataError(f"{name} is {values.show_cell(value)}; it must be an object")
    return value


def choose_score(counts: Counter[str], wanted: str | None, into: DatasetBuilder) -> str:
    """The name of the score that is the label: the one that was named, or the most frequent.

    Args:
        counts: How many calls have each score.
        wanted: The score that was named, if any.
        into: Gets a note if there is a choice.

    Raises:
        ConfigError: There is no such score.
    """
    if wanted is not None and wanted not in counts:
        raise ConfigError(f"there is no score {wanted!r}; there is {sorted(counts) or 'none'}")
    if wanted is None and len(counts) > 1:
        named = ", ".join(f"{name} ({count:,})" for name, count in counts.most_common())
        into.note(f"of the scores {named} the first is used; name another with --correct-column")
    return wanted or next((name for name, _ in counts.most_common(1)), "")


_CHATS = {
    *("", "completion", "acompletion", "text_completion", "atext_completion"),
    *("responses", "aresponses", "anthropic_messages"),
}
_SPEND_HINT = (
    "; LiteLLM keeps prompts if its config has general_settings: store_prompts_in_spend_logs"
)


def read_litellm(paths: Sequence[Path], into: DatasetBuilder, columns: Columns) -> None:
    """Read spend logs.

    Raises:
        FormatError: A source doesn't exist, or no call can be used.
    """
    del columns
    with calls_of(paths, into, hint=f"{_SPEND_HINT}: true") as (log, files):
        for path in files:
            with into.file(path):
                for place, record in log_records(path, into):
                    with into.row(place):
                        _add_spend(place, record, log)


def _add_spend(place: Place, record: Mapping[str, Any], log: CallLog) -> None:
    if (record.get("call_type") or "") not in _CHATS:
        log.leave_out("calls that aren't chats or completions")
        return
    if record.get("status") == "failure":
        log.leave_out("calls that failed")
        return
    if str(record.get("cache_hit")).lower() == "true":
        log.leave_out("answers from LiteLLM's cache")
        return
    outcome = TargetOutcome(
        input_tokens=total(record, "prompt_tokens"),
        output_tokens=total(record, "completion_tokens"),
        cost=dollars(record.get("spend")) or None,  # 0 where the price is unknown
    )
    requests = (record.get("messages"), record.get("proxy_server_request"))
    texts = (scored_text(request, log.into.harnesses) for request in requests)
    log.add(
        place,
        call=record.get("request_id"),
        prompt=next((text for text in texts if text), None),
        target=record.get("model_group") or record.get("model"),
        outcome=outcome,
    )


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
_BATCH_HINT = "; give the files of the requests and of the results together, or their folder"


def read_openai(paths: Sequence[Path], into: DatasetBuilder, columns: Columns) -> None:
    """Read OpenAI's batch files, requests and results.

    Raises:
        FormatError: A source doesn't exist, or no result can be used.
    """
    del columns
    _read_calls(paths, into, _OPENAI)


def read_anthropic(paths: Sequence[Path], into: DatasetBuilder, columns: Columns) -> None:
    """Read Anthropic's message batches, requests and results.

    Raises:
        FormatError: A source doesn't exist, or no result can be used.
    """
    del columns
    _read_calls(paths, into, _ANTHROPIC)


def _read_calls(paths: Sequence[Path], into: DatasetBuilder, dialect: _Dialect) -> None:
    requests: dict[str, list[Mapping[str, Any]]] = {}
    results: list[tuple[Place, Mapping[str, Any]]] = []
    with calls_of(paths, into, hint=_BATCH_HINT) as (log, files):
        for path in files:
            with into.file(path):
                for place, record in log_records(path, into):
                    request = fields_of(record.get(dialect.request))
                    if request:
                        requests.setdefault(str(record.get("custom_id")), []).append(request)
                    else:
                        results.append((place, record))
        for place, record in results:
            with into.row(place):
                _add_result(place, record, requests, dialect, log)
        if requests and not results:
            log.leave_out("requests, and no result")


def _answer_of(record: Mapping[str, Any], dialect: _Dialect) -> Mapping[str, Any] | None:
    """The answer of a result; None where the request failed, expired or was cancelled.

    Raises:
        DataError: It isn't a result.
    """
    if record.get(dialect.result) is None and record.get("error") is not None:
        return None  # OpenAI's, of a request that expired
    result = object_at(record, dialect.result)
    if dialect is _OPENAI:
        answer = result.get("body") if result.get("status_code") == 200 else None
    else:
        answer = result.get("message") if result.get("type") == "succeeded" else None
    return answer if isinstance(answer, dict) else None


@final
class BatchResult(NamedTuple):
    """The result of one request of a batch.

    Attributes:
        custom_id: The request's id.
        answer: The provider's answer, as it stands; None where there is none.
    """

    custom_id: str
    answer: Mapping[str, Any] | None

    @property
    def text(self) -> str:
        """The text of the answer, without reasoning; empty where it has none."""
        answer = self.answer or {}
        choices = answer.get("choices")
        if isinstance(choices, list) and choices:
            content = fields_of(fields_of(choices[0]).get("message")).get("content")
        elif isinstance(answer.get("output"), list):  # OpenAI's responses
            items = [fields_of(item) for item in answer["output"]]
            items = [item for item in items if item.get("type") != "reasoning"]
            content = [part for item in items for part in _parts_of(item.get("content"))]
        else:
            content = answer.get("content")
        return "".join(_read_texts(content))


def _parts_of(content: object) -> list[object]:
    return content if isinstance(content, list) else []


def read_batch_results(paths: Sequence[Path]) -> Iterator[BatchResult]:
    """The results of OpenAI's and of Anthropic's batches; requests among them are left out.

    Args:
        paths: Files, or folders of them.

    Raises:
        FormatError: A source doesn't exist, or a line is malformed.
    """
    into = DatasetBuilder(strict=True)
    for path in sources.expand(paths, (".jsonl", ".ndjson")):
        for place, record in log_records(path, into):
            if any(fields_of(record.get(each.request)) for each in (_OPENAI, _ANTHROPIC)):
                continue
            with into.row(place):
                name = values.identifier(record.get("custom_id"), "custom_id")
                dialect = _ANTHROPIC if "result" in record else _OPENAI
                result = BatchResult(name, _answer_of(record, dialect))
            yield result


def _add_result(
    place: Place,
    record: Mapping[str, Any],
    requests: Mapping[str, list[Mapping[str, Any]]],
    dialect: _Dialect,
    log: CallLog,
) -> None:
    name = values.identifier(record.get("custom_id"), "custom_id")
    answer = _answer_of(record, dialect)
    if answer is None:
        log.leave_out("requests that failed, expired or were cancelled")
        return
    request = _find_request(requests.get(name, []), answer.get("model"))
    if request is None:
        log.leave_out("results whose request isn't in the sources")
        return
    usage = fields_of(answer.get("usage"))
    outcome = TargetOutcome(
        input_tokens=total(usage, *dialect.input_tokens),
        output_tokens=total(usage, *dialect.output_tokens),
    )
    log.add(
        place,
        call=answer.get("id"),
        prompt=scored_text(request, log.into.harnesses),
        target=request.get("model"),
        outcome=outcome,
    )


def _find_request(
    requests: Sequence[Mapping[str, Any]], answered_by: object
) -> Mapping[str, Any] | None:
    """The request that was answered; None where the sources don't have it.

    Raises:
        DataError: Several could be.
    """
    if len(requests) < 2:
        return requests[0] if requests else None
    names = {
        request.get("model"): request
        for request in requests
        if _is_served_by(answered_by, request.get("model"))
    }
    if not names:
        return None
    longest = max(names, key=lambda name: len(str(name)))
    same = [request for request in requests if request.get("model") == longest]
    if len({scored_text(request) for request in same}) > 1:
        raise DataError(
            f"several requests to {longest} have the same custom_id; import each batch by "
            "itself, and merge the datasets"
        )
    return names[longest]


def _is_served_by(answered_by: object, requested: object) -> bool:
    return isinstance(requested, str) and str(answered_by).startswith(requested)
