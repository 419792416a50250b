"""Reads who asks and what: the person's newest text in a request, without the agent's own texts.

A coding agent wraps what a person asks in project rules, reminders, an environment, and the output
of tools. `read_request` finds the ask, the earlier ones, what the request is for, and the
conversation that it belongs to. A request that no agent's marks fit is read as it is.

A text between an agent's tags counts as the agent's only where the agent puts it. That is a whole
part of a message, or lines of its own at the beginning or end of a message of one text. So a person
who asks what such a tag means is read in full.
"""

import hashlib
import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Reversible, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import takewhile
from typing import Literal, NamedTuple, Protocol, final, runtime_checkable

from prefill_router.agents.harness import ANY, Harness, Harnesses, RequestKind

SHORT = 60
"""An ask of at most so many characters is read together with the asks before it."""
EARLIER = 2000
"""After so many characters of earlier asks no further one is read with a short ask."""
_MOST_ASKS = 9
_RESULT_START = 300  # characters of a tool's result that say whether it failed
_MOST_CALLS = 50  # tool calls that are looked at, from the newest back
_SYSTEM_START = 2000  # characters of a system prompt that say who asks
_DIGITS = 16
TurnRole = Literal["system", "user", "assistant", "tool"]
ToolStep = tuple[tuple[tuple[object, object], ...], tuple[str, ...]]
"""The tool calls of one turn, and the text of each of their results."""


@final
class Turn(NamedTuple):  # which is made in a third of a dataclass's time, once for each turn
    """One turn of a request; a message with several tools' results is several turns.

    Attributes:
        role: Who it is from.
        texts: The texts of its parts; of an assistant none are needed.
        is_one_text: Whether its content is a text and not a list of parts.
        has_failed: Whether it is a tool's result that is marked as an error.
        calls: The name and the arguments of each tool call of an assistant; None and all its fields
            where it has no name.
    """

    role: TurnRole
    texts: tuple[str, ...] = ()
    is_one_text: bool = False
    has_failed: bool = False
    calls: tuple[tuple[object, object], ...] = ()


@runtime_checkable
class LongTurns(Protocol):
    """Turns that can leave some out where a request has so many that reading them takes time."""

    def leave_out_tools(self) -> None:
        """Give no more turns of an assistant or a tool, as far as this is seen at once."""


@final
@dataclass(frozen=True, kw_only=True, slots=True)
class RequestReading:
    """Who asks, and what.

    Attributes:
        ask: The person's newest text; None where there is none.
        earlier: The person's texts before a short ask that it may refer to, the oldest first.
        kind: What the request is for.
        agent: The agent; None for none that is known.
        conversation: The agent's name of the conversation, that of a subagent after a slash; None
            where it gives none, and for auxiliary requests.
        parent: The conversation or subagent that started it; None where that isn't known.
        turn: The agent's name of the person's turn; None where it gives none.
        type: The agent's name of the kind of subagent that asks; None where it gives none.
        opening: The person's first text, for an agent that is known; None where there is none.
        is_ongoing: Whether an agent has begun to answer the ask, so that the person's turn goes on.
        failing_steps: How many tools' results in a row, up to the last, have failed since the ask.
        repeated_calls: How often in a row the newest tool call was made right before it, with the
            same arguments, since the ask.
        stalled_steps: How many of the newest tool calls since the ask, one after another, had been
            made before with the same arguments and the same result.
        reasons: Why it was read like this, in a few words each.
    """

    ask: str | None
    earlier: tuple[str, ...] = ()
    kind: RequestKind = "main"
    agent: str | None = None
    conversation: str | None = None
    parent: str | None = None
    turn: str | None = None
    type: str | None = None
    opening: str | None = None
    is_ongoing: bool = False
    failing_steps: int = 0
    repeated_calls: int = 0
    stalled_steps: int = 0
    reasons: tuple[str, ...] = ()

    @property
    def scored_text(self) -> str | None:
        """What an encoder reads: the ask, and before a short one the asks that it refers to."""
        return None if self.ask is None else "\n\n".join((*self.earlier, self.ask))


