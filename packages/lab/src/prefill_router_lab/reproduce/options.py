"""The options of a reproduction."""

from dataclasses import dataclass
from typing import Annotated, Any, final

from typing_extensions import Doc

from prefill_router.errors import ConfigError
from prefill_router.options import AT_LEAST_ONE, NOT_NEGATIVE, Count
from prefill_router_lab.study_options import Seed, StudyOptions

QWEN_PRICE = 0.1625
"""US dollars per million input tokens of the paper's encoder, Qwen3.5-35B-A3B (its appendix I)."""


@final
@dataclass(frozen=True, kw_only=True)
class ReproduceOptions(StudyOptions):
    """The extent of a reproduction.

    Attributes:
        seeds: Number of training seeds of the seed study; `seed_count` is the one in use.
        resamples: Bootstrap resamples; `resample_count` is the number in use.
        quick: Whether it is a rehearsal, which trains every network for a few epochs only.
        dim: PCA components of the probes in the sweeps and the ablation.
    """

    seeds: Annotated[
        int | None,
        AT_LEAST_ONE,
        Doc("Seeds of the seed study; by default 5 (the paper has 10)."),
    ] = None
    resamples: Annotated[
        int | None,
        NOT_NEGATIVE,
        Doc("Bootstrap resamples; by default 1000, with --quick 100."),
    ] = None
    seed: Annotated[Seed, Doc("Seed of the split, the training and the resampling.")] = 0
    quick: Annotated[bool, Doc("A rehearsal with little training; its numbers mean little.")] = (
        False
    )
    dim: Count = 100

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.seed_count < 2:
            raise ConfigError(f"{self.seeds} seeds; a spread needs at least 2, the paper has 10")

    @property
    def seed_count(self) -> int:
        """The number of training seeds."""
        return self.seeds or (2 if self.quick else 5)

    @property
    def resample_count(self) -> int:
        """The number of bootstrap resamples."""
        if self.resamples is not None:
            return self.resamples
        return 100 if self.quick else 1000

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON."""
        return {
            "seed": self.seed,
            "seeds": self.seed_count,
            "resamples": self.resample_count,
            "dim": self.dim,
            "quick": self.quick,
        }
