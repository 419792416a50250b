"""Langfuse's exports: generations with their scores.

Read are the export of the interface, of the programming interface and of blob storage: observations
or traces, with scores in a list beside them or in files of their own. Field names are written as
`traceId` or as `trace_id`. Calls are the observations of type GENERATION. A score of a trace counts
for its generation if it has only one.

The label is the score that `Columns.correct` names, or else the most frequent one. A score's value
is a number, or in categorical scores a word such as pass.
"""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from prefill_router.importers import call_logs, values
from prefill_router.importers.builder import DatasetBuilder, Place, TargetOutcome
from prefill_router.importers.columns import Columns

_Record = Mapping[str, Any]


class _Score(NamedTuple):
    name: str
    trace: str
    observation: str
    value: object


def read(paths: Sequence[Path], into: DatasetBuilder, columns: Columns) -> None:
    """Read exports.

    Raises:
        FormatError: A source doesn't exist, or no generation can be used.
        ConfigError: No score has the name that was given.
    """
    calls: list[tuple[Place, _Record]] = []
    scores: list[_Score] = []
    with call_logs.calls_of(paths, into) as (log, found):
        for path in found:
            with into.file(path):
                for place, record in call_logs.log_records(path, into):
                    scores += _scores(record)
                    calls += [(place, one) for one in _generations(record)]
        name = call_logs.chosen_score(Counter(s.name for s in scores), columns.correct, into)
        alone = Counter(trace for trace, _ in {_place_of(call) for _, call in calls})
        label = values.label if columns.scale is None else columns.scale.label
        by_place = {one[1:3]: one.value for one in scores if one.name == name}
        for place, call in calls:
            with into.row(place):
                trace, _ = _place_of(call)
                score = by_place.get(_place_of(call))
                if score is None and alone[trace] == 1:
                    score = by_place.get((trace, ""))
                _add(place, call, label(score, name), log)


def _at(record: _Record, *names: str) -> Any:
    """The first of these fields that is filled."""
    return next((record[name] for name in names if record.get(name) not in (None, "")), None)


def _place_of(call: _Record) -> tuple[str, str]:
    return str(_at(call, "trace_id", "traceId") or ""), str(call.get("id"))


def _generations(record: _Record) -> Iterator[_Record]:
    inner = call_logs.as_json(record.get("observations"))
    if str(record.get("type")).upper() == "GENERATION":
        yield record
    elif isinstance(inner, list):
        trace = {"traceId": record.get("id")}
        for one in inner:
            if isinstance(one, dict):
                yield from _generations({**trace, **one})


def _scores(record: _Record) -> Iterator[_Score]:
    inner = call_logs.as_json(record.get("scores"))
    if isinstance(inner, list):
        own = {"traceId": record.get("id")} if "type" not in record else record
        for one in inner:
            if isinstance(one, dict):
                yield from _scores({"traceId": _at(own, "trace_id", "traceId"), **one})
    elif "value" in record and "name" in record:
        value = record["value"]
        if str(_at(record, "data_type", "dataType")).upper() in ("CATEGORICAL", "BOOLEAN"):
            value = _at(record, "string_value", "stringValue", "value")
        yield _Score(
            str(record["name"]),
            str(_at(record, "trace_id", "traceId") or ""),
            str(_at(record, "observation_id", "observationId") or ""),
            value,
        )


def _add(place: Place, call: _Record, correct: float | None, log: call_logs.CallLog) -> None:
    usage = call_logs.fields_of(_at(call, "usage_details", "usageDetails", "usage"))
    cost = call_logs.fields_of(_at(call, "cost_details", "costDetails"))
    log.add(
        place,
        call=call.get("id"),
        prompt=call_logs.last_user_text(call.get("input")),
        target=_at(call, "provided_model_name", "providedModelName", "model"),
        outcome=TargetOutcome(
            correct,
            _kinds(usage, "input"),
            _kinds(usage, "output"),
            call_logs.dollars(
                cost.get("total"),
                _at(call, "total_cost", "totalCost", "calculatedTotalCost", "totalPrice"),
            )
            or None,  # 0 where the price is unknown
        ),
    )


def _kinds(usage: _Record, kind: str) -> float | None:
    """The tokens of all kinds of input or output, cached and reasoning tokens too."""
    return call_logs.total(usage, *(name for name in usage if name.startswith(kind)))