def read_request(
    turns: Reversible[Turn],
    *,
    headers: Mapping[str, str],
    harnesses: Harnesses,
    session: str | None = None,
    max_tokens: int | None = None,
) -> RequestReading:
    """Read who asks, and what.

    Args:
        turns: The turns, system prompts among them. They are read from both ends, as far as needed,
            and once enough is known of tools' results without these (`LongTurns`).
        headers: The headers, with names in lower case.
        harnesses: The marks of the agents.
        session: The client's name of the conversation in the body; None for none.
        max_tokens: The most output tokens; None where no limit is given.
    """
    head = _read_head(turns)
    systems = [t[:_SYSTEM_START] for turn in head if turn.role == "system" for t in turn.texts]
    openings = [turn.texts[0].lstrip() for turn in head if turn.role == "user" and turn.texts]
    identity = harnesses.identify(headers, systems, openings)
    if identity is None:
        tail = _read_tail(turns, _plain_text, harnesses.failure)
        return RequestReading(
            ask=tail.ask,
            earlier=tail.earlier,
            failing_steps=tail.failing_steps,
            repeated_calls=tail.repeated_calls,
            stalled_steps=tail.stalled_steps,
            reasons=("no agent's marks",),
        )
    agent, why = identity
    marks = harnesses.harnesses[agent]
    tail = _read_tail(turns, partial(person_text, marks=marks), harnesses.failure, marks)
    headers = _add_json_fields(headers, marks)
    kind, because = _find_kind(marks, headers, tail, [*systems, *openings], systems, max_tokens)
    first = next(filter(None, (person_text(t, marks) for t in head if t.role == "user")), "")
    conversation, parent = _name_conversation(marks, headers, kind, session, first)
    return RequestReading(
        ask=tail.ask,
        earlier=tail.earlier,
        kind=kind,
        agent=agent,
        conversation=conversation,
        parent=parent,
        turn=_first_of(headers, marks.turns),
        type=_first_of(headers, marks.types),
        opening=first or None,
        is_ongoing=tail.is_ongoing,
        failing_steps=tail.failing_steps,
        repeated_calls=tail.repeated_calls,
        stalled_steps=tail.stalled_steps,
        reasons=(f"{agent}: {why}", f"{kind}: {because}"),
    )


def _read_head(turns: Iterable[Turn]) -> list[Turn]:
    """The turns before the first answer."""
    return list(takewhile(lambda turn: turn.role not in ("assistant", "tool"), turns))


@final
@dataclass(frozen=True, slots=True)
class _Tail:
    """What the newest turns say.

    Attributes:
        ask: The person's newest text; None where there is none.
        earlier: The texts before it that a short one may refer to, the oldest first.
        is_ongoing: Whether an answer follows the ask.
        failing_steps: As in `RequestReading`.
        compaction: Whether the newest text asks for a summary.
        blocks: The texts of the turns since the ask that an agent's blocks may be in.
        notes: The system texts since the ask; agents write their own there, without blocks.
        repeated_calls: As in `RequestReading`.
        stalled_steps: As in `RequestReading`.
    """

    ask: str | None
    earlier: tuple[str, ...]
    is_ongoing: bool
    failing_steps: int
    compaction: bool
    blocks: tuple[str, ...]
    notes: tuple[str, ...]
    repeated_calls: int
    stalled_steps: int


def _plain_text(turn: Turn) -> str:
    text = "\n".join(filter(None, turn.texts))
    return "" if text.isspace() else text


def _read_tail(
    turns: Reversible[Turn],
    person: Callable[[Turn], str],
    failure: re.Pattern[str],
    marks: Harness | None = None,
) -> _Tail:
    """Read the turns from the last back to the ask, and on where a short ask needs it."""
    asks: list[str] = []
    blocks: list[str] = []
    notes: list[str] = []
    calls: list[ToolStep] = []
    results: list[str] = []
    failing, is_counting, compaction, has_answer = 0, True, False, False
    long_turns = turns if isinstance(turns, LongTurns) else None
    for turn in reversed(turns):
        if long_turns is not None and not is_counting and len(calls) == _MOST_CALLS:
            long_turns.leave_out_tools()
        has_answer |= not asks and turn.role in ("assistant", "tool")
        if turn.role == "tool" and is_counting and not asks:
            is_counting = _has_failed(turn, failure)
            failing += is_counting
        if not asks and len(calls) < _MOST_CALLS:
            _add_step(turn, calls, results)
        if turn.role == "system" and not asks:
            notes += turn.texts
        if turn.role != "user":
            continue
        if not asks:
            blocks += turn.texts
        text = person(turn)
        if not asks and marks is not None and _has_start(text, marks.compactions):
            compaction = True
            continue
        if text:
            asks.append(text)
            is_enough = len(asks) == _MOST_ASKS or sum(map(len, asks[1:])) > EARLIER
            if is_enough or len(text) > SHORT:
                break
    repeated, stalled = _count_repetitions(calls)
    return _Tail(
        ask=asks[0] if asks else None,
        earlier=tuple(reversed(asks[1:])),
        is_ongoing=bool(asks) and has_answer,
        failing_steps=failing,
        compaction=compaction,
        blocks=tuple(blocks),
        notes=tuple(notes),
        repeated_calls=repeated,
        stalled_steps=stalled,
    )


