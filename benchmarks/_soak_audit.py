"""Whether clients' replies, receipts, metrics and the targets' own counts agree.

Every request has a number that its targets see, so that each answer can be looked up: its client
got the decision's id, the id leads to the receipt, the number to what the targets heard.

What may differ, and why; all else must be equal:

- No target hears an attempt that the breaker stops (`breaker_open`), that can't connect
  (`connect`), or that the target hangs up on without reading it (`broken_off` without a status).
  The target counts the last as `unread`.
- A client that left got no id. Its requests are compared in sum; an attempt that ended as
  `disconnected` without a status may have ended before or after the target had heard it. Where it
  left before its request was looked at there is no receipt, and no target was asked.
- A request whose replica was killed may have a receipt or not.
"""

import json
import math
import sqlite3
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

EQUAL = "equal"
_MOST = 10
_CALLS = 6
"""The most calls of targets for one request."""
_SILENT = ("broken_off", "disconnected")
_ENDS = {
    "good": ("answered",),
    "slow": ("answered",),
    "refuse": ("answered",),  # it had read the request before it began to hang up
    "fail": ("overloaded", "server_error"),
    "limited": ("rate_limited",),
    "stall": ("first_token_timeout", "answer_timeout"),
    "cut": ("broken_off",),
    "truncate": ("broken_off",),
    "garbage": ("broken_off", "malformed"),
}
"""How attempts may end, by the mood of the target."""

Attempts = Sequence[tuple[str, str, int | None, float]]
Heard = Mapping[str, Sequence[tuple[str, str, Sequence[int] | None]]]
Verdict = str | list[str]


def read_receipts(*databases: Path) -> dict[str, dict[str, Any]]:
    """All receipts by their id."""
    rows: list[dict[str, Any]] = []
    for database in databases:
        with sqlite3.connect(database) as db:
            db.row_factory = sqlite3.Row
            rows += [dict(row) for row in db.execute("select * from receipts")]
    for row in rows:
        row["attempts"] = json.loads(row["attempts"])
    return {row["id"]: row for row in rows}


def audit(
    receipts: Mapping[str, dict[str, Any]],
    decisions: Mapping[str, str],
    heard: Heard,
    counts: Mapping[str, Mapping[str, int]],
    metrics: str | None,
    killed: Collection[str] = (),
) -> dict[str, Verdict]:
    """Every comparison: `equal`, or what differs.

    Args:
        receipts: By their ids.
        decisions: The number of each request whose client got its decision's id, by this id.
        heard: By a request's number, its targets in order: name, mood, and tokens of an answer.
        counts: Each target's own.
        metrics: What Prometheus reads; None where processes were killed, whose counts are lost.
        killed: The numbers of the requests whose replica was killed.
    """
    matched = {i: r for i, r in receipts.items() if i in decisions}
    others = [r for i, r in receipts.items() if i not in decisions]
    numbers = set(decisions.values())
    other_heard = {number: of for number, of in heard.items() if number not in numbers}
    return {
        "each told decision has its receipt": _verdict(sorted(set(decisions) - set(receipts))),
        "each told request, attempt by attempt": _verdict(
            line
            for i, row in matched.items()
            for line in _compare_calls(row, heard.get(decisions[i], ()))
        ),
        "requests of clients that left, in sum": _verdict(_in_sum(others, other_heard, killed)),
        "requests that were hung up on unread": _verdict(
            _unread(receipts.values(), counts, _CALLS * len(killed))
        ),
        **(
            {}
            if metrics is None
            else {"metrics and receipts": _verdict(_metrics(receipts.values(), metrics))}
        ),
    }


def _verdict(lines: Iterable[str]) -> Verdict:
    differences = list(lines)
    more = [f"and {len(differences) - _MOST} more"] if len(differences) > _MOST else []
    return [*differences[:_MOST], *more] if differences else EQUAL


def _list_reached(attempts: Attempts) -> list[tuple[str, str]]:
    """The attempts that a target must have heard: the target, and how they ended."""
    return [
        (target, end)
        for target, end, status, _ in attempts
        if end not in ("breaker_open", "connect") and not (end in _SILENT and status is None)
    ]


