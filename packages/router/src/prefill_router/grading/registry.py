"""The graders by name: what each does, and the function that opens it.

Nothing here loads a grader, so that the command's help knows them all at once.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final, final

from prefill_router.errors import ConfigError
from prefill_router.plugins import Registry, suggest_distribution


@final
@dataclass(frozen=True, kw_only=True)
class GraderKind:
    """A grader that tasks can name.

    Attributes:
        summary: What it does, in one line.
        opener: The function that makes it from the `Settings`, or where it is in this package, such
            as `code:open_code`. Empty for a grader that asks the judge.
    """

    summary: str
    opener: str | Callable[..., Any] = ""


_GROUP: Final = "prefill_router.graders"
_OWN: dict[str, GraderKind] = {
    "exact": GraderKind(
        summary="the whole answer, without the white space around it", opener="text:open_exact"
    ),
    "normalised": GraderKind(
        summary="the same without case, punctuation, articles and odd white space",
        opener="text:open_normalised",
    ),
    "mmlu_pro": GraderKind(
        summary="the letter of a choice, found as MMLU-Pro finds it", opener="text:open_letter"
    ),
    "number": GraderKind(summary="the number that the answer ends on", opener="text:open_number"),
    "math": GraderKind(
        summary="equality of LaTeX and of expressions, by math-verify",
        opener="mathematics:open_math",
    ),
    "python": GraderKind(summary="a function of your own", opener="code:open_function"),
    "judge": GraderKind(summary="another language model, by the task's rubric"),
    "hle": GraderKind(summary="another language model, which compares with the right answer"),
    "code": GraderKind(
        summary="programs against tests, in a sandbox, as LiveCodeBench does",
        opener="code:open_code",
    ),
}
GRADERS: Final[Registry[GraderKind]] = Registry(_OWN, _GROUP, expects=GraderKind)
"""Every grader by its name in tasks; other distributions add some."""


def find_grader(name: str) -> GraderKind:
    """The grader of this name.

    Raises:
        ConfigError: No grader has this name.
    """
    if name not in GRADERS:
        home = suggest_distribution(_GROUP, name)
        raise ConfigError(
            f"there is no grader {name!r}; the graders are {', '.join(GRADERS)}{home}"
        )
    return GRADERS[name]
