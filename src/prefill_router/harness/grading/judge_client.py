"""Asks a judge from many threads, out of one event loop.

Calls are tried again, stay within a spending limit, and end where every one of them fails.
"""

import asyncio
import random
import threading
from collections.abc import Coroutine
from concurrent.futures import CancelledError, Future
from dataclasses import dataclass
from typing import Any, final

from prefill_router.client import Reply, Upstream
from prefill_router.client.budget import OverLimitError, Reservation, ReservationLedger
from prefill_router.client.call_costs import bound, cost_of, plausible, reported_cost
from prefill_router.errors import ConfigError, UpstreamError
from prefill_router.harness.grading.caches import Judgments, judgment_key
from prefill_router.targets import Pool, Target

ATTEMPTS = 4
_HOPELESS = frozenset({"unauthorised", "unknown_model"})
_MOST_IN_A_ROW = 20
_FIRST_WAIT, _LONGEST_WAIT = 1.0, 60.0


class _NotBegunError(Exception):
    """A call was to begin when all were being broken off."""


@final
@dataclass(frozen=True, kw_only=True)
class JudgeReply:
    """What came of asking.

    Attributes:
        text: The reply's text; None where none came.
        failure: Why none came, in a word.
        detail: The error.
    """

    text: str | None = None
    failure: str = ""
    detail: str = ""


@final
class JudgeClient:
    """The line to a judge. Threads call `ask`; calls go out from one event loop.

    Args:
        pool: The judge alone.
        judgments: Where replies and failures are kept.
        limit: US dollars, with what earlier judgments cost; None for no limit.

    Raises:
        ConfigError: The pool has not one target, its key isn't set, or there is a limit and no
            price.
    """

    def __init__(self, pool: Pool, judgments: Judgments, *, limit: float | None) -> None:
        self.judge = only_target(pool)
        if limit is not None and not self.judge.has_price:
            raise ConfigError(
                f"--judge-max-cost needs to know what {self.judge.name!r} costs; give its prices "
                "in the judge's pool file"
            )
        self._upstream = Upstream(pool)
        self._judgments = judgments
        self._ledger = ReservationLedger(limit=limit, spent=judgments.charged)
        self._random = random.Random(0)
        self._in_a_row = 0
        self._hopeless = ""
        self._held_back: dict[str, float] = {}
        self._stopping = threading.Event()
        self._beginning = threading.Lock()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="judge", daemon=True)
        self._thread.start()
        self._wait(self._upstream.__aenter__())

    @property
    def held_back(self) -> float:
        """US dollars that one reply to each prompt can cost which the limit held back."""
        return sum(self._held_back.values())

    def ask(self, prompt: str, sample: int) -> JudgeReply:
        """Ask, and keep what comes of it.

        Args:
            prompt: What the judge is asked.
            sample: Which of several replies to the same prompt this is, from 0.
        """
        key, asked = judgment_key(self.judge, prompt), JudgeReply(failure="interrupted")
        for attempt in range(ATTEMPTS):
            if self._stopping.is_set():
                return JudgeReply(failure="interrupted")
            if self._hopeless:
                return JudgeReply(
                    failure=self._hopeless, detail="it has failed before; not asked again"
                )
            again, asked = self._attempt(key, prompt, sample)
            if again is None or attempt + 1 == ATTEMPTS:
                break
            if self._stopping.wait(again or self._backoff(attempt)):
                break
        return asked

    def stop(self) -> None:
        """Break off what is under way; nothing more is asked."""
        with self._beginning:
            self._stopping.set()
        self._wait(self._cancel_all())

    def close(self) -> None:
        """Disconnect; no thread may ask any longer."""
        self._wait(self._upstream.__aexit__(None, None, None))
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def _attempt(self, key: str, prompt: str, sample: int) -> tuple[float | None, JudgeReply]:
        """One call; and after how many seconds to try again: 0 as usual, None not at all."""
        most = bound(self.judge, prompt).dollars or 0.0
        try:
            with self._ledger.reserving(most) as reservation:
                return None, self._call(key, prompt, sample, reservation)
        except OverLimitError as error:
            self._held_back[key] = most
            return None, JudgeReply(failure="limit", detail=str(error))
        except UpstreamError as error:
            self._count(error)
            again = (error.retry_after or 0.0) if error.retriable else None
            return again, JudgeReply(failure=error.failure, detail=str(error))

    def _call(self, key: str, prompt: str, sample: int, reservation: Reservation) -> JudgeReply:
        call = self._judgments.begin(reservation.dollars)
        try:
            reply = self._begin(prompt).result()
        except UpstreamError as error:
            if error.billed == "no":
                reservation.charged = 0.0
            self._keep_failure(call, key, sample, error.failure, str(error), reservation)
            raise
        except _NotBegunError:
            reservation.charged = 0.0
            self._keep_failure(call, key, sample, "interrupted", "not begun", reservation)
            raise
        except CancelledError:
            self._keep_failure(call, key, sample, "interrupted", "broken off", reservation)
            raise
        cost = self._cost(reply, prompt)
        reservation.charged = reservation.dollars if cost is None else cost
        self._judgments.add_reply(
            call,
            key,
            sample,
            self.judge,
            prompt=prompt,
            reply=reply,
            cost=cost,
            charged=reservation.charged,
        )
        self._in_a_row = 0
        return JudgeReply(text=reply.text)

    def _keep_failure(
        self,
        call: int,
        key: str,
        sample: int,
        failure: str,
        detail: str,
        reservation: Reservation,
    ) -> None:
        charged = reservation.charged
        self._judgments.add_failure(
            call, key, sample, self.judge, failure=failure, detail=detail, charged=charged
        )

    def _cost(self, reply: Reply, prompt: str) -> float | None:
        """What a reply cost; None where its usage is lacking or can't be true."""
        most = bound(self.judge, prompt)
        reported = reported_cost(reply.usage)
        if reported is not None and (most.dollars is None or reported <= most.dollars):
            return reported
        return None if plausible(reply.usage, most) else cost_of(reply.usage, self.judge)

    def _count(self, error: UpstreamError) -> None:
        self._in_a_row += 1
        if error.failure in _HOPELESS or self._in_a_row >= _MOST_IN_A_ROW:
            self._hopeless = error.failure

    def _backoff(self, attempt: int) -> float:
        """Seconds, up to twice as many each time; drawn, so that callers don't come together."""
        return self._random.uniform(0, min(_FIRST_WAIT * 2**attempt, _LONGEST_WAIT))

    def _begin(self, prompt: str) -> Future[Any]:
        """A call under way; none begins once `stop` has broken off the others."""
        with self._beginning:
            if self._stopping.is_set():
                raise _NotBegunError
            ask = self._upstream.ask(self.judge.name, prompt)
            return asyncio.run_coroutine_threadsafe(ask, self._loop)

    def _wait(self, call: Coroutine[Any, Any, Any]) -> Any:
        future: Future[Any] = asyncio.run_coroutine_threadsafe(call, self._loop)
        return future.result()

    async def _cancel_all(self) -> None:
        others = [t for t in asyncio.all_tasks() if t is not asyncio.current_task()]
        for task in others:
            task.cancel()
        await asyncio.gather(*others, return_exceptions=True)


def only_target(pool: Pool) -> Target:
    """The judge.

    Raises:
        ConfigError: The pool has more than one target.
    """
    if len(pool) != 1:
        raise ConfigError(f"a judge's pool file has one target; this one has {list(pool.names)}")
    return pool.targets[0]
