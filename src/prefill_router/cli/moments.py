"""Moments as they are given on the command line."""

import re
import time
from datetime import UTC, datetime

from prefill_router.cli.usage import UsageError

_SECONDS = {"m": 60, "h": 3600, "d": 86_400}
_AGO = re.compile(r"(\d{1,9})([mhd])")
HELP = "Only requests since then: 24h, 7d, or a date or time as 2026-11-22T08:30 (UTC)."


def moment(text: str | None) -> float | None:
    """Seconds since 1970 of a moment; None for none.

    Raises:
        UsageError: It is none.
    """
    if text is None:
        return None
    ago = _AGO.fullmatch(text)
    if ago:
        return time.time() - int(ago[1]) * _SECONDS[ago[2]]
    try:
        found = datetime.fromisoformat(text)
    except ValueError:
        raise UsageError(
            f"{text!r} is no moment; give 90m, 24h, 7d, or a date or time as 2026-11-22T08:30"
        ) from None
    return (found if found.tzinfo else found.replace(tzinfo=UTC)).timestamp()
