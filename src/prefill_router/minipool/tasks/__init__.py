"""Tasks for tiny language models: questions with one right answer, made by a seeded generator."""

from prefill_router.minipool.tasks.base import LEVELS, Family, MiniTask
from prefill_router.minipool.tasks.making import FAMILIES, draw_task, is_held_out, make_tasks

__all__ = ["FAMILIES", "LEVELS", "Family", "MiniTask", "draw_task", "is_held_out", "make_tasks"]
