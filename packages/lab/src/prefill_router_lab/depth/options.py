"""The options of depth profiles and of the encoder sweep."""

from dataclasses import dataclass
from typing import Annotated, final

from pydantic import Field
from typing_extensions import Doc

from prefill_router.activations import DEFAULT_POOLINGS, Pooling
from prefill_router.options import AT_LEAST_ONE
from prefill_router_lab.study_options import Seed, StudyOptions

Poolings = Annotated[
    tuple[Pooling, ...],
    Field(min_length=1, title="pooling"),
    Doc("last, mean, rest (the mean without the first token), or several: last,mean."),
]
AllLayers = Annotated[bool, Doc("Layers below the middle too, if stored.")]
FoldSeed = Annotated[Seed, Doc("Seed of the split and of the folds.")]


@final
@dataclass(frozen=True, kw_only=True)
class DepthOptions(StudyOptions):
    """The options of `depth_profile`.

    Attributes:
        poolings: The poolings of the sites that are read.
        all_layers: Whether layers below ceil(L/2) are read too.
    """

    seed: FoldSeed = 0
    poolings: Poolings = DEFAULT_POOLINGS
    all_layers: AllLayers = False
    dim: Annotated[int, AT_LEAST_ONE, Doc("PCA components for J and the probes.")] = 100


@final
@dataclass(frozen=True, kw_only=True)
class SweepOptions(StudyOptions):
    """The options of `sweep`.

    Attributes:
        poolings: The poolings of the candidate sites; the last token alone, as in the paper.
    """

    seed: FoldSeed = 0
    poolings: Poolings = ("last",)
    dim: Annotated[int, AT_LEAST_ONE, Doc("PCA components.")] = 100
