"""Target after target, until one begins to answer; and what clients are told where none does.

What was tried for a call is kept, and told to the circuit breakers. Where there is no answer, or no
more of one, the client is told so, never in a target's words.
"""

import asyncio
import json
import math
import random
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import final

from prefill_router.gateway.errors import RefusalError
from prefill_router.gateway.proxy.attempt import (
    HARMLESS,
    LATE,
    RETRIED,
    AttemptFailedError,
    OpenResponse,
    TargetRefusal,
    open_answer,
)
from prefill_router.gateway.proxy.call import (
    ClientConnection,
    ClientGoneError,
    ForwardRequest,
    Header,
)
from prefill_router.gateway.proxy.circuit_breakers import Breakers
from prefill_router.gateway.proxy.provider_endpoints import ProviderEndpoint
from prefill_router.gateway.records import AttemptEnd, TargetAttempt
from prefill_router.gateway.settings import FailureSettings
from prefill_router.targets import Endpoint


@final
@dataclass(frozen=True, kw_only=True)
class ForwardContext:
    """What all calls share.

    Attributes:
        lines: The way to each target, by its name.
        failures: What is done when one fails.
        breakers: Of the targets.
        passing: Which of a target's reply headers go to the client.
        under_way: How many calls of each target are.
        chance: Spreads retries.
    """

    lines: Mapping[str, ProviderEndpoint]
    failures: FailureSettings
    breakers: Breakers
    passing: Callable[[list[Header]], list[Header]]
    under_way: Counter[str]
    chance: random.Random


@final
class CallAttempts:
    """The attempts of one call, in order.

    Args:
        ways: Whose breakers and counts these are.

    Attributes:
        attempts: Those that have ended.
        wait: Seconds after which a target wants to be asked again, the least that was said.
    """

    def __init__(self, ways: ForwardContext) -> None:
        self._ways = ways
        self._clock = asyncio.get_running_loop().time
        self._target: str | None = None
        self._began = 0.0
        self.attempts: list[TargetAttempt] = []
        self.wait: float | None = None

    @property
    def target(self) -> str | None:
        """Who is being asked, or answers."""
        return self._target

    @property
    def last_asked(self) -> str | None:
        """Who was asked last."""
        asked = (a.target for a in reversed(self.attempts) if a.end != "breaker_open")
        return next(asked, None)

    def skip(self, target: str) -> None:
        """A target isn't asked, since its breaker is open."""
        self.attempts.append(
            TargetAttempt(target=target, end="breaker_open", status=None, seconds=0.0)
        )

    def begin(self, target: str) -> None:
        """A target is asked."""
        self._target, self._began = target, self._clock()
        self._ways.under_way[target] += 1

    def end(self, end: AttemptEnd, *, status: int | None, silent: bool = False) -> None:
        """The attempt that is under way, if one is, has ended.

        Args:
            end: How.
            status: Of the target's reply.
            silent: Whether its breaker isn't to know.
        """
        target, self._target = self._target, None
        if target is None:
            return
        self._ways.under_way[target] -= 1
        seconds = self._clock() - self._began
        self.attempts.append(TargetAttempt(target=target, end=end, status=status, seconds=seconds))
        if not silent:
            self._tell(target, end)

    def _tell(self, target: str, end: AttemptEnd) -> None:
        if end == "answered" or end in HARMLESS:
            self._ways.breakers.succeeded(target)
        elif end == "disconnected":
            self._ways.breakers.released(target)
        else:
            self._ways.breakers.failed(target)


_PATIENCE = 2.0  # seconds that a target may ask to wait before another one is asked instead


async def find_answer(
    ways: ForwardContext, call: ForwardRequest, client: ClientConnection, track: CallAttempts
) -> OpenResponse | TargetRefusal | None:
    """An answer that has begun; or the refusal of a target that only the client can mend; or none.

    Targets whose breaker is open are left out, unless no other is left.

    Raises:
        ClientGoneError: The client has left.
    """
    order = call.order[:1] if call.stay else call.order
    found: OpenResponse | AttemptFailedError | None = None
    asked = 0
    for target in order:
        if asked == ways.failures.targets:
            break
        if not ways.breakers.allow(target):
            track.skip(target)
            continue
        asked += 1
        found = await _ask(ways, call, client, track, target)
        if isinstance(found, OpenResponse) or found.end == "refused":
            break
    if found is None:
        found = await _ask(ways, call, client, track, order[0])
    if isinstance(found, AttemptFailedError):
        return found.refusal if _only_client_can_mend(track.attempts) else None
    return found


