"""Traces of calls to language models: Langfuse's exports, and OpenInference's spans.

Of Langfuse, the exports of its user interface, of its API and of blob storage are read. They hold
observations or traces, with scores in a list beside them or in files of their own. Field names are
written as `traceId` or as `trace_id`. Calls are the observations of type GENERATION. A score of a
trace counts for its generation if it has only one. The label is the score that `Columns.correct`
names, or else the most frequent one. A score's value is a number, or in categorical scores a word
such as pass.

Of OpenInference, the exports of Phoenix and Arize and OTLP JSON are read. Calls are the spans of
kind LLM. Their attributes are flat columns (`attributes.llm.model_name`), an object `attributes`,
nested or flat, or OTLP's list of keys and values. Annotations are labels: a record with a span's id
and a score, or the span's own columns, such as Arize's `eval.correctness.score`. `Columns.correct`
names the annotation, or else the most frequent is used.
"""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from prefill_router.agents import Harnesses
from prefill_router.importers import call_logs, values
from prefill_router.importers.builder import DatasetBuilder, Place, TargetOutcome
from prefill_router.importers.values import Columns

_Fields = Mapping[str, Any]


class _Score(NamedTuple):
    name: str
    trace: str
    observation: str
    value: object


def read_langfuse(paths: Sequence[Path], into: DatasetBuilder, columns: Columns) -> None:
    """Read exports.

    Raises:
        FormatError: A source doesn't exist, or no generation can be used.
        ConfigError: No score has the name that was given.
    """
    calls: list[tuple[Place, _Fields]] = []
    scores: list[_Score] = []
    with call_logs.calls_of(paths, into) as (log, files):
        for path in files:
            with into.file(path):
                for place, record in call_logs.log_records(path, into):
                    scores += _find_scores(record)
                    calls += [(place, call) for call in _find_generations(record)]
        name = call_logs.choose_score(Counter(s.name for s in scores), columns.correct, into)
        alone = Counter(trace for trace, _ in {_place_of(call) for _, call in calls})
        label = values.label if columns.scale is None else columns.scale.label
        by_place = {score[1:3]: score.value for score in scores if score.name == name}
        for place, call in calls:
            with into.row(place):
                trace, _ = _place_of(call)
                score = by_place.get(_place_of(call))
                if score is None and alone[trace] == 1:
                    score = by_place.get((trace, ""))
                _add_generation(place, call, label(score, name), log)


def _first_filled(record: _Fields, *names: str) -> Any:
    """The first of these fields that is filled."""
    return next((record[name] for name in names if record.get(name) not in (None, "")), None)


def _place_of(call: _Fields) -> tuple[str, str]:
    return str(_first_filled(call, "trace_id", "traceId") or ""), str(call.get("id"))


def _find_generations(record: _Fields) -> Iterator[_Fields]:
    inner = call_logs.as_json(record.get("observations"))
    if str(record.get("type")).upper() == "GENERATION":
        yield record
    elif isinstance(inner, list):
        trace = {"traceId": record.get("id")}
        for generation in inner:
            if isinstance(generation, dict):
                yield from _find_generations({**trace, **generation})


def _find_scores(record: _Fields) -> Iterator[_Score]:
    inner = call_logs.as_json(record.get("scores"))
    if isinstance(inner, list):
        own = {"traceId": record.get("id")} if "type" not in record else record
        for score in inner:
            if isinstance(score, dict):
                yield from _find_scores(
                    {"traceId": _first_filled(own, "trace_id", "traceId"), **score}
                )
    elif "value" in record and "name" in record:
        value = record["value"]
        if str(_first_filled(record, "data_type", "dataType")).upper() in (
            "CATEGORICAL",
            "BOOLEAN",
        ):
            value = _first_filled(record, "string_value", "stringValue", "value")
        yield _Score(
            str(record["name"]),
            str(_first_filled(record, "trace_id", "traceId") or ""),
            str(_first_filled(record, "observation_id", "observationId") or ""),
            value,
        )


def _add_generation(
    place: Place, call: _Fields, correct: float | None, log: call_logs.CallLog
) -> None:
    usage = call_logs.fields_of(_first_filled(call, "usage_details", "usageDetails", "usage"))
    cost = call_logs.fields_of(_first_filled(call, "cost_details", "costDetails"))
    log.add(
        place,
        call=call.get("id"),
        prompt=call_logs.scored_text(call.get("input"), log.into.harnesses),
        target=_first_filled(call, "provided_model_name", "providedModelName", "model"),
        outcome=TargetOutcome(
            correct,
            _sum_kinds(usage, "input"),
            _sum_kinds(usage, "output"),
            call_logs.dollars(
                cost.get("total"),
                _first_filled(call, "total_cost", "totalCost", "calculatedTotalCost", "totalPrice"),
            )
            or None,  # 0 where the price is unknown
        ),
    )


def _sum_kinds(usage: _Fields, kind: str) -> float | None:
    """The tokens of all kinds of input or output, cached and reasoning tokens too."""
    return call_logs.total(usage, *(name for name in usage if name.startswith(kind)))


