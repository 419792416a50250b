"""What an endpoint says of its rate limits in the headers of a response.

How long it asks clients to wait is read from the headers in use:
`retry-after-ms`; `Retry-After` in seconds or as an HTTP date (RFC 9110, section 10.2.3);
`x-ratelimit-reset-requests` and `-tokens` as durations such as `6m0s` (OpenAI);
`x-ratelimit-reset` as seconds or as a time (OpenRouter: milliseconds since 1970);
`anthropic-ratelimit-*-reset` as RFC 3339.
"""

import email.utils
import math
import re
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime

_DURATION = re.compile(
    r"(?:(\d+)d)?(?:(\d+)h)?(?:(\d+)m(?!s))?(?:(\d+(?:\.\d+)?)s)?(?:(\d+(?:\.\d+)?)ms)?"
)
_LENGTHS = (86400.0, 3600.0, 60.0, 1.0, 0.001)
LONGEST_WAIT = 86400.0  # seconds; longer waits are cut to a day
_TIMESTAMP = 1e9  # seconds; a number above it is a time since 1970, not a duration
_IN_MILLISECONDS = 1e11
_LIMITED = ("requests", "tokens", "input-tokens", "output-tokens")


def retry_after(headers: Mapping[str, str], *, now: float) -> float | None:
    """Seconds to wait before a retry; None where no readable header gives them.

    Args:
        headers: The response headers, with names in lower case.
        now: The current time, in seconds since 1970.
    """
    seconds = _milliseconds(headers.get("retry-after-ms"))
    if seconds is None:
        clock = _moment(headers.get("date"))  # the endpoint's clock, which may differ from ours
        seconds = _seconds_or_date(headers.get("retry-after"), now if clock is None else clock)
    if seconds is None:
        seconds = max(_resets(headers, now), default=None)
    return None if seconds is None else min(max(seconds, 0.0), LONGEST_WAIT)


def _milliseconds(text: str | None) -> float | None:
    number = _number(text)
    return None if number is None else number / 1000


def _seconds_or_date(text: str | None, now: float) -> float | None:
    number = _number(text)
    if number is not None:
        return number
    moment = _moment(text)
    return None if moment is None else moment - now


def _moment(text: str | None) -> float | None:
    try:
        return email.utils.parsedate_to_datetime(text).timestamp() if text else None
    except (ValueError, OverflowError):
        return None


def _resets(headers: Mapping[str, str], now: float) -> Iterator[float]:
    """Seconds until each used-up limit is reset; limits with a remainder are skipped."""
    for kind in ("", *(f"-{name}" for name in _LIMITED)):
        if _number(headers.get(f"x-ratelimit-remaining{kind}")) not in (None, 0.0):
            continue
        seconds = _duration_or_moment(headers.get(f"x-ratelimit-reset{kind}"), now)
        if seconds is not None:
            yield seconds
    for kind in _LIMITED:
        if _number(headers.get(f"anthropic-ratelimit-{kind}-remaining")) == 0.0:
            seconds = _rfc3339(headers.get(f"anthropic-ratelimit-{kind}-reset"), now)
            if seconds is not None:
                yield seconds


def limits_left(
    headers: Mapping[str, str], *, now: float
) -> Iterator[tuple[str, float, float | None]]:
    """What a provider says remains of its rate limits.

    Args:
        headers: The response headers, with names in lower case.
        now: The current time, in seconds since 1970.

    Yields:
        The limit (`requests`, `tokens`, ...), what remains of it, and the seconds until its reset;
        None where they aren't said.
    """
    for kind in _LIMITED:
        for name, read in (
            (f"x-ratelimit-{{}}-{kind}", _duration_or_moment),
            (f"anthropic-ratelimit-{kind}-{{}}", _rfc3339),
        ):
            left = _number(headers.get(name.format("remaining")))
            reset = read(headers.get(name.format("reset")), now)
            if left is not None:
                yield kind, left, reset


def _duration_or_moment(text: str | None, now: float) -> float | None:
    number = _number(text)
    if number is not None:
        moment = number / 1000 if number > _IN_MILLISECONDS else number
        return moment - now if moment > _TIMESTAMP else moment
    match = _DURATION.fullmatch(text.strip()) if text else None
    if not match or not any(match.groups()):
        return None
    return sum(float(n) * length for n, length in zip(match.groups(), _LENGTHS, strict=True) if n)


def _rfc3339(text: str | None, now: float) -> float | None:
    try:
        moment = datetime.fromisoformat(text or "")
    except ValueError:
        return None
    return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp() - now


def _number(text: str | None) -> float | None:
    try:
        value = float(text or "")
    except ValueError:
        return None
    return value if math.isfinite(value) else None
