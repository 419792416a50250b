"""A task: a query, and how its answers are graded."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, final

from prefill_router.brief import brief
from prefill_router.data import Query


@brief
@final
@dataclass(frozen=True, kw_only=True)
class Task:
    """One question of a benchmark.

    Attributes:
        query: What is asked, as the targets get it.
        grader: The name of the grader of its answers, such as `exact`, `mmlu_pro` or `judge`.
        answer: The right answers, of which one will do; empty where the grader needs none.
        options: What else the grader needs, such as tests or a rubric; JSON values.
    """

    query: Query
    grader: str
    answer: tuple[str, ...] = ()
    options: Mapping[str, Any] = field(default_factory=dict, hash=False)
