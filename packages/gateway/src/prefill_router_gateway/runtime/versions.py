"""Follows a router's versions: which ones serve, and the steps between them."""

import asyncio
import hashlib
import json
import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Protocol, final, runtime_checkable

from prefill_router.errors import ConfigError, PrefillRouterError
from prefill_router.router import VersionRegistry, VersionState, VersionStep
from prefill_router_gateway.decide import decision_id, share_of
from prefill_router_gateway.records import RoutingRequest

_log = logging.getLogger(__name__)
_LONGEST_PAUSE = 300.0  # seconds


@final
@dataclass(frozen=True)
class ServedVersions:
    """The versions of a router that serve.

    Attributes:
        current: The version that serves; None for the default target.
        candidate: The version that decides on a share of the conversations; None for none.
        share: That share.
    """

    current: str | None
    candidate: str | None = None
    share: float = 0.0

    @classmethod
    def of(cls, state: VersionState) -> "ServedVersions":
        """What serves in a state; a candidate in the stage `shadow` decides nothing."""
        if state.stage != "share":
            return cls(state.current)
        return cls(state.current, state.candidate, state.share)

    def __str__(self) -> str:
        serving = "the default target" if self.current is None else f"version {self.current}"
        return serving if self.candidate is None else f"{serving}; {self.described_candidate}"

    @property
    def described_candidate(self) -> str:
        """The candidate with its share, for people."""
        return f"version {self.candidate} (candidate, {100 * self.share:g} % of conversations)"


def in_share(question: RoutingRequest, name: str, share: float) -> bool:
    """Whether a request is in a share of the conversations that is drawn for a name.

    Different names have different conversations, and what is drawn for one says nothing of
    `traffic.share`. A request without a conversation is drawn by itself.

    Args:
        question: The request.
        name: What the share is drawn for.
        share: The share, between 0 and 1.
    """
    identity = question.session or decision_id(question.at)
    return share_of(hashlib.sha256(f"{name} {identity}".encode()).hexdigest()) < share


@runtime_checkable
class LoadedVersions(Protocol):
    """What was loaded of the versions."""

    @property
    def candidate_problems(self) -> tuple[str, ...]:
        """Why the candidate couldn't be loaded."""


@final
class VersionWatch:
    """Looks at the versions every few seconds, and has each step applied.

    What serves goes on until a step is applied as a whole. A step that can't be applied is logged
    once and tried again, after longer and longer pauses.

    Args:
        registry: The versions.
        seconds: The time between two looks.
        served: Returns what serves now.
        reload: Loads what the state says.
        on_problem: Called with why the latest step isn't applied; with an empty text once it is.
    """

    def __init__(
        self,
        registry: VersionRegistry,
        *,
        seconds: float,
        served: Callable[[], ServedVersions],
        reload: Callable[[], Awaitable[LoadedVersions]],
        on_problem: Callable[[str], None],
    ) -> None:
        self._registry, self._seconds = registry, seconds
        self._served, self._reload, self._on_problem = served, reload, on_problem
        self._problem, self._logged_steps = "", -1

    async def run(self) -> None:
        """Look until cancelled."""
        pause = self._seconds
        while True:
            await self.look()
            pause = min(2 * pause, _LONGEST_PAUSE) if self._problem else self._seconds
            await asyncio.sleep(max(pause, self._seconds))

    async def look(self) -> None:
        """Apply what has changed, if anything has."""
        problem = ""
        try:
            state = await asyncio.to_thread(self._registry.state)
            if ServedVersions.of(state) != self._served():
                loaded = await self._reload()
                if loaded.candidate_problems:
                    raise ConfigError(*loaded.candidate_problems)
            self._log_steps(state)
        except (PrefillRouterError, OSError) as error:
            problem = str(error)
        if problem != self._problem:
            if problem:
                _log.error(
                    "the latest step of the versions isn't applied: %s; %s serves on",
                    problem,
                    self._served(),
                )
            self._on_problem(problem)
        self._problem = problem

    def _log_steps(self, state: VersionState) -> None:
        """Log the steps since the last look."""
        if self._logged_steps >= 0:
            for step in state.steps[self._logged_steps :]:
                _log.info(
                    "%s (%s); %s serves", step.words, _describe_evidence(step), self._served()
                )
        self._logged_steps = len(state.steps)


def _describe_evidence(step: VersionStep) -> str:
    return f"evidence: {json.dumps(step.evidence)}" if step.evidence else "no evidence"
