"""How often the router does anything else than its most usual choice."""

from dataclasses import dataclass
from typing import final

import numpy as np
from jaxtyping import Float
from numpy.typing import NDArray

from prefill_router.studies.doctor.finding import Finding, Sign, percent
from prefill_router.studies.doctor.subject import Subject

NEARLY_CONSTANT = 0.02
"""A router that sends fewer queries than this elsewhere is a fixed choice in all but name."""


@final
@dataclass(frozen=True, eq=False)
class Switching:
    """What the router chooses.

    Attributes:
        targets: The targets' names.
        shares: The share of the queries that each one gets.
    """

    targets: tuple[str, ...]
    shares: Float[NDArray[np.float64], " target"]

    @property
    def usual(self) -> str:
        """The target that gets the most."""
        return self.targets[int(self.shares.argmax())]

    @property
    def rate(self) -> float:
        """The share of the queries that go anywhere else."""
        return 1 - float(self.shares.max())

    @property
    def effective(self) -> float:
        """How many targets, used equally, would be as varied: the exponential of the entropy."""
        used = self.shares[self.shares > 0]
        return float(np.exp(-(used * np.log(used)).sum()))


def switching(subject: Subject) -> Switching:
    """Count the choices."""
    counts = np.bincount(subject.choice, minlength=len(subject.trial.targets))
    return Switching(subject.trial.targets, counts / len(subject))


def finding(found: Switching) -> Finding:
    """What the counts say."""
    sign: Sign = "bad" if found.rate < NEARLY_CONSTANT else "good"
    said = (
        f"{percent(found.rate)} of the queries go elsewhere than to {found.usual}, over "
        f"{found.effective:.1f} targets in effect"
    )
    if sign == "bad":
        said += ": nearly constant"
    numbers = {
        "switch_rate": found.rate,
        "effective_targets": found.effective,
        "shares": dict(zip(found.targets, found.shares.tolist(), strict=True)),
    }
    return Finding("switching", "Does it choose at all", sign, said, numbers)