async def _ask(
    ways: ForwardContext,
    call: ForwardRequest,
    client: ClientConnection,
    track: CallAttempts,
    target: str,
) -> OpenResponse | AttemptFailedError:
    """Ask one target, and again where that may help."""
    failures, only_limited = ways.failures, True
    for turn in range(failures.retries + 1):
        found = await _try(ways, call, client, track, target)
        if isinstance(found, OpenResponse):
            return found
        pause = failures.backoff_seconds * 2**turn * ways.chance.uniform(0.5, 1.0)
        is_last = turn == failures.retries or found.end not in RETRIED
        if found.wait is not None:
            track.wait = found.wait if track.wait is None else min(track.wait, found.wait)
            is_last |= found.wait > _PATIENCE
            pause = max(pause, found.wait)
        only_limited &= found.end == "rate_limited"
        if only_limited and is_last:
            ways.breakers.failed(target)
        if is_last or ways.breakers.state(target) == "open":
            break
        await client.wait(pause)
    return found


async def _try(
    ways: ForwardContext,
    call: ForwardRequest,
    client: ClientConnection,
    track: CallAttempts,
    target: str,
) -> OpenResponse | AttemptFailedError:
    track.begin(target)
    try:
        opened = await open_answer(call, target, ways.lines[target], client)
    except AttemptFailedError as failure:
        if failure.end == "disconnected":
            raise ClientGoneError from None
        # a limit that a retry gets past says nothing about the target
        track.end(failure.end, status=failure.status, silent=failure.end == "rate_limited")
        return failure
    ways.breakers.began(target)
    return opened


def _only_client_can_mend(attempts: Sequence[TargetAttempt]) -> bool:
    ends = {attempt.end for attempt in attempts if attempt.end != "breaker_open"}
    return attempts[-1].end == "refused" or ends == {"context_too_long"}


_CODE = "stream_cut"
_NO_RETRY = {"x-should-retry": "false"}
"""What keeps SDKs from asking again at once: the gateway has done so already."""
_WHY: dict[AttemptEnd, str] = {
    "silence": "the target sent nothing for too long",
    "answer_timeout": "the target took too long",
    "malformed": "the target sent what can't be read",
    "disconnected": "the gateway is being stopped",
}


def no_answer_error(attempts: Sequence[TargetAttempt], *, wait: float | None) -> RefusalError:
    """The reply where no target answered.

    Args:
        attempts: What was tried.
        wait: Seconds after which to ask again, as far as targets said.
    """
    ends = {attempt.end for attempt in attempts if attempt.end != "breaker_open"}
    if ends == {"unknown_call"}:
        asked = ", ".join(dict.fromkeys(attempt.target for attempt in attempts))
        return RefusalError(
            f"this call isn't one that {asked} can answer; name a target that can as the model",
            status=404,
            code="unknown_call",
        )
    tried = ", ".join(f"{attempt.target}: {attempt.end}" for attempt in attempts)
    message = f"no target answered ({tried}); ask again later"
    if ends == {"rate_limited"}:
        return RefusalError(
            message,
            status=429,
            kind="rate_limit_error",
            code="no_target_answered",
            headers={"retry-after": str(max(1, math.ceil(wait or 0)))},
        )
    status = 504 if ends and ends <= LATE else 502
    return RefusalError(
        message,
        status=status,
        kind="upstream_error",
        code="no_target_answered",
        headers=_NO_RETRY,
    )


def cut_event(endpoint: Endpoint, end: AttemptEnd, *, number: int) -> bytes:
    """The event that ends a stream which broke off.

    Args:
        endpoint: Whose shape it has.
        end: Why it ends.
        number: Its `sequence_number`, in streams of Responses.
    """
    why = _WHY.get(end, "the target broke off")
    message = f"the answer ends here, unfinished: {why}"
    if endpoint == "responses":
        value = {
            "type": "error",
            "code": _CODE,
            "message": message,
            "param": None,
            "sequence_number": number,
        }
        return _event(value, name=b"event: error\n")
    error = RefusalError(message, status=502, kind="upstream_error", code=_CODE)
    if endpoint == "messages":
        return _event(error.body(anthropic=True), name=b"event: error\n")
    return _event(error.body(), name=b"")


def _event(value: object, *, name: bytes) -> bytes:
    """Behind an empty line, which ends the event that was under way, if there was one."""
    return b"\n" + name + b"data: " + json.dumps(value).encode() + b"\n\n"
