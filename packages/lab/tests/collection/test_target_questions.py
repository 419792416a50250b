"""One target is asked chosen questions, within a budget, and pays for nothing twice."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from packages.lab.tests.collection.runs import QUICK, pool_of, tasks
from prefill_router.endpoints import Upstream
from prefill_router.errors import ConfigError
from prefill_router.runs import Task
from prefill_router_lab.collection import TargetQuestions
from prefill_router_minipool.server import ScriptedModel, Server, serve

TASKS = {task.query.id: task for task in tasks(12)}
RIGHT = {f"What is question {i}?": str(i if i % 2 else -1) for i in range(12)}

pytestmark = pytest.mark.slow


def questions(folder: Path, server: Server, limit: float | None = None) -> TargetQuestions:
    pool = pool_of(server, ["small"])
    options = replace(QUICK, limit=limit)
    by_id: dict[str, Task] = TASKS
    return TargetQuestions(folder, pool, by_id, asker=lambda: Upstream(pool), options=options)


def test_more_questions_ask_only_the_new_ones(tmp_path: Path) -> None:
    with serve([ScriptedModel("small", RIGHT)]) as server:
        ask = questions(tmp_path / "run", server)
        first = ask(["q3", "q4"])
        assert first.query_ids == ("q3", "q4")
        np.testing.assert_array_equal(first.correct, [[1], [0]])
        assert ask(["q3", "q4", "q5"]).query_ids == ("q3", "q4", "q5")
        assert ask.summary is not None
        assert ask.summary.calls == 1
        again = questions(tmp_path / "run", server)
        np.testing.assert_array_equal(again(["q5", "q3"]).correct, [[1], [1]])
        assert again.summary is not None
        assert again.summary.calls == 0


def test_the_budget_is_never_exceeded(tmp_path: Path) -> None:
    with serve([ScriptedModel("small", RIGHT)]) as server:
        ask = questions(tmp_path / "run", server, limit=0.001)
        with pytest.raises(ConfigError, match=r"12 the spending limit; .*larger --max-cost"):
            ask(list(TASKS))
        assert ask.summary is not None
        assert ask.summary.spent == 0
