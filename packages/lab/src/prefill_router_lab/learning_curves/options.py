"""The options of learning curves, and the sizes at which they are fitted."""

from dataclasses import dataclass
from typing import Annotated, final

from typing_extensions import Doc

from prefill_router.errors import ConfigError
from prefill_router.options import AT_LEAST_ONE, AT_LEAST_TWO
from prefill_router_lab.study_options import StudyOptions


@final
@dataclass(frozen=True, order=True)
class Size:
    """How much of the labels is kept.

    Attributes:
        share: The share of the labelled queries that is kept.
        measured: The most outcomes that are kept per query; None for all.
    """

    share: float = 1.0
    measured: int | None = None

    def __post_init__(self) -> None:
        if not 0 < self.share <= 1:
            raise ConfigError(f"a share of the queries is {self.share}; it must be in (0, 1]")
        if self.measured is not None and self.measured < 1:
            raise ConfigError(f"{self.measured} measured targets per query; at least 1 is needed")

    @property
    def words(self) -> str:
        """The number of targets per query, in words."""
        if self.measured is None:
            return "every target"
        return f"{self.measured} target{'s' if self.measured > 1 else ''} each"


FULL = Size()


@final
@dataclass(frozen=True, kw_only=True)
class LearningOptions(StudyOptions):
    """The options of `study_learning`.

    Attributes:
        sizes: How much of the labels is kept; chosen for the data if empty. All labels are always
            included.
        draws: How often each size is drawn and fitted.
        resamples: Bootstrap resamples of test queries and draws.
    """

    sizes: tuple[Size, ...] = ()
    draws: Annotated[int, AT_LEAST_TWO, Doc("How often each size is drawn and fitted.")] = 3
    resamples: Annotated[int, AT_LEAST_ONE, Doc("Bootstrap resamples.")] = 200
