"""The health checks: whether the gateway is alive and ready, and the event loop's lag."""

import asyncio
import time
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal, final

from prefill_router.errors import TROUBLESHOOTING
from prefill_router_gateway.forecast import FallbackShare

HealthVerdict = Literal["ok", "degraded", "failed"]
_BEAT = 0.5  # seconds
_LOOKED_AT = 60.0  # seconds of beats
_MOST_LATE = 5.0  # seconds


@final
@dataclass(frozen=True)
class HealthFinding:
    """The result of one check.

    Attributes:
        verdict: `degraded` means that it works, but not as well as it should.
        note: The reason; empty if ok. Anybody may read it, so it names no variable and no address.
    """

    verdict: HealthVerdict
    note: str = ""


HealthCheck = Callable[[], HealthFinding]


@final
@dataclass(frozen=True)
class HealthReport:
    """The results of all checks.

    Attributes:
        status: The HTTP status: 200, or 503 where a check failed.
        value: Plain values for JSON.
    """

    status: int
    value: dict[str, Any]


@final
class Health:
    """Answers `/health` and `/ready`.

    Args:
        alive: The checks of the process; if one fails, it should be restarted.
        ready: The checks that requests can be answered.
    """

    def __init__(
        self, *, alive: Mapping[str, HealthCheck], ready: Mapping[str, HealthCheck]
    ) -> None:
        self._alive, self._ready = dict(alive), dict(ready)

    def alive(self) -> HealthReport:
        """Whether the process works: `alive`, `degraded` or `failing`."""
        return _make_report(self._alive, good="alive", bad="failing")

    def ready(self) -> HealthReport:
        """Whether requests can be answered: `ready`, `degraded` or `not_ready`."""
        return _make_report(self._ready, good="ready", bad="not_ready")


def _make_report(checks: Mapping[str, HealthCheck], *, good: str, bad: str) -> HealthReport:
    findings = {name: check() for name, check in checks.items()}
    verdicts = {finding.verdict for finding in findings.values()}
    failed = "failed" in verdicts
    state = bad if failed else "degraded" if "degraded" in verdicts else good
    results = {name: _result_to_dict(name, finding) for name, finding in findings.items()}
    return HealthReport(503 if failed else 200, {"state": state, "checks": results})


def _result_to_dict(name: str, finding: HealthFinding) -> dict[str, str]:
    """A check as JSON has it; where it isn't ok, with the heading to read."""
    note = {"note": finding.note} if finding.note else {}
    is_explained = finding.verdict != "ok" and name in _HEADINGS
    more = {"see": f"{TROUBLESHOOTING}#{_HEADINGS[name]}"} if is_explained else {}
    return {"state": finding.verdict, **note, **more}


_HEADINGS: Mapping[str, str] = {
    "targets": "a-target-is-down",
    "receipts": "receipts-cant-be-written",
    "shared": "the-database-is-locked-or-away",
    "encoder": "decisions-have-no-forecast",
    "forecasts": "decisions-have-no-forecast",
    "event_loop": "answers-are-slow-or-refused",
    "versions": "the-router-is-damaged",
}


@final
class EventLoopLag:
    """Measures the lag of the event loop, by a timer that should fire every half second.

    Args:
        clock: A monotonic clock, in seconds.
    """

    def __init__(self, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._late: deque[tuple[float, float]] = deque()
        self._due: float | None = None

    async def run(self) -> None:
        """Run the timer until cancelled."""
        while True:
            self.beat()
            await asyncio.sleep(_BEAT)

    def beat(self) -> None:
        """Record how late the timer fired; it is due again in half a second."""
        now = self._clock()
        if self._due is not None:
            self._late.append((now, max(0.0, now - self._due)))
        while self._late and self._late[0][0] < now - _LOOKED_AT:
            self._late.popleft()
        self._due = now + _BEAT

    @property
    def latest(self) -> float:
        """The longest lag of the last minute in seconds, including the current one."""
        overdue = 0.0 if self._due is None else self._clock() - self._due
        return max(0.0, overdue, *(late for _, late in self._late))

    def check(self) -> HealthFinding:
        """Degraded if the loop was blocked for long in the last minute; failed while it is."""
        if self._due is None:
            return HealthFinding("failed", "the event loop isn't watched")
        if self._clock() - self._due > _MOST_LATE:
            return HealthFinding(
                "failed", f"the event loop has been blocked for over {_MOST_LATE:g} s"
            )
        if self.latest > _MOST_LATE:
            return HealthFinding("degraded", f"the event loop was blocked for {self.latest:.1f} s")
        return HealthFinding("ok")


def check_process(*, ending: bool) -> HealthFinding:
    """Check the process: failed while it is ending, since it should get no more requests."""
    return HealthFinding("failed", "the gateway is ending") if ending else HealthFinding("ok")


def check_workers(missing: int) -> HealthFinding:
    """Check the workers: degraded while some of them are started again."""
    note = f"workers that are started again: {missing}"
    return HealthFinding("degraded", note) if missing else HealthFinding("ok")


def check_encoder(state: str, *, fallback: str) -> HealthFinding:
    """Check the encoder's process: without it a fallback decides, so degraded but not failed.

    Args:
        state: The state of the forecaster, `ready`, `starting`, `down` or `closed`; `absent` where
            there is no router.
        fallback: The fallback.
    """
    if state == "ready":
        return HealthFinding("ok")
    if state == "absent":
        return HealthFinding("ok", "there is no router yet: the default target answers everything")
    return HealthFinding("degraded", f"the encoder is {state}; the fallback {fallback!r} decides")


def check_forecasts(share: FallbackShare) -> HealthFinding:
    """The check of forecasts: degraded where a fallback makes many of the decisions."""
    return HealthFinding("degraded", f"{share}") if share.is_much else HealthFinding("ok")


def check_versions(*, serving: str, is_behind: bool) -> HealthFinding:
    """Check the versions of the router: degraded while their latest step can't be applied."""
    if not is_behind:
        return HealthFinding("ok")
    note = f"the latest step of the versions can't be applied, so {serving} serves on"
    return HealthFinding("degraded", note)


def check_targets(breakers: Mapping[str, str]) -> HealthFinding:
    """Check the targets' breakers: failed if all are open, degraded if some are."""
    open_targets = [target for target, state in breakers.items() if state == "open"]
    if not breakers:
        return HealthFinding("failed", "there are no targets")
    if open_targets:
        count, names = len(open_targets), ", ".join(open_targets)
        note = f"{count} of {len(breakers)} targets have failed: {names}"
        return HealthFinding("failed" if count == len(breakers) else "degraded", note)
    return HealthFinding("ok")


def check_receipts(*, healthy: bool, lost: int) -> HealthFinding:
    """Check the receipts: at worst degraded, since requests are answered without them."""
    if not healthy:
        return HealthFinding("degraded", "receipts can't be written now; they are queued in memory")
    return HealthFinding("degraded", f"{lost} receipts were lost") if lost else HealthFinding("ok")


def check_shared(*, is_in_step: bool, is_out_of_lease: bool) -> HealthFinding:
    """Check the database that replicas share: failed only if all requests are refused without it.

    Args:
        is_in_step: Whether it can be used.
        is_out_of_lease: Whether a budget that stops requests has no lease left.
    """
    if is_in_step:
        return HealthFinding("ok")
    if is_out_of_lease:
        return HealthFinding("failed", "the shared database is away, and a budget's lease is spent")
    return HealthFinding("degraded", "the shared database is away; leases and shares are used")
