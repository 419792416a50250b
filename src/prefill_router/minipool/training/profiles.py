"""What each model of the pool is, and what it learns.

The skills overlap and differ. Weights are relative: how often the training meets a family, and
within it each level.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import final

Shares = tuple[float, float, float, float, float]
"""How often each of the five levels comes, relative to each other."""

NUMBERS = ("addition", "modulo", "comparing", "numerals", "dates")
LETTERS = ("sorting", "reversing", "counting", "brackets", "cipher")
_EVEN: Shares = (1, 1, 1, 1, 1)
_EASIEST: Shares = (3, 1, 0, 0, 0)
_EASIER: Shares = (2, 2, 1, 0, 0)
_HARDER: Shares = (0, 0, 1, 1, 1)


@final
@dataclass(frozen=True, kw_only=True)
class Profile:
    """A model's shape, skills and training.

    Attributes:
        name: Its name in the pool.
        hidden: Width of the residual stream.
        layers: Blocks.
        heads: Attention heads.
        inner: Width inside the MLPs.
        skills: By family: how often each level comes; other families never come.
        steps: Optimiser steps.
        batch: Examples in one step.
        seed: Of the weights and of the examples.
    """

    name: str
    hidden: int
    layers: int
    heads: int
    inner: int
    skills: Mapping[str, Shares]
    steps: int
    batch: int = 64
    seed: int = 0


def _each(families: Iterable[str], shares: Shares, *, times: float = 1) -> dict[str, Shares]:
    a, b, c, d, e = shares
    return dict.fromkeys(families, (times * a, times * b, times * c, times * d, times * e))


PROFILES: Mapping[str, Profile] = {
    profile.name: profile
    for profile in (
        Profile(
            name="sprout",
            hidden=64,
            layers=2,
            heads=4,
            inner=128,
            skills=_each((*NUMBERS, *LETTERS), _EASIEST),
            steps=3000,
        ),
        Profile(
            name="abacus",
            hidden=96,
            layers=3,
            heads=4,
            inner=256,
            skills=_each(("addition",), _EVEN, times=3)
            | _each(("modulo", "counting"), _EVEN)
            | _each(("comparing",), _HARDER)
            | _each(("numerals",), _EASIER, times=0.5),
            steps=4000,
        ),
        Profile(
            name="scribe",
            hidden=128,
            layers=3,
            heads=4,
            inner=256,
            skills=_each(("sorting", "reversing", "brackets", "cipher"), _HARDER)
            | _each(("counting", "comparing"), _EASIER, times=0.5),
            steps=1600,
        ),
        Profile(
            name="almanac",
            hidden=128,
            layers=3,
            heads=4,
            inner=256,
            skills=_each(("dates",), _EVEN, times=3)
            | _each(("modulo", "counting"), _EVEN)
            | _each(("numerals",), _HARDER)
            | _each(("sorting", "addition"), _EASIER, times=0.5),
            steps=1800,
        ),
        Profile(
            name="atlas",
            hidden=192,
            layers=3,
            heads=6,
            inner=512,
            skills=_each((*NUMBERS, *LETTERS), _EASIER),
            steps=2500,
        ),
        Profile(
            name="reader",
            hidden=128,
            layers=4,
            heads=4,
            inner=384,
            skills=_each((*NUMBERS, *LETTERS), _EVEN)
            | _each(("addition", "dates"), _EVEN, times=2),
            steps=4000,
        ),
    )
}
