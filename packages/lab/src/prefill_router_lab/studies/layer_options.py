"""The options of the studies of layers and dimensions."""

from dataclasses import dataclass
from typing import Annotated, final

from pydantic import Field
from typing_extensions import Doc

from prefill_router.activations import DEFAULT_POOLINGS
from prefill_router.layers import GRID_DIMS
from prefill_router.options import AT_LEAST_ONE, Count
from prefill_router_lab.depth import AllLayers, Poolings
from prefill_router_lab.study_options import StudyOptions


@final
@dataclass(frozen=True, kw_only=True)
class AblationOptions(StudyOptions):
    """The options of `ablation_study`.

    Attributes:
        poolings: The poolings of the candidate sites; the last token alone, as in the paper.
        all_layers: Whether layers below ceil(L/2) are candidates too.
    """

    dim: Annotated[int, AT_LEAST_ONE, Doc("PCA components of the probes.")] = 100
    poolings: Poolings = ("last",)
    all_layers: AllLayers = False


@final
@dataclass(frozen=True, kw_only=True)
class DimensionOptions(StudyOptions):
    """The options of `dimension_study`.

    Attributes:
        poolings: The poolings to probe, each alone, and all together where there are several.
        all_layers: Whether layers below ceil(L/2) are candidates too.
    """

    dims: Annotated[
        tuple[Count, ...],
        Field(min_length=1, title="dimension"),
        Doc("PCA components, separated by commas."),
    ] = GRID_DIMS
    poolings: Poolings = DEFAULT_POOLINGS
    all_layers: AllLayers = False
