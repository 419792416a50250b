"""The options of the study of total cost and latency."""

from dataclasses import dataclass
from typing import Annotated, final

from pydantic import Field
from typing_extensions import Doc

from prefill_router.options import Share
from prefill_router_lab.study_options import Resamples, StudyOptions


@final
@dataclass(frozen=True, kw_only=True)
class EndToEndOptions(StudyOptions):
    """The options of `study_end_to_end`.

    Attributes:
        lam: The settings of lam; by default the paper's two operating points.
    """

    lam: Annotated[
        tuple[Share, ...],
        Field(min_length=1, title="setting"),
        Doc("A setting; repeatable. By default 1 and 0.5."),
    ] = (1.0, 0.5)
    resamples: Resamples = 1000
