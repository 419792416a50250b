"""Calls a judge for many threads, from one event loop.

Failed calls are retried within a spending limit; after too many failures no more are made.
"""

import asyncio
import threading
from collections.abc import Coroutine
from concurrent.futures import CancelledError
from dataclasses import dataclass
from typing import Any, final

from prefill_router.endpoints import (
    FOR_ANY_PROMPT,
    PaidCall,
    PaidCalls,
    Reply,
    Retries,
    RetryPolicy,
    SpendingLedger,
    Upstream,
    bound,
    estimate_usage,
)
from prefill_router.errors import ConfigError, UpstreamError
from prefill_router.grading.caches import Judgments, judgment_key
from prefill_router.money import dollars, list_price
from prefill_router.targets import Pool, Target

ATTEMPTS = 4
_MOST_IN_A_ROW = 20


@final
@dataclass(frozen=True, kw_only=True)
class JudgeReply:
    """A judge's reply, or the reason why there is none.

    Attributes:
        text: The reply's text; None where there is none.
        failure: The reason why there is none, as a word.
        detail: The error.
    """

    text: str | None = None
    failure: str = ""
    detail: str = ""


@final
class JudgeClient:
    """A client of a judge. Threads call `ask`; the calls are made in one event loop.

    Args:
        pool: The pool with the judge as its only target.
        judgments: Records replies and failures.
        limit: US dollars, earlier judgments included; None for no limit.

    Raises:
        ConfigError: The pool has more than one target, the judge's key isn't set, or there is a
            limit and no price.
    """

    def __init__(self, pool: Pool, judgments: Judgments, *, limit: float | None) -> None:
        pool = pool.at_first()
        self.judge = only_target(pool)
        if limit is not None and not self.judge.has_price:
            raise ConfigError(
                f"--judge-max-cost needs the prices of {self.judge.name!r}; give them in the "
                "judge's pool file"
            )
        self._upstream = Upstream(pool)
        self._judgments = judgments
        self._limit = limit
        self._ledger = SpendingLedger(limit, charged=judgments.charged)
        self._calls = PaidCalls(pool, self._upstream, self._ledger)
        self._retrying = RetryPolicy(ATTEMPTS, patience=1)
        self._in_a_row = 0
        self._failed_for_good = ""
        self._held_back: dict[str, float] = {}
        self._stopping = threading.Event()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="judge", daemon=True)
        self._thread.start()
        self._run_call(self._upstream.__aenter__())

    @property
    def held_back(self) -> float:
        """Most US dollars of one reply to each prompt that the limit stopped."""
        return sum(self._held_back.values())

    def ask(self, prompt: str, sample: int) -> JudgeReply:
        """Ask the judge, and record the reply or the failure.

        Args:
            prompt: The prompt.
            sample: The number of the reply among several to the same prompt, from 0.
        """
        key, retries = judgment_key(self.judge, prompt), Retries(self._retrying)
        failure = JudgeReply(failure="interrupted")
        while not self._stopping.is_set():
            if self._failed_for_good:
                detail = "the judge failed too often and isn't asked any more"
                return JudgeReply(failure=self._failed_for_good, detail=detail)
            call = self._make_call(key, prompt, sample)
            if call is None:
                return failure if self._stopping.is_set() else self._over_limit(key, prompt)
            if isinstance(call.outcome, Reply):
                return JudgeReply(text=call.outcome.text)
            failure = JudgeReply(failure=call.outcome.failure, detail=str(call.outcome))
            try:
                self._stopping.wait(retries.wait(call.outcome))
            except UpstreamError:
                break
        return failure

    def stop(self) -> None:
        """Cancel the calls under way; no more are made."""
        self._stopping.set()
        self._run_call(self._cancel_all())

    def close(self) -> None:
        """Disconnect; no thread may call `ask` any more."""
        self._run_call(self._upstream.__aexit__(None, None, None))
        self._run_call(self._loop.shutdown_default_executor())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def _make_call(self, key: str, prompt: str, sample: int) -> PaidCall | None:
        """Make one call and record its outcome; None where it may not begin."""
        numbers: list[int] = []

        async def begin(most: float) -> None:
            numbers.append(await asyncio.to_thread(self._judgments.begin, most))

        making = self._calls.make(
            self.judge,
            prompt,
            tokens=estimate_usage(prompt, Reply(text="")).input_tokens or 0,
            is_wanted=lambda: not self._stopping.is_set(),
            begin=begin,
        )
        try:
            call: PaidCall | None = self._run_call(making)
        except CancelledError:
            most = bound(self.judge, prompt).dollars or 0.0
            for number in numbers:
                self._keep_failure(number, key, sample, ("interrupted", "cancelled"), most)
            raise
        if call is not None:
            self._keep_call(numbers[0], key, prompt, sample, call)
        return call

    def _keep_call(self, number: int, key: str, prompt: str, sample: int, call: PaidCall) -> None:
        bill, outcome = call.bill, call.outcome
        if isinstance(outcome, UpstreamError):
            failure = (outcome.failure, str(outcome))
            self._keep_failure(number, key, sample, failure, bill.charged)
            self._count_failure(outcome)
            return
        self._judgments.add_reply(
            number,
            key,
            sample,
            self.judge,
            prompt=prompt,
            reply=outcome,
            cost=None if bill.source == "estimate" else bill.cost,
            charged=bill.charged,
        )
        self._in_a_row = 0

    def _keep_failure(
        self, number: int, key: str, sample: int, error: tuple[str, str], charged: float
    ) -> None:
        failure, detail = error
        self._judgments.add_failure(
            number, key, sample, self.judge, failure=failure, detail=detail, charged=charged
        )

    def _over_limit(self, key: str, prompt: str) -> JudgeReply:
        most = bound(self.judge, prompt).dollars or 0.0
        self._held_back[key] = most
        return JudgeReply(
            failure="limit",
            detail=f"a call may cost {dollars(most)}, and {dollars(self._ledger.total)} of the "
            f"limit of {list_price(self._limit or 0)} are spent; raise --judge-max-cost",
        )

    def _count_failure(self, error: UpstreamError) -> None:
        self._in_a_row += 1
        if error.failure in FOR_ANY_PROMPT or self._in_a_row >= _MOST_IN_A_ROW:
            self._failed_for_good = error.failure

    def _run_call(self, call: Coroutine[Any, Any, Any]) -> Any:
        return asyncio.run_coroutine_threadsafe(call, self._loop).result()

    async def _cancel_all(self) -> None:
        others = [t for t in asyncio.all_tasks() if t is not asyncio.current_task()]
        for task in others:
            task.cancel()
        await asyncio.gather(*others, return_exceptions=True)


def only_target(pool: Pool) -> Target:
    """The only target of a judge's pool.

    Raises:
        ConfigError: The pool has more than one target.
    """
    if len(pool) != 1:
        raise ConfigError(f"a judge's pool file has one target; this one has {list(pool.names)}")
    return pool.targets[0]
