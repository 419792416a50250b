"""Whether the gateway is alive, and whether it is ready: the truth, in plain values.

Among the checks is the lag of the event loop.
"""

import asyncio
import time
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal, final

from prefill_router.targets import Pool

HealthVerdict = Literal["ok", "degraded", "failed"]
_BEAT = 0.5  # seconds
_LOOKED_AT = 60.0  # seconds of beats
_MOST_LATE = 5.0  # seconds


@final
@dataclass(frozen=True)
class HealthFinding:
    """What one check found.

    Attributes:
        verdict: `degraded` is worse than it should be, and still answers.
        note: Why; empty where all is well. It is shown to everybody: it names no target and no
            variable.
    """

    verdict: HealthVerdict
    note: str = ""


HealthCheck = Callable[[], HealthFinding]


@final
@dataclass(frozen=True)
class HealthReport:
    """What all checks found.

    Attributes:
        status: The HTTP status: 200, or 503 where a check failed.
        value: Plain values, for JSON.
    """

    status: int
    value: dict[str, Any]


@final
class Health:
    """Answers `/health` and `/ready`.

    Args:
        alive: What must hold of the process; where one fails, it should be started anew.
        ready: What must hold for requests to be answered.
    """

    def __init__(
        self, *, alive: Mapping[str, HealthCheck], ready: Mapping[str, HealthCheck]
    ) -> None:
        self._alive, self._ready = dict(alive), dict(ready)

    def alive(self) -> HealthReport:
        """Whether the process works: `alive`, `degraded` or `failing`."""
        return _report(self._alive, good="alive", bad="failing")

    def ready(self) -> HealthReport:
        """Whether requests are answered: `ready`, `degraded` or `not_ready`."""
        return _report(self._ready, good="ready", bad="not_ready")


def _report(checks: Mapping[str, HealthCheck], *, good: str, bad: str) -> HealthReport:
    found = {name: check() for name, check in checks.items()}
    verdicts = {finding.verdict for finding in found.values()}
    failed = "failed" in verdicts
    state = bad if failed else "degraded" if "degraded" in verdicts else good
    told = {
        name: {"state": f.verdict, **({"note": f.note} if f.note else {})}
        for name, f in found.items()
    }
    return HealthReport(503 if failed else 200, {"state": state, "checks": told})


@final
class EventLoopLag:
    """Notices when the event loop is held up.

    Args:
        clock: Seconds that only grow.
    """

    def __init__(self, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._late: deque[tuple[float, float]] = deque()
        self._due: float | None = None

    async def run(self) -> None:
        """Beat until cancelled."""
        while True:
            self.beat()
            await asyncio.sleep(_BEAT)

    def beat(self) -> None:
        """Note how late this beat is; the next is due in half a second."""
        now = self._clock()
        if self._due is not None:
            self._late.append((now, max(0.0, now - self._due)))
        while self._late and self._late[0][0] < now - _LOOKED_AT:
            self._late.popleft()
        self._due = now + _BEAT

    @property
    def latest(self) -> float:
        """By how many seconds the latest beat of the last minute was late, or the next one is."""
        overdue = 0.0 if self._due is None else self._clock() - self._due
        return max(0.0, overdue, *(late for _, late in self._late))

    def check(self) -> HealthFinding:
        """Degraded where the loop was held up for long in the last minute; failed while it is."""
        if self._due is None:
            return HealthFinding("failed", "the event loop isn't watched")
        if self._clock() - self._due > _MOST_LATE:
            return HealthFinding(
                "failed", f"the event loop was last free {_MOST_LATE:g} s ago or more"
            )
        if self.latest > _MOST_LATE:
            return HealthFinding("degraded", f"the event loop was held up for {self.latest:.1f} s")
        return HealthFinding("ok")


def check_process(*, ending: bool) -> HealthFinding:
    """Of the process: one that ends answers what has come, and is to be sent no more."""
    return HealthFinding("failed", "the gateway is ending") if ending else HealthFinding("ok")


def check_encoder(state: str, *, fallback: str) -> HealthFinding:
    """Of the encoder's process: without it a fallback decides, which is worse, and no failure.

    Args:
        state: `ready`, `starting`, `down`, ...
        fallback: What decides without it.
    """
    if state == "ready":
        return HealthFinding("ok")
    return HealthFinding("degraded", f"the encoder is {state}; the fallback {fallback!r} decides")


def check_targets(breakers: Mapping[str, str]) -> HealthFinding:
    """Of the targets' breakers: all open is a failure, some open is worse than none."""
    held = sum(state == "open" for state in breakers.values())
    if not breakers or held == len(breakers):
        return HealthFinding("failed", f"all {len(breakers)} targets have failed")
    if held:
        return HealthFinding("degraded", f"{held} of {len(breakers)} targets have failed")
    return HealthFinding("ok")


def check_receipts(*, healthy: bool, lost: int) -> HealthFinding:
    """Of the receipts: requests are answered without them, so nothing of them is a failure."""
    if not healthy:
        return HealthFinding("degraded", "receipts can't be kept now; they wait in memory")
    return HealthFinding("degraded", f"{lost} receipts were lost") if lost else HealthFinding("ok")


def check_keys(pool: Pool, environment: Mapping[str, str]) -> HealthFinding:
    """Of the keys of targets: whether the variables that the pool names are set."""
    named = {name: pool.provider_of(name).api_key_env for name in pool.names}
    without = sum(
        variable is not None and not environment.get(variable) for variable in named.values()
    )
    if not without:
        return HealthFinding("ok")
    verdict: HealthVerdict = "failed" if without == len(named) else "degraded"
    return HealthFinding(
        verdict, f"{without} of {len(named)} targets have no key in the environment"
    )
