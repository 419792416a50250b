"""The versions of a router: a folder or URL with each version, and which one serves.

versions/0001/...   a router's folder; a version is never changed
state/state.json    the versions with their lineage, the one that serves, the candidate to replace
                    it, how far it has come, and every step with its evidence

The state is replaced as a whole, so a reader or a killed writer sees it before a step or after it.
"""

import math
from collections.abc import Callable, Iterator, Mapping
from contextlib import nullcontext
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, final

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from prefill_router import files
from prefill_router.errors import ConfigError, CorruptError
from prefill_router.remote import (
    PathOrUrl,
    RemotePath,
    find_files,
    is_free,
    location,
    reading,
    replacing_folder,
)
from prefill_router.router.storage import fingerprint, save_router

if TYPE_CHECKING:
    from prefill_router.router.router import Router

_VERSIONS, _STATE, _FILE = "versions", "state", "state.json"
Stage = Literal["shadow", "share"]
"""How far a candidate has come: it decides nothing, or on a share of the conversations."""
Actor = Literal["learner", "operator"]
Event = Literal["added", "shadow", "share", "promoted", "withdrawn", "rolled back"]

Evidence = Mapping[str, Any]
"""The numbers that a step rests on."""
_Change = tuple[dict[str, Any], str | None]
"""The fields of the state that change, and the version that the step is about."""


@final
class VersionLineage(BaseModel):
    """Where a version comes from.

    Attributes:
        name: Its name, a number of four digits.
        created: When it was added, ISO 8601 in UTC.
        fingerprint: The router's fingerprint, as receipts have it.
        parent: The version that served when it was fitted; None for none.
        data: The fingerprint of the dataset that it was fitted on.
        labels: The number of labels of each source.
        traffic: The times of the first and the last request in the dataset, in seconds since 1970;
            None where it isn't traffic.
        verdict: Whether it is worth it: `evaluation.Verdict.to_dict`.
        notes: What to know about it.
        changes: The changes of targets and of traffic that were known when it was fitted.
        charged: The targets whose prices here are what their providers charge; they count before
            those of the pool file.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)
    name: str = Field(pattern=r"^\d{4,}$")
    created: str
    fingerprint: str
    parent: str | None = None
    data: str = ""
    labels: dict[str, int] = {}
    traffic: tuple[float, float] | None = None
    verdict: dict[str, Any] | None = None
    notes: tuple[str, ...] = ()
    changes: tuple[str, ...] = ()
    charged: tuple[str, ...] = ()


@final
class VersionStep(BaseModel):
    """One step of a version, and why it was taken.

    Attributes:
        at: When, ISO 8601 in UTC.
        event: What happened.
        version: Which version it happened to; None where the default target serves from then on.
        share: The share of conversations that a candidate decides on from then on.
        by: Who took the step: `learner` or `operator`.
        evidence: The numbers that it rests on.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)
    at: str
    event: Event
    version: str | None
    share: float = 0.0
    by: Actor
    evidence: dict[str, Any] = {}

    @property
    def words(self) -> str:
        """What happened, by whom and why, as a sentence without its figures."""
        version = "the default target" if self.version is None else f"version {self.version}"
        action = _DONE[self.event].format(version=version, share=f"{100 * self.share:g} %")
        why = f": {self.evidence['why']}" if self.evidence.get("why") else ""
        return f"the {self.by} {action}{why}"

    def figures(self) -> list[tuple[str, str]]:
        """The names and values of the evidence, for people."""
        return list(_format_figures("", {n: v for n, v in self.evidence.items() if n != "why"}))


_DONE: Mapping[Event, str] = {
    "added": "added {version}",
    "shadow": "made {version} the candidate",
    "share": "gave {version} {share} of the conversations",
    "promoted": "promoted {version}",
    "withdrawn": "withdrew {version}",
    "rolled back": "went back to {version}",
}


def _format_figures(name: str, value: Any) -> Iterator[tuple[str, str]]:
    if isinstance(value, Mapping):
        for key, part in value.items():
            yield from _format_figures(f"{name}, {key}" if name else str(key), part)
    elif isinstance(value, float):
        yield name.replace("_", " "), f"{value:.4g}"
    else:
        text = f"{value:,}" if isinstance(value, int) else str(value)
        yield name.replace("_", " "), text