def _compare_calls(row: Mapping[str, Any], heard: Sequence[Any]) -> list[str]:
    """What differs between a receipt and what the targets heard of its request."""
    reached = _list_reached(row["attempts"])
    place = f"{row['id']}: {row['attempts']}, heard {heard}"
    if [target for target, _ in reached] != [target for target, _, _ in heard]:
        return [f"{place}: not the same calls"]
    odd = [
        f"{place}: {end} of a target that was {mood}"
        for (_, end), (_, mood, _) in zip(reached, heard, strict=True)
        if end not in _ENDS[mood]
    ]
    if row["outcome"] == "answered":
        tokens = [row["input_tokens"], row["output_tokens"]]
        if not heard or heard[-1][2] != tokens:
            odd.append(f"{place}: the receipt has {tokens} tokens")
    return odd


def _in_sum(rows: Sequence[Mapping[str, Any]], heard: Heard, killed: Collection[str]) -> list[str]:
    least: Counter[str] = Counter()
    perhaps: Counter[str] = Counter()
    for row in rows:
        least.update(target for target, _ in _list_reached(row["attempts"]))
        perhaps.update(_left_unknown(row["attempts"]))
    requests = Counter(target for of in heard.values() for target, _, _ in of)
    lost = Counter(target for number in killed for target, _, _ in heard.get(number, ()))
    return [
        f"{name}: heard {requests[name]}, {lost[name]} of it of killed replicas; receipts have "
        f"{least[name]}, and {perhaps[name]} perhaps"
        for name in sorted(requests | least)
        if not (
            least[name] <= requests[name]
            and requests[name] - lost[name] <= least[name] + perhaps[name]
        )
    ]


def _left_unknown(attempts: Attempts) -> list[str]:
    return [t for t, end, status, _ in attempts if end == "disconnected" and status is None]


def _unread(
    rows: Iterable[Mapping[str, Any]], counts: Mapping[str, Mapping[str, int]], lost: int
) -> list[str]:
    least: Counter[str] = Counter()
    perhaps: Counter[str] = Counter()
    for row in rows:
        silent = (t for t, end, status, _ in row["attempts"] if (end, status) == _HUNG_UP)
        least.update(silent)
        perhaps.update(_left_unknown(row["attempts"]))
    return [
        f"{name}: counted {of.get('unread', 0)}; receipts have {least[name]}, and {perhaps[name]} "
        "perhaps"
        for name, of in counts.items()
        if not least[name] <= of.get("unread", 0) <= least[name] + perhaps[name] + lost
    ]


_HUNG_UP = ("broken_off", None)


def _metrics(rows: Iterable[Mapping[str, Any]], metrics: str) -> list[str]:
    due: Counter[tuple[str, str]] = Counter()
    dollars: list[float] = []
    for row in rows:
        due["requests", row["outcome"]] += 1
        due.update(("attempts", f"{target} {end}") for target, end, _, _ in row["attempts"])
        for kind in ("input", "cached", "output", "reasoning"):
            due["tokens", kind] += row[f"{kind}_tokens"] or 0
        dollars.append(row["cost"] or 0.0)
    labels = {"requests": ("outcome",), "attempts": ("target", "end"), "tokens": ("kind",)}
    totals: Counter[tuple[str, str]] = Counter()
    for name, by in labels.items():
        for labelled, value in samples(metrics, f"prefill_router_{name}_total"):
            totals[name, " ".join(labelled[label] for label in by)] += int(value)
    differences = [
        f"{' '.join(key)}: metrics have {totals[key]}, receipts {due[key]}"
        for key in sorted(due | totals)
        if totals[key] != due[key]
    ]
    spent = math.fsum(value for _, value in samples(metrics, "prefill_router_dollars_total"))
    if not math.isclose(spent, math.fsum(dollars), rel_tol=1e-9):
        differences.append(f"dollars: metrics have {spent}, receipts {math.fsum(dollars)}")
    events = samples(metrics, "prefill_router_receipt_events_total")
    lost = math.fsum(value for event, value in events if event["kind"] == "lost")
    return [*differences, f"{lost:g} receipts were lost"] if lost else differences


def samples(text: str, name: str) -> list[tuple[dict[str, str], float]]:
    """A metric's children: labels, without escapes in them, and the value."""
    children = []
    for row in text.splitlines():
        if row.startswith((name + "{", name + " ")):
            labels, _, value = row.removeprefix(name).rpartition(" ")
            pairs = (pair.split("=", 1) for pair in labels.strip("{}").split(",") if pair)
            children.append(
                ({label: value_text.strip('"') for label, value_text in pairs}, float(value))
            )
    return children