def _add_step(turn: Turn, calls: list[ToolStep], results: list[str]) -> None:
    """Add the calls of a turn with the results after it, or a result that waits for its call."""
    if turn.role == "tool":
        results.append("\n".join(turn.texts))
    elif turn.calls:
        calls.append((turn.calls, tuple(results)))
        results.clear()


def _count_repetitions(steps: Sequence[ToolStep]) -> tuple[int, int]:
    """How often the newest calls were made right before, and `RequestReading.stalled_steps`.

    Args:
        steps: The newest first. A result without text, such as a screenshot, may be another one.
    """

    def is_stalled(n: int) -> bool:
        return all(steps[n][1]) and steps[n] in steps[n + 1 :]

    try:
        same = sum(1 for _ in takewhile(lambda step: step[0] == steps[0][0], steps[1:]))
        return same, sum(1 for _ in takewhile(is_stalled, range(len(steps))))
    except RecursionError:  # arguments that are nested too deeply to compare
        return 0, 0


def _has_failed(turn: Turn, failure: re.Pattern[str]) -> bool:
    start = turn.texts[0][:_RESULT_START] if turn.texts else ""
    return turn.has_failed or failure.search(start) is not None


def _has_start(text: str, starts: tuple[str, ...]) -> bool:
    return bool(starts) and text.lstrip().startswith(starts)


def _add_json_fields(headers: Mapping[str, str], marks: Harness) -> dict[str, str]:
    """The headers, with the fields of those that have a JSON object."""
    fields = dict(headers)
    for name in marks.json_headers:
        try:
            value = json.loads(headers.get(name, "{}"))
        except (ValueError, RecursionError):
            continue
        if isinstance(value, dict):
            fields |= {
                f"{name}.{key}": text for key, text in value.items() if isinstance(text, str)
            }
    return fields


def _first_of(headers: Mapping[str, str], names: Iterable[str]) -> str | None:
    return next((headers[name] for name in names if headers.get(name)), None)


def _find_kind(
    marks: Harness,
    headers: Mapping[str, str],
    tail: _Tail,
    starts: Sequence[str],
    systems: Sequence[str],
    max_tokens: int | None,
) -> tuple[RequestKind, str]:
    """What a request is for, and what says so."""
    for header, values in marks.kinds.items():
        value = headers.get(header)
        kind = None if value is None else values.get(value, values.get(ANY))
        if kind is not None:
            return kind, f"the header {header} is {str(value)[:64]!r}"
    if tail.compaction:
        return "compaction", "the newest text asks for a summary"
    texts = [*starts, (tail.ask or "").lstrip()]
    start = next((s for s in marks.auxiliary for text in texts if text.startswith(s)), None)
    if start is not None:
        return "auxiliary", f"a text begins with {start!r}"
    if max_tokens == 1:
        return "auxiliary", "it allows one output token"
    if any(word in text for word in marks.subagents for text in systems):
        return "subagent", "its system prompt says so"
    blocks = [text for text in tail.blocks if any(f"<{name}" in text for name in marks.blocks)]
    word = next((word for word in marks.plans for text in blocks if word in text), None)
    if word is not None:
        return "plan", f"a block has {word!r}"
    lines = [f"\n{text}" for text in tail.notes]
    word = next((word for word in marks.plans for text in lines if f"\n{word}" in text), None)
    return ("main", "nothing else") if word is None else ("plan", f"a system text has {word!r}")