@final
class VersionState(BaseModel):
    """The versions, and which one serves.

    Attributes:
        format: The version of this file's format.
        versions: All versions, in order.
        current: The version that serves; None for the default target.
        candidate: The version that may replace it; None for none.
        stage: How far the candidate has come; None without one.
        share: The share of conversations that the candidate decides on.
        steps: Every step, the latest last.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)
    format: Literal[1] = 1
    versions: tuple[VersionLineage, ...] = ()
    current: str | None = None
    candidate: str | None = None
    stage: Stage | None = None
    share: float = Field(default=0.0, ge=0, le=1)
    steps: tuple[VersionStep, ...] = ()

    def __getitem__(self, name: str) -> VersionLineage:
        """A version's lineage; raises a `ConfigError` where there is none of this name."""
        for version in self.versions:
            if version.name == name:
                return version
        names = ", ".join(version.name for version in self.versions) or "none"
        raise ConfigError(f"there is no version {name!r}; there are: {names}")

    def step_of(self, name: str, *, until: float = math.inf) -> VersionStep | None:
        """The latest step by which a version decides; None where it never did.

        Args:
            name: The version.
            until: The time that the step isn't after, in seconds since 1970.
        """
        deciding = ("share", "promoted", "rolled back")
        steps = (step for step in reversed(self.steps) if step.version == name)
        earlier = (step for step in steps if datetime.fromisoformat(step.at).timestamp() <= until)
        return next((step for step in earlier if step.event in deciding), None)

    @property
    def before(self) -> str | None:
        """The version that served before the current one; None for the default target."""
        served: list[str | None] = [None]
        for step in self.steps:
            if step.event == "promoted":
                served.append(step.version)
            elif step.event == "rolled back":
                while len(served) > 1 and served[-1] != step.version:
                    served.pop()
        return served[-2] if len(served) > 1 else None