_KIND = "openinference.span.kind"
_PREFIX = "attributes."


def read_openinference(paths: Sequence[Path], into: DatasetBuilder, columns: Columns) -> None:
    """Read spans and their annotations.

    Raises:
        FormatError: A source doesn't exist, or no span can be used.
        ConfigError: No annotation has the name that was given.
    """
    calls: list[tuple[Place, str, _Fields]] = []
    scores: dict[str, dict[str, object]] = {}
    with call_logs.calls_of(paths, into) as (log, files):
        for path in files:
            with into.file(path):
                for place, record in call_logs.log_records(path, into):
                    for span in _find_spans(record):
                        flat, name = _flatten_attributes(span), _read_id(span)
                        for annotation, value in _find_annotations(span, flat):
                            scores.setdefault(annotation, {})[name] = value
                        if str(span.get("span_kind") or flat.get(_KIND)).upper() == "LLM":
                            calls.append((place, name, flat))
        counts = Counter({name: len(by_span) for name, by_span in scores.items()})
        chosen = call_logs.choose_score(counts, columns.correct, into)
        label = values.label if columns.scale is None else columns.scale.label
        for place, name, attributes in calls:
            with into.row(place):
                score = scores.get(chosen, {}).get(name)
                _add_span(place, name, attributes, label(score, chosen), log)


def _find_spans(record: _Fields) -> Iterator[_Fields]:
    """The spans of a record; OTLP nests them."""
    for name in ("resourceSpans", "scopeSpans", "spans"):
        inner = record.get(name)
        if isinstance(inner, list):
            for part in inner:
                if isinstance(part, dict):
                    yield from _find_spans(part)
            return
    yield record


def _read_id(span: _Fields) -> str:
    context = call_logs.fields_of(span.get("context"))
    named = ("context.span_id", "spanId", "span_id")
    return str(context.get("span_id") or next((span[n] for n in named if span.get(n)), ""))


def _flatten_attributes(span: _Fields) -> dict[str, Any]:
    """The attributes of a span by their full names."""
    attributes = span.get("attributes")
    if isinstance(attributes, list):
        rows = [attribute for attribute in attributes if isinstance(attribute, dict)]
        return {
            str(row.get("key")): next(iter(call_logs.fields_of(row.get("value")).values()), None)
            for row in rows
        }
    flat: dict[str, Any] = {}
    _flatten(call_logs.fields_of(attributes), "", flat)
    own = {n.removeprefix(_PREFIX): v for n, v in span.items() if n.startswith(_PREFIX)}
    _flatten(own, "", flat)
    return flat


def _flatten(value: object, name: str, into: dict[str, Any]) -> None:
    """Add a nested value under dotted names; lists of messages have numbers in theirs."""
    if isinstance(value, str) and name.endswith("_messages"):
        value = call_logs.as_json(value)
    if isinstance(value, list):
        value = {str(number): part for number, part in enumerate(value)}
    if isinstance(value, dict):
        for key, part in value.items():
            _flatten(part, f"{name}.{key}".strip("."), into)
    else:
        into[name] = value


def _find_annotations(span: _Fields, attributes: _Fields) -> Iterator[tuple[str, object]]:
    """The names and scores of annotations; a label counts where there is no score."""
    result = call_logs.fields_of(span.get("result")) or span
    score = result.get("score") if result.get("score") is not None else result.get("label")
    if score is not None and not attributes:
        yield str(span.get("name") or span.get("annotation_name") or "score"), score
    for name, value in span.items():
        if name.startswith("eval.") and name.endswith(".score") and value is not None:
            yield name.removeprefix("eval.").removesuffix(".score"), value


def _add_span(
    place: Place,
    name: str,
    attributes: _Fields,
    correct: float | None,
    log: call_logs.CallLog,
) -> None:
    log.add(
        place,
        call=name or None,
        prompt=_read_prompt(attributes, log.into.harnesses),
        target=attributes.get("llm.request.model_name") or attributes.get("llm.model_name"),
        outcome=TargetOutcome(
            correct,
            call_logs.total(attributes, "llm.token_count.prompt"),
            call_logs.total(attributes, "llm.token_count.completion"),
            call_logs.dollars(attributes.get("llm.cost.total")) or None,
        ),
    )


def _read_prompt(attributes: _Fields, harnesses: Harnesses) -> str | None:
    """What is read of the input messages, or else of the input value."""
    prefix = "llm.input_messages."
    turns: dict[int, dict[str, Any]] = {}
    for name, value in attributes.items():
        number, _, field = name.removeprefix(prefix).partition(".message.")
        if name.startswith(prefix) and number.isdecimal():
            turns.setdefault(int(number), {})[field] = value
    messages = [{**turns[n], "content": _join_content(turns[n])} for n in sorted(turns)]
    return call_logs.scored_text(messages or attributes.get("input.value"), harnesses)


def _join_content(turn: _Fields) -> object:
    """The text of a message, which may be split into parts."""
    parts = [v for n, v in turn.items() if n.endswith(".message_content.text")]
    return turn.get("content") or "\n".join(part for part in parts if isinstance(part, str))
