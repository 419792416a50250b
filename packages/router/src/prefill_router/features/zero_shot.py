"""What a decision model says of each target, which has learned nothing from the labels."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, final

import numpy as np

from prefill_router.activations import Activations
from prefill_router.data import RoutingDataset
from prefill_router.encoders import OWN, DecisionOptions, EncoderName
from prefill_router.errors import ConfigError
from prefill_router.features.base import (
    Columns,
    EncoderStates,
    FamilyConfig,
    FamilyEntry,
    Need,
    PromptStates,
)
from prefill_router.features.single_site import SingleSite, SingleSiteFamily, store_of
from prefill_router.progress import Progress
from prefill_router.serialization import Names


@final
@dataclass(frozen=True, eq=False)
class ZeroShot(SingleSiteFamily):
    """The log-odds of each target, as a decision model gives them. Made by `ZeroShotConfig.fit`.

    Attributes:
        where: The site whose states are the log-odds.
        targets: The target of each column.
    """

    kind: ClassVar[str] = "zero_shot"

    targets: Names

    @property
    def width(self) -> int:
        """The number of columns, equal to that of targets."""
        return len(self.targets)

    def check_targets(self, names: tuple[str, ...]) -> None:
        """Check that the columns are these targets, in this order.

        Raises:
            ConfigError: They aren't.
        """
        _same(self.targets, names)

    def read(self, reading: PromptStates) -> Columns:
        """The columns of these queries."""
        result = np.empty((len(reading), self.width), dtype=np.float32)
        for rows, states in self.where.read(reading):
            result[rows] = states
        return result

    def verify(self) -> None:
        """Check that there is one state per target."""
        found = self.where.source.provenance.hidden_size
        if found != self.width:
            raise ConfigError(f"the states are {found} wide for {self.width} targets")


@final
@dataclass(frozen=True, kw_only=True)
class ZeroShotConfig(FamilyConfig):
    """Options of a decision model's log-odds.

    Attributes:
        encoder: `decision:MODEL@BASE_URL#FILE`; the file describes every target, in the order of
            the dataset's.
    """

    encoder: str

    def __post_init__(self) -> None:
        if EncoderName.parse(self.encoder).scheme != "decision":
            raise ConfigError(
                f"the encoder of zero_shot is {self.encoder!r}; name a decision model, such as "
                "decision:MODEL@https://example.com/v1#options.yaml"
            )

    @property
    def needs(self) -> tuple[Need, ...]:
        """The log-odds of the decision model."""
        return (Need(self.encoder, (OWN,)),)

    def fit(
        self,
        train: RoutingDataset,
        states: Sequence[Activations],
        *,
        seed: int = 0,
        progress: Progress | None = None,
    ) -> ZeroShot:
        """Find the states; labels aren't used.

        Raises:
            ConfigError: The options aren't the targets, or aren't those that the model was given.
        """
        del seed, progress
        options = DecisionOptions.read(EncoderName.parse(self.encoder).prompt)
        _same(options.names, train.pool.names)
        store = store_of(states, self.encoder, OWN)
        if store.provenance.template_hash != options.digest:
            raise ConfigError(
                "the options have changed since the decision model was asked; encode the queries "
                "again"
            )
        return ZeroShot(SingleSite(EncoderStates.of(store), OWN), options.names)


def _same(options: tuple[str, ...], targets: tuple[str, ...]) -> None:
    if options != targets:
        raise ConfigError(
            f"the decision model's options are {', '.join(options)}; the targets are "
            f"{', '.join(targets)}; describe these, in this order"
        )


ENTRY = FamilyEntry(ZeroShotConfig, ZeroShot)
