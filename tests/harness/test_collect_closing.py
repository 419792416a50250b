"""What a run says when it ends: how the questions stand, which limit would do, and how it exits."""

from __future__ import annotations

from pathlib import Path

from collecting import Canned, pool_of, tasks

from prefill_router.data import Prompt
from prefill_router.errors import UpstreamError
from prefill_router.harness.collecting.collect import collect
from prefill_router.harness.collecting.options import CollectOptions
from prefill_router.harness.collecting.summary import Summary
from prefill_router.upstream import Reply


class Breaking(Canned):
    """Breaks every third answer off, so that it may have been billed in full."""

    def __init__(self) -> None:
        self.asked = 0

    async def ask(self, target: str, prompt: Prompt, /) -> Reply:
        self.asked += 1
        if self.asked % 3 == 0:
            raise UpstreamError("broken", failure="broken_off", retriable=True, billed="perhaps")
        return await super().ask(target, prompt)


def test_the_limit_that_would_do_counts_what_goes_at_risk(tmp_path: Path) -> None:
    pool = pool_of("http://127.0.0.1:1/v1", ["small"], max_tokens=10_000, concurrency=1)
    asker, asked = Breaking(), tasks(300)[40:]

    def collected(limit: float) -> Summary:
        options = CollectOptions(limit=limit, backoff_seconds=0.0)
        return collect(tmp_path / "run", pool, asked, asker=asker, options=options)

    first = collected(0.6)
    enough = first.limit_that_would_do
    assert 0 < first.answered < 40
    assert enough is not None
    risk = first.at_risk / first.answered
    assert enough > 0.6 + 200 * risk  # else all is thought to be free of risk from now on
    assert enough < 0.6 + 400 * risk
    second = collected(enough)
    assert second.not_asked == {}
    assert second.spent + second.at_risk <= enough
