"""Language-model signals of the prompt: its log-probability, perplexity and entropy.

The perplexity is used as its logarithm, since a single outlier would dominate otherwise. This
logarithm is minus the mean log-probability, so two of the three columns carry the same information.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, ClassVar, final

import numpy as np
from jaxtyping import Float32
from numpy.typing import NDArray
from pydantic import Field

from prefill_router.activations import Activations, Provenance
from prefill_router.data import RoutingDataset
from prefill_router.encoders import OWN, EncoderName
from prefill_router.errors import ConfigError
from prefill_router.features.base import (
    Columns,
    EncoderStates,
    FamilyConfig,
    FamilyEntry,
    Need,
    PromptStates,
)
from prefill_router.features.single_site import (
    SingleSite,
    SingleSiteFamily,
    States,
    Vectors,
    store_of,
)
from prefill_router.progress import Progress
from prefill_router.reduction import standard_scale

_COLUMNS = 3
_PERPLEXITY = 1


@final
@dataclass(frozen=True, eq=False)
class Signals(SingleSiteFamily):
    """The signals of a language model, standardised. Made by `SignalsConfig.fit`.

    Attributes:
        where: The site whose states are the signals.
        mean: The train rows' mean.
        scale: Their standard deviation; 1 for a constant column.
    """

    kind: ClassVar[str] = "signals"

    mean: Float32[NDArray[np.float32], "3"]
    scale: Annotated[Float32[NDArray[np.float32], "3"], Field(gt=0)]

    @property
    def width(self) -> int:
        """The number of columns."""
        return _COLUMNS

    def read(self, reading: PromptStates) -> Columns:
        """The columns of these queries."""
        result = np.empty((len(reading), _COLUMNS), dtype=np.float32)
        for rows, states in self.where.read(reading):
            result[rows] = (_vectors(states) - self.mean) / self.scale
        return result

    def verify(self) -> None:
        """Check that the states are signals."""
        _check(self.where.source.provenance)


@final
@dataclass(frozen=True, kw_only=True)
class SignalsConfig(FamilyConfig):
    """Options of the signals.

    Attributes:
        encoder: `signals:` and a causal language model, as a hub id or a folder.
    """

    encoder: str = "signals:gpt2"

    def __post_init__(self) -> None:
        if EncoderName.parse(self.encoder).scheme != "signals":
            raise ConfigError(
                f"the encoder of signals is {self.encoder!r}; name a causal language model, such "
                "as signals:gpt2"
            )

    @property
    def needs(self) -> tuple[Need, ...]:
        """The signals of the language model."""
        return (Need(self.encoder, (OWN,)),)

    def fit(
        self,
        train: RoutingDataset,
        states: Sequence[Activations],
        *,
        seed: int = 0,
        progress: Progress | None = None,
    ) -> Signals:
        """Compute the moments of the train rows; labels aren't used."""
        del seed, progress
        store = store_of(states, self.encoder, OWN)
        _check(store.provenance)
        where = SingleSite(EncoderStates.of(store), OWN)
        moments = where.moments(store, train.prompt_keys, _vectors)
        scale, _ = standard_scale(moments)
        return Signals(where, moments.mean.astype(np.float32), scale.astype(np.float32))


def _check(provenance: Provenance) -> None:
    if provenance.hidden_size != _COLUMNS:
        raise ConfigError(
            f"the states of {provenance.encoder!r} are {provenance.hidden_size} wide; signals are "
            f"{_COLUMNS} wide"
        )


def _vectors(states: States) -> Vectors:
    vectors = states.astype(np.float64)
    vectors[:, _PERPLEXITY] = np.log(
        np.maximum(vectors[:, _PERPLEXITY], 1.0)
    )  # a perplexity is at least 1
    return vectors


ENTRY = FamilyEntry(SignalsConfig, Signals)
