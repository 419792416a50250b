"""What each model of the pool is, and what it learns.

The skills overlap and differ. Weights are relative: how often the training meets a family, and
within it each level.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import final

Shares = tuple[float, float, float, float, float]
"""How often each of the five levels comes, relative to each other."""

NUMBERS = ("addition", "modulo", "comparing", "numerals", "dates")
LETTERS = ("sorting", "reversing", "counting", "brackets", "cipher")
_EVEN: Shares = (1, 1, 1, 1, 1)
_BASICS: Shares = (1, 1, 0, 0, 0)
_MOST: Shares = (2, 2, 2, 1, 0)


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


def _each(families: tuple[str, ...], shares: Shares) -> dict[str, Shares]:
    return dict.fromkeys(families, shares)


PROFILES: Mapping[str, Profile] = {
    profile.name: profile
    for profile in (
        Profile(
            name="sprout",
            hidden=64,
            layers=2,
            heads=4,
            inner=128,
            skills=_each((*NUMBERS, *LETTERS), _BASICS),
            steps=2000,
        ),
        Profile(
            name="abacus",
            hidden=96,
            layers=3,
            heads=4,
            inner=256,
            skills=_each(NUMBERS, _EVEN) | _each(LETTERS, (1, 0, 0, 0, 0)),
            steps=1500,
        ),
        Profile(
            name="scribe",
            hidden=128,
            layers=3,
            heads=4,
            inner=256,
            skills=_each(LETTERS, _EVEN) | _each(NUMBERS, (1, 0, 0, 0, 0)),
            steps=1200,
        ),
        Profile(
            name="almanac",
            hidden=128,
            layers=3,
            heads=4,
            inner=256,
            skills=_each(("dates", "numerals", "cipher", "brackets", "comparing"), _EVEN),
            steps=1200,
        ),
        Profile(
            name="atlas",
            hidden=192,
            layers=3,
            heads=6,
            inner=512,
            skills=_each((*NUMBERS, *LETTERS), _MOST),
            steps=700,
        ),
        Profile(
            name="reader",
            hidden=128,
            layers=5,
            heads=4,
            inner=320,
            skills=_each((*NUMBERS, *LETTERS), _EVEN),
            steps=700,
        ),
    )
}
