"""The options of the studies of seeds, routing ratio, effort and shift."""

from dataclasses import dataclass
from typing import Annotated, final

from typing_extensions import Doc

from prefill_router.options import AT_LEAST_TWO
from prefill_router_lab.study_options import Resamples, StudyOptions


@final
@dataclass(frozen=True, kw_only=True)
class SeedOptions(StudyOptions):
    """The options of `seed_study`; `seed` is the first of its seeds."""

    count: Annotated[int, AT_LEAST_TWO, Doc("How many seeds, from --seed on.")] = 10


@final
@dataclass(frozen=True, kw_only=True)
class EffortOptions(StudyOptions):
    """The options of `study_efforts`."""

    resamples: Resamples = 1000


@final
@dataclass(frozen=True, kw_only=True)
class RatioOptions(StudyOptions):
    """The options of `routing_ratio`."""

    resamples: Resamples = 1000


@final
@dataclass(frozen=True, kw_only=True)
class ShiftOptions(StudyOptions):
    """The options of `shift_study`."""

    resamples: Resamples = 1000
