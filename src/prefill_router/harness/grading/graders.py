"""The graders of one run, each opened when it is first needed; those that ask a judge share it."""

from collections.abc import Mapping, Sequence, Set
from pathlib import Path
from typing import final

from prefill_router.errors import ConfigError, PrefillRouterError
from prefill_router.harness.grading.base import Grader, Settings
from prefill_router.harness.grading.caches import JudgeBill, Judgments
from prefill_router.harness.grading.judge import JUDGES, JudgeGrader, Kind
from prefill_router.harness.grading.judge_client import JudgeClient, only_target
from prefill_router.harness.grading.registry import grader_named
from prefill_router.lazy_imports import load
from prefill_router.targets import Pool


@final
class Graders:
    """The graders of one run, each opened when it is first needed.

    Args:
        settings: How the run is to be graded.
        folder: The run's folder.
    """

    def __init__(self, settings: Settings, folder: Path) -> None:
        self.settings = settings
        self._folder = folder
        self._open: dict[str, Grader] = {}
        self._judge: tuple[JudgeClient, Judgments] | None = None

    def __getitem__(self, name: str) -> Grader:
        """The grader of this name.

        Raises:
            ConfigError: There is none, or it needs something that wasn't given or isn't installed.
            SandboxError: It needs the sandbox, and there is none.
        """
        if name not in self._open:
            self._open[name] = self._opened(name)
        return self._open[name]

    def open(self, names: Set[str]) -> None:
        """Open these graders.

        Raises:
            ConfigError: As for a single grader; one error names all of them that need a judge.
            SandboxError: One needs the sandbox, and there is none.
        """
        judges = [name for name in JUDGES if name in names]
        if judges:
            self._judge_pool(judges)
        for name in sorted(names):
            self[name]

    @property
    def opened(self) -> Mapping[str, Grader]:
        """The graders that are open, by name."""
        return self._open

    @property
    def bill(self) -> JudgeBill | None:
        """What judging the run has cost so far; None where no judge was needed."""
        if self._judge is None:
            return None
        client, judgments = self._judge
        return judgments.bill(held_back=client.held_back * self.settings.judge_samples)

    def _opened(self, name: str) -> Grader:
        kind = grader_named(name)
        for judge in JUDGES:
            if name == judge:
                return self._judge_grader(judge)
        grader: Grader = load("prefill_router.harness.grading", kind.opener)(self.settings)
        return grader

    def _judge_grader(self, kind: Kind) -> Grader:
        """A grader that asks the judge; all such graders share one client."""
        pool = self._judge_pool([kind])
        if self._judge is None:
            judgments = Judgments(self._folder)
            try:
                client = JudgeClient(pool, judgments, limit=self.settings.judge_limit)
            except PrefillRouterError:
                judgments.close()
                raise
            self._judge = (client, judgments)
        return JudgeGrader(
            kind,
            *self._judge,
            soft=self.settings.soft,
            samples=self.settings.judge_samples,
            again=self.settings.judge_again,
            at_once=pool.provider_of(only_target(pool).name).concurrency,
        )

    def _judge_pool(self, kinds: Sequence[str]) -> Pool:
        """The judge's pool; an error names the graders that need it."""
        pool = self.settings.judge
        if pool is None:
            names = " and ".join(kinds)
            who = f"grader {names} needs" if len(kinds) == 1 else f"graders {names} need"
            skips = " ".join(f"--skip {kind}" for kind in kinds)
            raise ConfigError(
                f"the {who} a judge: give --judge with a pool file of one target, or leave these "
                f"answers ungraded with {skips}"
            )
        return pool

    def stop(self) -> None:
        """Stop every grader; an answer that is being graded may fail."""
        for grader in self._open.values():
            grader.close()
        if self._judge is not None:
            self._judge[0].stop()

    def close(self) -> None:
        """Close what the graders share, after `stop` and when no thread uses them any more."""
        if self._judge is not None:
            client, judgments = self._judge
            client.close()
            judgments.close()
