"""The JSON of the page's versions: what serves, and the steps that led there."""

from datetime import datetime
from typing import TypedDict

from prefill_router.router import VersionState

_SHOWN = 20


class FigureView(TypedDict):
    """One number that a step rests on."""

    name: str
    value: str


class StepView(TypedDict):
    """A step of a version.

    Attributes:
        at: When it was taken.
        words: What happened, by whom and why.
        evidence: What it rests on; empty for an operator's.
    """

    at: float
    words: str
    evidence: list[FigureView]


class VersionsView(TypedDict):
    """The versions of a router.

    Attributes:
        serving: The versions that serve, for people; None where the router has no versions.
        versions: How many there are.
        steps: The latest steps, the newest first.
    """

    serving: str | None
    versions: int
    steps: list[StepView]


NONE = VersionsView(serving=None, versions=0, steps=[])
"""A router without versions."""


def versions_view(state: VersionState, serving: str) -> VersionsView:
    """The versions as the page shows them; raises nothing."""
    return VersionsView(
        serving=serving,
        versions=len(state.versions),
        steps=[
            StepView(
                at=datetime.fromisoformat(step.at).timestamp(),
                words=step.words,
                evidence=[FigureView(name=name, value=value) for name, value in step.figures()],
            )
            for step in state.steps[: -_SHOWN - 1 : -1]
        ],
    )
