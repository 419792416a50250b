"""A recipe: what a router reads, what predicts, how that is calibrated, and who then chooses."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal, final

from prefill_router.calibration import CalibratorKind
from prefill_router.errors import ConfigError
from prefill_router.features import FamilyConfig, Need
from prefill_router.features.prefill import PrefillConfig
from prefill_router.features.registry import kind_of as family_kind
from prefill_router.policy import FrugalCascade, Lambda, Policy
from prefill_router.predictors import PredictorConfig, TrunkConfig
from prefill_router.predictors.registry import kind_of as predictor_kind

CostKind = Literal["predicted", "median"]


@final
@dataclass(frozen=True, kw_only=True)
class SoftLabels:
    """A judge's scores, mixed into the training labels (section 3.2 of the paper).

    Attributes:
        file: CSV, JSONL or Parquet with `query_id`, `target` and `score` in [0, 1].
        weight: The score's share of a label, from 0 to 1; where there is no score or no label, the
            label stays as it is.
    """

    file: Path
    weight: float = 0.5

    def __post_init__(self) -> None:
        if not 0 <= self.weight <= 1:
            raise ConfigError(f"the weight of soft labels is {self.weight}; it must be in [0, 1]")


@final
@dataclass(frozen=True, kw_only=True)
class Recipe:
    """How a router is made; the defaults are the paper's router, shrinkage and predicted costs.

    Attributes:
        features: Families of features, side by side.
        predictor: From features to every target's probability of a correct answer.
        shrinkage: Whether those move towards base rates by as much as predictions of train rows
            that weren't fitted on were wrong (`calibration.Shrinkage`).
        operating_points: Whether settings are chosen for the router on train rows out of fold; that
            costs five more fits of the predictor, unless shrinkage or a cascade has them anyway.
        calibration: What maps those to probabilities that hold; fitted on the calibration part.
        cost: What is taken for the length of an answer: predicted, what the features say of it
            (`cost.OutputHead`), or median, the paper's Equation 1.
        policy: Who answers, given probabilities and costs; or a cascade that is learned.
        soft_labels: A judge's scores for the training labels.
    """

    features: tuple[FamilyConfig, ...] = (PrefillConfig(),)
    predictor: PredictorConfig = field(default_factory=TrunkConfig)
    shrinkage: bool = True
    operating_points: bool = True
    calibration: CalibratorKind = "none"
    cost: CostKind = "predicted"
    policy: Policy | FrugalCascade = field(default_factory=Lambda)
    soft_labels: SoftLabels | None = None

    def __post_init__(self) -> None:
        if not self.features:
            raise ConfigError("a recipe needs features; name at least one family, such as prefill")

    @property
    def needs(self) -> tuple[Need, ...]:
        """The states that its features read."""
        return tuple(dict.fromkeys(need for one in self.features for need in one.needs))

    @property
    def fixed_policy(self) -> Policy:
        """Who answers, where that isn't learned.

        Raises:
            ConfigError: It is a cascade that is learned with the router.
        """
        if isinstance(self.policy, FrugalCascade):
            raise ConfigError(
                f"the policy {self.policy.kind} is learned anew with every router, which can't be "
                "done here; name another policy"
            )
        return self.policy

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON, as `recipe_from_dict` takes them."""
        soft = self.soft_labels
        return {
            "features": [{"kind": family_kind(one), **_plain(one)} for one in self.features],
            "predictor": {"kind": predictor_kind(self.predictor), **_plain(self.predictor)},
            "shrinkage": self.shrinkage,
            "operating_points": self.operating_points,
            "calibration": self.calibration,
            "cost": self.cost,
            "policy": self.policy.to_dict(),
            "soft_labels": None
            if soft is None
            else {"file": str(soft.file), "weight": soft.weight},
        }


def _plain(config: Any) -> dict[str, Any]:
    return {name: _value(value) for name, value in asdict(config).items()}


def _value(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {str(name): _value(one) for name, one in value.items()}
    if isinstance(value, tuple | list):
        return [_value(one) for one in value]
    return str(value) if isinstance(value, Path) else value
