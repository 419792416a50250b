"""What there is to ask, and how: the pool and the tasks now, less what the run holds.

The prompts of a run's tasks are read some ahead, since they are asked in order.
"""

import math
import random
from collections import OrderedDict
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, final

from prefill_router.data import Prompt
from prefill_router.errors import ConfigError
from prefill_router.harness.collection.calls import Question
from prefill_router.harness.run import Retry, Run, is_finished
from prefill_router.targets import Pool


@final
@dataclass(frozen=True, kw_only=True)
class CollectOptions:
    """How a run is collected.

    Attributes:
        limit: US dollars that the whole run may cost, what was spent before included; None for no
            limit.
        attempts: Calls for one question, at most.
        retry: Which missing answers of earlier times are asked for again.
        assume_free: Whether targets without prices cost nothing, where there is a limit.
        settled: Whether what was at risk up to now counts no more, since the bill is known.
        assume_output_tokens: Output tokens of an answer, where none is recorded yet; for estimates.
        backoff_seconds: The longest first wait before a call is made again.
        patience_seconds: A provider that asks to wait longer isn't asked any more this time.
        seed: Of the waits.
    """

    limit: float | None = None
    attempts: int = 5
    retry: Retry = "failed"
    assume_free: bool = False
    settled: bool = False
    assume_output_tokens: int = 1000
    backoff_seconds: float = 1.0
    patience_seconds: float = 600.0
    seed: int = 0

    def __post_init__(self) -> None:
        if self.limit is not None and not (math.isfinite(self.limit) and self.limit >= 0):
            raise ConfigError(f"the limit is {self.limit} dollars; it must be a number, 0 or above")
        if self.attempts < 1:
            raise ConfigError(f"{self.attempts} attempts ask nothing; at least 1 is needed")
        if self.assume_output_tokens < 0:
            raise ConfigError(
                f"answers of {self.assume_output_tokens} tokens; the number can't be negative"
            )
        for what in ("backoff_seconds", "patience_seconds"):
            if not 0 <= getattr(self, what) < math.inf:
                raise ConfigError(f"{what} is {getattr(self, what)}; it must be 0 or above")

    def chance(self) -> random.Random:
        """Where waits are drawn from."""
        return random.Random(self.seed)

    def to_dict(self) -> dict[str, Any]:
        """Plain values."""
        return dict(vars(self))


@final
@dataclass(frozen=True)
class CollectionPlan:
    """The questions of one command.

    Attributes:
        ids: The tasks, in order.
        pool: The targets that are asked.
        finished: The ids that need no asking, of each target.
        missing: The other recorded ones, of each target, and why they are missing.
    """

    ids: Sequence[str]
    pool: Pool
    finished: Mapping[str, Collection[str]] = field(repr=False)
    missing: Mapping[str, Mapping[str, str]] = field(repr=False)

    def says(self, question: Question, reason: str) -> bool:
        """Whether the run says already that a question is missing for this reason."""
        return self.missing[question.target].get(question.query_id) == reason

    def targets_of(self, query_id: str) -> list[str]:
        """The targets that are to be asked this task."""
        return [name for name in self.pool.names if query_id not in self.finished[name]]

    def lanes(self) -> dict[str, list[str]]:
        """The targets of each provider, by its name."""
        lanes: dict[str, list[str]] = {}
        for name in self.pool.names:
            lanes.setdefault(self.pool.provider_of(name).name, []).append(name)
        return lanes

    def questions(self, targets: Sequence[str]) -> Iterator[Question]:
        """The questions to these targets, task by task."""
        for query_id in self.ids:
            for name in targets:
                if query_id not in self.finished[name]:
                    yield Question(name, query_id)

    def count(self, targets: Sequence[str]) -> int:
        """How many questions these targets are to be asked."""
        return sum(len(self.ids) - len(self.finished[name]) for name in targets)


def make_plan(ids: Sequence[str], pool: Pool, run: Run | None, *, retry: Retry) -> CollectionPlan:
    """The plan of asking these tasks of these targets; without a run nothing is finished."""
    finished: dict[str, set[str]] = {name: set() for name in pool.names}
    missing: dict[str, dict[str, str]] = {name: {} for name in pool.names}
    same = {query_id: query_id for query_id in ids}  # one text for all targets
    reasons: dict[str, str] = {}
    for target, query_id, reason in () if run is None else run.outcomes():
        if target not in finished or query_id not in same:
            continue
        if is_finished(reason, retry):
            finished[target].add(same[query_id])
        elif reason is not None:
            missing[target][same[query_id]] = reasons.setdefault(reason, reason)
    return CollectionPlan(ids, pool, finished, missing)


def joined_pool(run: Run, pool: Pool) -> Pool:
    """The pool of a run that goes on with this pool: its targets first, then those of before.

    Raises:
        ConfigError: A target that has answered is asked with other parameters than before. One
            that only failed may be mended.
    """
    asked = run.asked_targets()
    for name in set(pool.names) & set(run.pool.names) & run.asked_targets(answered=True):
        now, before = _identity(pool, name), _identity(run.pool, name)
        changed = [what for what in now if now[what] != before[what]]
        if changed:
            raise ConfigError(
                f"target {name!r} has answered in {run.folder} with another {changed[0]}: "
                f"{before[changed[0]]!r}, now {now[changed[0]]!r}; give it another name, or "
                "collect into another folder"
            )
    rest = [t for t in run.pool if t.name not in pool.names and t.name in asked]
    known = {provider.name for provider in pool.providers}
    serving = {target.provider for target in rest}
    others = [p for p in run.pool.providers if p.name in serving - known]
    return replace(pool, targets=(*pool.targets, *rest), providers=(*pool.providers, *others))


def check_askable(pool: Pool, *, limit: float | None, assume_free: bool) -> None:
    """Check that every target has an endpoint and, where there is a limit, prices.

    Raises:
        ConfigError: One lacks them.
    """
    for target in pool:
        pool.provider_of(target.name)
        if limit is not None and not target.has_price and not assume_free:
            raise ConfigError(
                f"target {target.name!r} has no prices, so that a limit can't hold; give it "
                "prices, or say --assume-free where it costs nothing"
            )


def _identity(pool: Pool, name: str) -> dict[str, object]:
    target = pool[name]
    return {
        "model": target.model or name,
        "dialect": pool.provider_of(name).dialect,
        "request": target.request.to_dict(),
    }


_READ_AHEAD = 128
_KEPT = 32
"""Parts; providers may be at different places."""


@final
class Prompts:
    """The prompts of these tasks.

    Args:
        run: Where they are.
        ids: The tasks, in the order in which they are asked.
    """

    def __init__(self, run: Run, ids: Sequence[str]) -> None:
        self._run, self._ids = run, ids
        self._place = {query_id: place for place, query_id in enumerate(ids)}
        self._parts: OrderedDict[int, list[Prompt]] = OrderedDict()

    def __getitem__(self, query_id: str) -> Prompt:
        number, place = divmod(self._place[query_id], _READ_AHEAD)
        if number not in self._parts:
            wanted = self._ids[number * _READ_AHEAD : (number + 1) * _READ_AHEAD]
            self._parts[number] = [query.prompt for query in self._run.queries(wanted)]
            if len(self._parts) > _KEPT:
                self._parts.popitem(last=False)
        self._parts.move_to_end(number)
        return self._parts[number][place]
