"""OpenInference's spans: exports of Phoenix and Arize, and OTLP JSON.

Calls are the spans of kind LLM. Their attributes are flat columns (`attributes.llm.model_name`), an
object `attributes`, nested or flat, or OTLP's list of keys and values. Annotations are labels: a
record with a span's id and a score, or the span's own columns, such as Arize's
`eval.correctness.score`. `Columns.correct` names the annotation, or else the most frequent is used.
"""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from prefill_router.importers import call_logs, values
from prefill_router.importers.builder import DatasetBuilder, Place, TargetOutcome
from prefill_router.importers.columns import Columns

_Attributes = Mapping[str, Any]
_KIND = "openinference.span.kind"
_PREFIX = "attributes."


def read(paths: Sequence[Path], into: DatasetBuilder, columns: Columns) -> None:
    """Read spans and their annotations.

    Raises:
        FormatError: A source doesn't exist, or no span can be used.
        ConfigError: No annotation has the name that was given.
    """
    calls: list[tuple[Place, str, _Attributes]] = []
    scores: dict[str, dict[str, object]] = {}
    with call_logs.calls_of(paths, into) as (log, found):
        for path in found:
            with into.file(path):
                for place, record in call_logs.log_records(path, into):
                    for span in _spans(record):
                        held, name = _flat(span), _id(span)
                        for annotation, value in _annotations(span, held):
                            scores.setdefault(annotation, {})[name] = value
                        if str(span.get("span_kind") or held.get(_KIND)).upper() == "LLM":
                            calls.append((place, name, held))
        counts = Counter({name: len(found) for name, found in scores.items()})
        chosen = call_logs.chosen_score(counts, columns.correct, into)
        label = values.label if columns.scale is None else columns.scale.label
        for place, name, attributes in calls:
            with into.row(place):
                score = scores.get(chosen, {}).get(name)
                _add(place, name, attributes, label(score, chosen), log)


def _spans(record: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    """The spans of a record; OTLP nests them."""
    for name in ("resourceSpans", "scopeSpans", "spans"):
        inner = record.get(name)
        if isinstance(inner, list):
            for one in inner:
                if isinstance(one, dict):
                    yield from _spans(one)
            return
    yield record


def _id(span: Mapping[str, Any]) -> str:
    context = call_logs.fields_of(span.get("context"))
    named = ("context.span_id", "spanId", "span_id")
    return str(context.get("span_id") or next((span[n] for n in named if span.get(n)), ""))


def _flat(span: Mapping[str, Any]) -> dict[str, Any]:
    """The attributes of a span by their full names."""
    listed = span.get("attributes")
    if isinstance(listed, list):
        rows = [one for one in listed if isinstance(one, dict)]
        return {
            str(row.get("key")): next(iter(call_logs.fields_of(row.get("value")).values()), None)
            for row in rows
        }
    flat: dict[str, Any] = {}
    _flatten(call_logs.fields_of(listed), "", flat)
    own = {n.removeprefix(_PREFIX): v for n, v in span.items() if n.startswith(_PREFIX)}
    _flatten(own, "", flat)
    return flat


def _flatten(value: object, name: str, into: dict[str, Any]) -> None:
    """Add a nested value under dotted names; lists of messages have numbers in theirs."""
    if isinstance(value, str) and name.endswith("_messages"):
        value = call_logs.as_json(value)
    if isinstance(value, list):
        value = {str(number): one for number, one in enumerate(value)}
    if isinstance(value, dict):
        for key, one in value.items():
            _flatten(one, f"{name}.{key}".strip("."), into)
    else:
        into[name] = value


def _annotations(span: Mapping[str, Any], held: _Attributes) -> Iterator[tuple[str, object]]:
    """The names and scores of annotations; a label counts where there is no score."""
    result = call_logs.fields_of(span.get("result")) or span
    score = result.get("score") if result.get("score") is not None else result.get("label")
    if score is not None and not held:
        yield str(span.get("name") or span.get("annotation_name") or "score"), score
    for name, value in span.items():
        if name.startswith("eval.") and name.endswith(".score") and value is not None:
            yield name.removeprefix("eval.").removesuffix(".score"), value


def _add(
    place: Place,
    name: str,
    held: _Attributes,
    correct: float | None,
    log: call_logs.CallLog,
) -> None:
    log.add(
        place,
        call=name or None,
        prompt=_prompt(held),
        target=held.get("llm.request.model_name") or held.get("llm.model_name"),
        outcome=TargetOutcome(
            correct,
            call_logs.total(held, "llm.token_count.prompt"),
            call_logs.total(held, "llm.token_count.completion"),
            call_logs.dollars(held.get("llm.cost.total")) or None,
        ),
    )


def _prompt(held: _Attributes) -> str | None:
    """The last user message, or else the input value."""
    prefix = "llm.input_messages."
    turns: dict[int, dict[str, Any]] = {}
    for name, value in held.items():
        number, _, field = name.removeprefix(prefix).partition(".message.")
        if name.startswith(prefix) and number.isdecimal():
            turns.setdefault(int(number), {})[field] = value
    messages = [{**turns[n], "content": _content(turns[n])} for n in sorted(turns)]
    return call_logs.last_user_text(messages or held.get("input.value"))


def _content(turn: Mapping[str, Any]) -> object:
    """The text of a message, which may be split into parts."""
    parts = [v for n, v in turn.items() if n.endswith(".message_content.text")]
    return turn.get("content") or "\n".join(part for part in parts if isinstance(part, str))
