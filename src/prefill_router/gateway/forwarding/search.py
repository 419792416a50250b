"""Target after target, until one begins to answer."""

from collections.abc import Sequence

from prefill_router.gateway.forwarding.call import Call
from prefill_router.gateway.forwarding.client import Client, GoneError
from prefill_router.gateway.forwarding.opening import Opened, open_answer
from prefill_router.gateway.forwarding.track import Track, Ways
from prefill_router.gateway.forwarding.verdicts import RETRIED, FailedError, Refusal
from prefill_router.gateway.outcome import Attempt

_PATIENCE = 2.0  # seconds that a target may ask to wait before another one is asked instead


async def find_answer(
    ways: Ways, call: Call, client: Client, track: Track
) -> Opened | Refusal | None:
    """An answer that has begun; or the refusal of a target that only the client can mend; or none.

    Targets whose breaker is open are left out, unless no other is left.

    Raises:
        GoneError: The client has left.
    """
    order = call.order[:1] if call.stay else call.order
    found: Opened | FailedError | None = None
    asked = 0
    for target in order:
        if asked == ways.failures.targets:
            break
        if not ways.breakers.allow(target):
            track.skip(target)
            continue
        asked += 1
        found = await _ask(ways, call, client, track, target)
        if isinstance(found, Opened) or found.end == "refused":
            break
    if found is None:
        found = await _ask(ways, call, client, track, order[0])
    if isinstance(found, FailedError):
        return found.refusal if _only_client_can_mend(track.attempts) else None
    return found


async def _ask(
    ways: Ways, call: Call, client: Client, track: Track, target: str
) -> Opened | FailedError:
    """Ask one target, and again where that may help."""
    failures, only_limited = ways.failures, True
    for turn in range(failures.retries + 1):
        found = await _try(ways, call, client, track, target)
        if isinstance(found, Opened):
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
    ways: Ways, call: Call, client: Client, track: Track, target: str
) -> Opened | FailedError:
    track.begin(target)
    try:
        opened = await open_answer(call, target, ways.lines[target], client)
    except FailedError as failure:
        if failure.end == "disconnected":
            raise GoneError from None
        # a limit that a retry gets past says nothing about the target
        track.end(failure.end, status=failure.status, silent=failure.end == "rate_limited")
        return failure
    ways.breakers.began(target)
    return opened


def _only_client_can_mend(attempts: Sequence[Attempt]) -> bool:
    ends = {attempt.end for attempt in attempts if attempt.end != "breaker_open"}
    return attempts[-1].end == "refused" or ends == {"context_too_long"}
