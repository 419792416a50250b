"""Dates some days later or earlier, in a year of 365 days."""

from datetime import date, timedelta
from random import Random

from prefill_router.minipool.tasks.base import Family

_LATER = (
    "What is {n} days after {date}?",
    "Which date is {n} days after {date}?",
    "Give the date {n} days after {date}.",
)
_EARLIER = (
    "What is {n} days before {date}?",
    "Which date is {n} days before {date}?",
    "Give the date {n} days before {date}.",
)
_DAYS = {1: (1, 5), 2: (6, 20), 3: (1, 5), 4: (6, 20), 5: (21, 60)}
_STAYS = (1, 2)
"""Levels whose answer is in the same month; in the others it is in another."""
_YEAR = 2027  # any year of 365 days
_MONTHS = (
    "January",
    "February",
    "March",
    "April",
    "May",
    "June",
    "July",
    "August",
    "September",
    "October",
    "November",
    "December",
)


def _draw(random: Random, level: int) -> tuple[str, str]:
    while True:
        start = date(_YEAR, 1, 1) + timedelta(random.randrange(365))
        days = random.randint(*_DAYS[level])
        later = random.random() < 0.5
        end = _moved(start, days if later else -days)
        if (end.month == start.month) == (level in _STAYS):
            break
    wording = random.choice(_LATER if later else _EARLIER)
    return wording.format(n=days, date=_written(start)), _written(end)


def _moved(start: date, days: int) -> date:
    """So many days on, round and round a year of 365 days."""
    ordinal = (start - date(_YEAR, 1, 1)).days + days
    return date(_YEAR, 1, 1) + timedelta(ordinal % 365)


def _written(day: date) -> str:
    return f"{_MONTHS[day.month - 1]} {day.day}"


DATES = Family("dates", _LATER + _EARLIER, _draw, _MONTHS)