@final
@dataclass(frozen=True)
class VersionRegistry:
    """The versions at a place, a folder or a URL. Each change is one step, whole or not at all.

    Attributes:
        place: The folder or URL.
    """

    place: PathOrUrl

    @classmethod
    def at(cls, place: PathOrUrl | str, *, create: bool = True) -> "VersionRegistry":
        """The versions at a place.

        Args:
            place: A folder or URL.
            create: Whether it may be empty, to begin there.

        Raises:
            ConfigError: There are none and something else is, or it may not be empty; or the URL
                can't be read.
        """
        registry = cls(location(place))
        free = is_free(registry.place, own=(_VERSIONS, _STATE))
        if not find_files(registry._state, [_FILE]):
            if not create:
                raise ConfigError(
                    f"{place} holds no versions of a router; name the folder that `learn` writes, "
                    f"or begin there with: prefill-router versions add {place} ROUTER"
                )
            if not free:
                raise ConfigError(
                    f"{place} isn't empty, and holds no versions of a router; name another folder"
                )
        return registry

    @property
    def _state(self) -> PathOrUrl:
        return self.place / _STATE

    def router(self, name: str) -> PathOrUrl:
        """The folder of a version's router."""
        return self.place / _VERSIONS / name

    def state(self) -> VersionState:
        """The present state; an empty one where nothing was added yet.

        Raises:
            CorruptError: It can't be read.
        """
        if not find_files(self._state, [_FILE]):
            return VersionState()
        with reading(self._state, [_FILE]) as folder:
            try:
                return VersionState.model_validate_json((folder / _FILE).read_bytes())
            except (ValidationError, OSError):
                raise CorruptError(
                    f"{self._state}/{_FILE} isn't what was written; restore it from a backup"
                ) from None

    def _free_name(self, state: VersionState) -> str:
        """The next number; no lock keeps others out of a URL, so what they began there counts."""
        names = {version.name for version in state.versions}
        if isinstance(self.place, RemotePath):
            names.update((self.place / _VERSIONS).entries())
        return f"{max((int(name) for name in names if name.isdecimal()), default=0) + 1:04}"

    def add(self, router: "Router", lineage: Mapping[str, Any], *, by: Actor = "learner") -> str:
        """Keep a router as the next version, which doesn't serve yet; returns its name.

        Args:
            router: The router.
            lineage: The fields of `VersionLineage` but `name`, `created`, `fingerprint` and
                `parent`.
            by: Who adds it.

        Raises:
            StoreError: Another process changed the versions meanwhile.
        """

        def added(state: VersionState) -> _Change:
            name = self._free_name(state)
            record = router.record
            after = (
                "" if state.current is None else f", fitted while version {state.current} served"
            )
            notes = (*record.notes, f"version {name} of a router that learns from traffic{after}")
            noted = router.with_record(record.model_copy(update={"notes": notes}))
            save_router(noted, self.router(name), new=isinstance(self.place, RemotePath))
            version = VersionLineage(
                name=name,
                created=_current_time(),
                fingerprint=fingerprint(self.router(name)),
                parent=state.current,
                **lineage,
            )
            return {"versions": (*state.versions, version)}, name

        return self._apply_change(added, "added", by=by).versions[-1].name

    def shadow(self, name: str, *, by: Actor = "learner") -> VersionState:
        """Make a version the candidate, in place of any other; it decides nothing yet."""
        return self._apply_change(
            lambda state: (_set_candidate(state[name].name, "shadow"), name), "shadow", by=by
        )

    def widen(
        self, share: float, *, evidence: Evidence | None = None, by: Actor = "learner"
    ) -> VersionState:
        """Let the candidate decide on a share of the conversations.

        Raises:
            ConfigError: There is no candidate, or the share isn't between 0 and 1.
        """
        if not 0 < share < 1:
            raise ConfigError(f"the share is {share:g}; it must be above 0 and below 1")
        return self._apply_change(
            lambda state: (
                _set_candidate(_require_candidate(state), "share", share),
                state.candidate,
            ),
            "share",
            evidence,
            by,
        )

    def promote(
        self, name: str | None = None, *, evidence: Evidence | None = None, by: Actor = "learner"
    ) -> VersionState:
        """Let a version, by default the candidate, serve all requests.

        Raises:
            ConfigError: There is no such version, or no candidate.
        """
        return self._apply_change(
            lambda state: _set_current(
                _require_candidate(state) if name is None else state[name].name
            ),
            "promoted",
            evidence,
            by,
        )

    def withdraw(self, *, evidence: Evidence | None = None) -> VersionState:
        """Give the candidate up; what serves goes on.

        Raises:
            ConfigError: There is no candidate.
        """
        return self._apply_change(
            lambda state: (_set_candidate(None), _require_candidate(state)), "withdrawn", evidence
        )

    def roll_back(
        self, name: str | None = None, *, evidence: Evidence | None = None, by: Actor = "operator"
    ) -> VersionState:
        """Let what served before serve again, or the version that is named; drop any candidate.

        Raises:
            ConfigError: There is no such version, or none serves.
        """
        return self._apply_change(
            lambda state: _set_current(
                _require_previous(state) if name is None else state[name].name
            ),
            "rolled back",
            evidence,
            by,
        )

    def _apply_change(
        self,
        change: Callable[[VersionState], _Change],
        event: Event,
        evidence: Evidence | None = None,
        by: Actor = "learner",
    ) -> VersionState:
        """Change the state in one step, and record it."""
        place = self.place
        lock = files.writer_lock(place, _STATE, wait=True) if isinstance(place, Path) else None
        with lock or nullcontext(), replacing_folder(self._state) as folder:
            before = self.state()  # read once the change has begun, so that no other is lost
            changes, version = change(before)
            step = VersionStep(
                at=_current_time(),
                event=event,
                version=version,
                share=changes.get("share", 0.0),
                by=by,
                evidence=dict(evidence or {}),
            )
            after = before.model_copy(update={**changes, "steps": (*before.steps, step)})
            files.write_text(folder / _FILE, after.model_dump_json(indent=1))
        return after


def _set_candidate(
    name: str | None, stage: Stage | None = None, share: float = 0.0
) -> dict[str, Any]:
    return {"candidate": name, "stage": stage, "share": share}


def _set_current(name: str | None) -> _Change:
    return {"current": name, **_set_candidate(None)}, name


def _require_candidate(state: VersionState) -> str:
    if state.candidate is None:
        raise ConfigError("there is no candidate; name a version")
    return state.candidate


def _require_previous(state: VersionState) -> str | None:
    if state.current is None:
        raise ConfigError("no version serves, so there is nothing to go back from")
    return state.before


def _current_time() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")
