"""What the options of all studies share.

A study's options are a frozen dataclass in its package, in a file that loads nothing that the study
computes with: the command line reads them there, and its `--help` answers at once. A field with a
`Doc` beside its type is an option of the command, with that text, its default and its range.
"""

from dataclasses import dataclass
from typing import Annotated

from typing_extensions import Doc

from prefill_router.options import NOT_NEGATIVE, check_options

Seed = Annotated[int, NOT_NEGATIVE]
Resamples = Annotated[int, NOT_NEGATIVE, Doc("Bootstrap resamples; 0 for none.")]


@dataclass(frozen=True, kw_only=True)
class StudyOptions:
    """The options of a study; each study adds its own.

    Raises:
        ConfigError: An option is outside its limits.
    """

    seed: Annotated[Seed, Doc("Seed of everything that is random.")] = 0

    def __post_init__(self) -> None:
        check_options(self)