def _name_conversation(
    marks: Harness,
    headers: Mapping[str, str],
    kind: RequestKind,
    session: str | None,
    opening: str,
) -> tuple[str | None, str | None]:
    """The names of the conversation and of its parent."""
    name = _first_of(headers, marks.sessions) or session
    parent = _first_of(headers, marks.parents)
    if name is None or kind == "auxiliary":
        return None, parent or name
    own = _first_of(headers, marks.agents)
    if own is None and kind != "subagent":
        return name, parent
    if own is None:
        own = hashlib.sha256(opening.encode("utf-8", "surrogatepass")).hexdigest()[:_DIGITS]
    return f"{name}/{own}", parent or name


def person_text(turn: Turn, marks: Harness) -> str:
    """The person's text in a user's turn, without the agent's; empty where there is none.

    Args:
        turn: The turn.
        marks: The marks of the agent.
    """
    first = turn.texts[0].lstrip() if turn.texts else ""
    if marks.results and first.startswith(marks.results) and _is_result(first):
        return "\n".join(part for text in turn.texts for part in _wrapped_parts(text, marks))
    may_join = turn.is_one_text or bool(marks.wrappers)
    parts = (_person_part(text, marks, may_join=may_join) for text in turn.texts)
    return "\n".join(filter(None, parts)).strip()


def _is_result(first: str) -> bool:
    """Whether a text begins as `[read_file for 'app.py'] Result:`."""
    head, end, rest = first[:_RESULT_START].partition("]")
    return bool(end) and "\n" not in head and rest.lstrip().startswith("Result")


def _person_part(text: str, marks: Harness, *, may_join: bool) -> str:
    start = text.lstrip()
    if marks.texts and start.startswith(marks.texts):
        return ""
    for opening, line in marks.requests_after.items():
        if start.startswith(opening):
            if line not in start:
                return text
            text = start.partition(line)[2].strip()
            break
    end = text.rstrip()
    if may_join:
        text = _strip_trailing(_strip_leading(text, marks), marks)
    elif start.startswith(marks.opening_tags or ("\0",)) and _is_blocks(start, end, marks):
        return ""
    wrapper = marks.whole_wrapper.fullmatch(text.lstrip()) if marks.wrappers else None
    return wrapper[2].strip() if wrapper is not None else text


def _is_blocks(start: str, end: str, marks: Harness) -> bool:
    """Whether a part begins with a block and ends with one."""
    begins = any(start.startswith((f"<{name}>", f"<{name} ")) for name in marks.blocks)
    return begins and end.endswith(tuple(f"</{name}>" for name in marks.blocks))


def _wrapped_parts(text: str, marks: Harness) -> Iterator[str]:
    """The person's texts within a longer text, or one that is wrapped, with tags of its own."""
    wrapper = marks.whole_wrapper.fullmatch(text.strip())
    if wrapper is not None:
        yield wrapper[2].strip()
        return
    for name in marks.wrappers:  # each search goes on where the last one ended
        opening, closing, at = f"<{name}>", f"</{name}>", 0
        while (start := text.find(opening, at)) >= 0:
            at = text.find(closing, start)
            if at < 0:
                break
            yield text[start + len(opening) : at].strip()


def _strip_leading(text: str, marks: Harness) -> str:
    at = _skip_space(text, 0)
    while text.startswith(marks.opening_tags or ("\0",), at):
        block = marks.leading_block.match(text, at)
        if block is None:
            break
        at = _skip_space(text, block.end())
    return text[at:]


def _strip_trailing(text: str, marks: Harness) -> str:
    """The text without the blocks at its end that begin on a line of their own."""
    ends = {f"</{name}>": f"<{name}" for name in marks.blocks}
    end = _end_of_text(text, len(text))
    while True:
        closing = next((tag for tag in ends if text.endswith(tag, 0, end)), None)
        if closing is None:
            return text[:end]
        opening = ends[closing]
        at = text.rfind(opening, 0, end)
        is_tag = at >= 0 and text[at + len(opening)] in "> \t\n"
        if not is_tag or (at > 0 and text[at - 1] != "\n"):
            return text[:end]
        end = _end_of_text(text, at)


def _skip_space(text: str, at: int) -> int:
    while at < len(text) and text[at].isspace():
        at += 1
    return at


def _end_of_text(text: str, end: int) -> int:
    while end > 0 and text[end - 1].isspace():
        end -= 1
    return end
