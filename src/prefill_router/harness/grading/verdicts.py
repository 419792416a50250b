"""What a judge's reply says."""

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, final

_DECODER = json.JSONDecoder()
_FIELDS = frozenset({"correct", "score", "extracted", "confidence"})
_COLON = re.compile("[:=]")
_AROUND = " \t*_\"'"
"""What may stand around a field's name and its value, outside of JSON."""
_MOST_WORK = 50_000_000
"""Characters that are looked at for objects which prove to be none, all attempts together."""
_NUMBER = re.compile(r"[-+]?(?:\d++(?:\.\d*+)?|\.\d++)(?:[eE][-+]?\d{1,3})?")
_YES = {"yes": 1.0, "true": 1.0, "correct": 1.0, "no": 0.0, "false": 0.0, "incorrect": 0.0}


@final
@dataclass(frozen=True, kw_only=True)
class Verdict:
    """What a judge said.

    Attributes:
        score: In [0, 1].
        extracted: The final answer that it saw; empty where it named none.
        reasoning: Why.
        confidence: How sure the graded answer says it is, in [0, 1]; None where unsaid.
    """

    score: float
    extracted: str = ""
    reasoning: str = ""
    confidence: float | None = None


def read_verdict(reply: str, *, soft: bool) -> Verdict | None:
    """What a judge's reply says; None where that can't be read.

    The JSON object that the reply ends on counts, fenced or not, and with its keys in any case. No
    other object does, neither within it nor before it: a judge may quote one from the answer that
    it grades. Where a reply ends on none, lines such as `correct: yes` count, if they agree. What
    would take too long to tell can't be read.
    """
    wanted = "score" if soft else "correct"
    try:
        found = _last_object(reply)
    except ValueError:
        return None
    return _verdict(_lines(reply, wanted) if found is None else found, wanted)


def _last_object(reply: str) -> Mapping[str, Any] | None:
    """The JSON object that a reply ends on; None where it ends otherwise.

    Raises:
        ValueError: It has too many braces that begin no object.
    """
    text = reply.rstrip().removesuffix("```").rstrip()
    if not text.endswith("}"):
        return None
    at, odd = text.find("{"), 0
    while at >= 0:
        try:
            value, end = _DECODER.raw_decode(text, at)
        except (ValueError, RecursionError):
            value, end, odd = None, at + 1, odd + 1
        if value is not None and end == len(text):
            return {str(key).strip().lower(): item for key, item in value.items()}
        if odd * len(text) > _MOST_WORK:  # each costs up to the whole text
            raise ValueError("too many braces")
        at = text.find("{", end)
    return None


def _lines(reply: str, wanted: str) -> Mapping[str, str]:
    """The fields that have a line of their own; none where two of the wanted one disagree."""
    found: dict[str, str] = {}
    for line in reply.splitlines():
        name, *rest = _COLON.split(line, maxsplit=1)
        field = name.strip(f"{_AROUND}#>-").lower()
        value = rest[0].lstrip(_AROUND).rstrip(f"{_AROUND},.") if rest else ""
        if field not in _FIELDS or not value:
            continue
        if field == wanted and found.get(field, value).lower() != value.lower():
            return {}
        found[field] = value
    return found


def _verdict(found: Mapping[str, Any], wanted: str) -> Verdict | None:
    score = _share(found.get("score")) if wanted == "score" else _yes(found.get("correct"))
    if score is None:
        return None
    sure = _number(found.get("confidence"))
    within = sure is not None and 0 <= sure <= 100
    return Verdict(
        score=score,
        extracted=_text(found.get("extracted")),
        reasoning=_text(found.get("reasoning")),
        confidence=sure / 100 if within and sure is not None else None,
    )


def _yes(value: Any) -> float | None:
    if isinstance(value, bool):
        return float(value)
    return _YES.get(value.strip().strip("*_\"'.").lower()) if isinstance(value, str) else None


def _share(value: Any) -> float | None:
    """A score from 0 to 1; another number is no such score, and isn't guessed at."""
    number = _number(value)
    return number if number is not None and 0 <= number <= 1 else None


def _number(value: Any) -> float | None:
    if isinstance(value, bool):
        return None
    if isinstance(value, int | float):
        return float(value) if abs(value) < 1e9 else None
    if isinstance(value, str) and _NUMBER.fullmatch(value.strip().rstrip("%").strip()):
        return float(value.strip().rstrip("%").strip())
    return None


def _text(value: Any) -> str:
    try:
        return "" if value is None else value if isinstance(value, str) else json.dumps(value)
    except RecursionError:  # what can just be read can be too deep to be written
        return ""
