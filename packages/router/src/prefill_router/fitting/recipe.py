"""A recipe: the features, predictor, calibration and policy of a router.

Recipes are YAML: one, or several by name.

    features: prefill                       # a kind, a mapping with a kind, or a list of these
    predictor: {kind: knn_score, k: 25}     # a kind, or a mapping with its options
    shrinkage: false                        # true by default
    calibration: platt
    policy: lambda
    soft_labels: {file: judge.csv, weight: 0.5}

`FitConfig` has a recipe and the other options of a fit.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Literal, TypeVar, final, get_args

from prefill_router import calibration, policy
from prefill_router.activations import Activations
from prefill_router.calibration import CalibratorKind
from prefill_router.data import MOST_TOKENS
from prefill_router.errors import ConfigError, CorruptError, FormatError, PrefillRouterError
from prefill_router.evaluation import SettingRule
from prefill_router.features import FAMILIES, FamilyConfig, JointConfig, Need, PrefillConfig
from prefill_router.layers import candidate_sites
from prefill_router.options import build
from prefill_router.plugins import names_elsewhere
from prefill_router.policy import FrugalCascade, Lambda, Policy
from prefill_router.predictors import PREDICTORS, PredictorConfig, TrunkConfig, predictor_config
from prefill_router.router import unheld_encoder
from prefill_router.serialization import REMEDY
from prefill_router.yaml_files import read_yaml

CostKind = Literal["predicted", "median"]


@final
@dataclass(frozen=True, kw_only=True)
class SoftLabels:
    """A judge's scores, mixed into the train labels (section 3.2 of the paper).

    Attributes:
        file: CSV, JSONL or Parquet with `query_id`, `target` and `score` in [0, 1].
        weight: The score's share of a label, from 0 to 1. Where there is no score or no label, the
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
        features: Families of features, concatenated.
        predictor: From features to every target's probability of a correct answer.
        shrinkage: Whether these probabilities are shrunk towards base rates, by factors learned out
            of fold (`calibration.Shrinkage`).
        operating_points: Whether operating points are chosen on train rows out of fold. This needs
            five more fits of the predictor, unless shrinkage or a cascade needs them anyway.
        calibration: The kind of calibrator of these probabilities; fitted on the calibration part.
        cost: The length of an answer in its cost: `predicted` from the features
            (`cost.OutputHead`), or the `median` of the paper's Equation 1.
        policy: How a target is chosen, given probabilities and costs; or a cascade to be learned.
        soft_labels: A judge's scores for the train labels.
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
        """The states that the features need."""
        return tuple(dict.fromkeys(need for family in self.features for need in family.needs))

    @property
    def fixed_policy(self) -> Policy:
        """The policy, if it isn't learned.

        Raises:
            ConfigError: The policy is a cascade that is learned with the router.
        """
        if isinstance(self.policy, FrugalCascade):
            raise ConfigError(
                f"the policy {self.policy.kind} is learned with each router, which isn't possible "
                "here; name another policy"
            )
        return self.policy

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON, as `recipe_from_dict` reads them."""
        soft = self.soft_labels
        return {
            "features": [
                {"kind": FAMILIES.kind_of(family), **_to_plain(family)} for family in self.features
            ],
            "predictor": {"kind": PREDICTORS.kind_of(self.predictor), **_to_plain(self.predictor)},
            "shrinkage": self.shrinkage,
            "operating_points": self.operating_points,
            "calibration": self.calibration,
            "cost": self.cost,
            "policy": self.policy.to_dict(),
            "soft_labels": None
            if soft is None
            else {"file": str(soft.file), "weight": soft.weight},
        }


def _to_plain(config: Any) -> dict[str, Any]:
    return {name: _plain_value(value) for name, value in asdict(config).items()}


def _plain_value(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {str(name): _plain_value(part) for name, part in value.items()}
    if isinstance(value, tuple | list):
        return [_plain_value(part) for part in value]
    return str(value) if isinstance(value, Path) else value


@final
@dataclass(frozen=True, kw_only=True)
class FitConfig:
    """Options of a fit.

    Attributes:
        recipe: How the router is made; the default recipe if not given.
        assumed_output_tokens: Output tokens assumed for targets without any known count.
        resamples: Bootstrap resamples for the card's intervals.
        seed: The seed of the split, where none is given, and of all random numbers.
        effort: How much was tried to choose the recipe (`fit_chosen`); None where it is given.
        setting: How the setting that the router is used at is chosen.
        test: The share of the queries that is sealed as a test part, where no split is given.
    """

    recipe: Recipe = field(default_factory=Recipe)
    assumed_output_tokens: float | None = None
    resamples: int = 1000
    seed: int = 0
    effort: str | None = None
    setting: SettingRule = field(default_factory=SettingRule)
    test: float = 0.0

    def __post_init__(self) -> None:
        if not 0 <= self.test <= 0.5:
            raise ConfigError(
                f"the share of the test part is {self.test}; it must be 0 for none, or up to 0.5"
            )
        if self.resamples < 0 or self.seed < 0:
            raise ConfigError(
                f"{self.resamples} resamples and the seed {self.seed}; neither may be negative"
            )
        assumed = self.assumed_output_tokens
        if assumed is not None and not 0 <= assumed <= MOST_TOKENS:
            raise ConfigError(
                f"the assumed output tokens are {assumed}; they must be a number from 0 to "
                f"{MOST_TOKENS:,.0f}"
            )

    def to_dict(self) -> dict[str, Any]:
        """Plain values for the router's record."""
        values = {name: value for name, value in vars(self).items() if name != "effort" or value}
        return {**values, "recipe": self.recipe.to_dict(), "setting": asdict(self.setting)}


_Read = TypeVar("_Read")
_PARTS = (
    *("features", "predictor", "shrinkage", "operating_points", "calibration", "cost", "policy"),
    "soft_labels",
)
FRUGAL = policy.FrugalCascade().kind


def read_recipe(path: Path) -> Recipe:
    """Read the recipe in a YAML file.

    Raises:
        FormatError: The file is missing, isn't YAML, or has unknown fields.
    """
    return _name_file(
        path, lambda: recipe_from_dict(_check_mapping(read_yaml(path), "a recipe"), near=path)
    )


def read_recipes(path: Path) -> dict[str, Recipe]:
    """Read the recipes in the mapping `routers` of a YAML file, by name.

    Raises:
        FormatError: The file is missing, isn't YAML, or has unknown fields.
    """
    return _name_file(path, lambda: _build_recipes(_read_list(path), path))


def read_installed_recipes(path: Path) -> tuple[dict[str, Recipe], dict[str, str]]:
    """Read the recipes of a list whose predictors are installed.

    Returns:
        These recipes by name, and what to install for each of the others.

    Raises:
        FormatError: The file is missing, isn't YAML, or has unknown fields.
    """

    def read() -> tuple[dict[str, Recipe], dict[str, str]]:
        values, elsewhere = _read_list(path), names_elsewhere("prefill_router.predictors")
        requirements = {
            name: elsewhere[kind]
            for name, value in values.items()
            if (kind := _predictor_kind(value)) in elsewhere
        }
        installed = {name: value for name, value in values.items() if name not in requirements}
        return _build_recipes(installed, path), requirements

    return _name_file(path, read)


def _read_list(path: Path) -> dict[str, Mapping[str, Any]]:
    """The plain values of the recipes in a list, by name."""
    value = _check_mapping(read_yaml(path), "the file")
    if "routers" not in value and set(value) <= set(_PARTS):
        raise ConfigError(
            "this is one recipe, which is for: prefill-router fit --recipe; here give a list "
            "of routers, each under its name"
        )
    named = _check_mapping(value.get("routers"), "routers")
    unknown = set(value) - {"routers"}
    if unknown or not named:
        raise ConfigError(f"it holds {sorted(map(str, value))}; it must hold routers, by name")
    return {str(name): _check_mapping(recipe) for name, recipe in named.items()}


def _build_recipes(values: Mapping[str, Mapping[str, Any]], path: Path) -> dict[str, Recipe]:
    return {
        name: _name_router(name, partial(recipe_from_dict, value, near=path))
        for name, value in values.items()
    }


def _predictor_kind(value: Mapping[str, Any]) -> str:
    """The kind of a recipe's predictor; empty where it is the default."""
    return "" if value.get("predictor") is None else _split_kind(value["predictor"], "predictor")[0]


def recipe_from_dict(value: Mapping[str, Any], *, near: Path | None = None) -> Recipe:
    """A recipe from plain values, as `Recipe.to_dict` returns them; defaults may be left out.

    Args:
        value: The parts that differ from the defaults.
        near: A file to whose folder paths in the recipe are relative.

    Raises:
        ConfigError: A field is unknown or invalid.
    """
    unknown = set(value) - set(_PARTS)
    if unknown == {"routers"}:
        raise ConfigError(
            "this is a list of routers, which is for: prefill-router compare; here give one "
            "recipe of the list, without its name"
        )
    if unknown:
        raise ConfigError(f"a recipe has no {sorted(unknown)}; it has {list(_PARTS)}")
    parts: dict[str, Any] = {}
    if value.get("features") is not None:
        features = value["features"]
        listed = features if isinstance(features, list | tuple) else [features]
        parts["features"] = tuple(map(_read_family, listed))
    if value.get("predictor") is not None:
        parts["predictor"] = _read_predictor(value["predictor"])
    for name in ("shrinkage", "operating_points"):
        if value.get(name) is not None:
            parts[name] = _check_truth(value[name], name)
    if value.get("calibration") is not None:
        parts["calibration"] = calibration.find(str(value["calibration"])).kind
    if value.get("cost") is not None:
        parts["cost"] = _read_cost(value["cost"])
    if value.get("policy") is not None:
        kind, options = _split_kind(value["policy"], "policy")
        parts["policy"] = policy_of({"kind": kind, **options})
    if value.get("soft_labels") is not None:
        parts["soft_labels"] = _read_soft_labels(
            _check_mapping(value["soft_labels"], "soft_labels"), near
        )
    return Recipe(**parts)


def switchyard_recipe(states: Sequence[Activations]) -> Recipe:
    """The recipe of a router that a checkpoint of Switchyard holds (`router.switchyard_bytes`).

    It reads the last token at every stored layer of the upper half but the last layer, and takes
    the most probable target.

    Args:
        states: The states of one encoder, a causal language model behind its chat template.

    Raises:
        ConfigError: There are several encoders, it is another kind, or no such layer is stored.
    """
    names = [store.provenance.encoder for store in states]
    if len(names) != 1:
        raise ConfigError(f"Switchyard reads one encoder; the stores are of {names}: give one")
    [store], made_by = states, states[0].provenance
    unread = unheld_encoder(made_by)
    if unread is not None:
        raise ConfigError(
            f"{unread}, which Switchyard needs; encode with the hub id or the folder of such a "
            "model, and with its chat template"
        )
    candidates = candidate_sites(store, poolings=("last",))
    sites = tuple(site.name for site in candidates if site.layer < made_by.num_layers)
    if not sites:
        raise ConfigError(
            f"{store.name} has only {candidates[0].name} of the upper half of the layers, and "
            "Switchyard reads that layer after the final norm; encode layers below it too"
        )
    encoder = made_by.encoder
    block = JointConfig(encoders=(encoder,), sites={encoder: sites}, combine="averaged")
    return Recipe(features=(block,), shrinkage=False, policy=policy.Argmax())


def policy_of(value: Mapping[str, Any]) -> policy.Policy | policy.FrugalCascade:
    """The policy with this kind and options, or the options of a cascade to be learned.

    Raises:
        ConfigError: The kind or an option is unknown or invalid.
    """
    kinds = [*policy.KINDS, FRUGAL]
    if value.get("kind") not in kinds:
        raise ConfigError(f"there is no policy {value.get('kind')!r}; known are {kinds}")
    try:
        if value["kind"] == FRUGAL:
            return policy.FrugalCascade.parse(value)
        return policy.from_dict(value)
    except CorruptError as error:  # these options were written by the user, not saved
        raise ConfigError(str(error).removesuffix(f"; {REMEDY}")) from None


def _read_family(value: Any) -> FamilyConfig:
    kind, options = _split_kind(value, "features")
    return build(FAMILIES.find(kind).config, options, what=f"the features {kind}")


def _read_predictor(value: Any) -> PredictorConfig:
    kind, options = _split_kind(value, "predictor")
    return predictor_config({"kind": kind, **options})


def _read_soft_labels(value: Mapping[str, Any], near: Path | None) -> SoftLabels:
    soft_labels = build(SoftLabels, value, what="soft_labels")
    if near is None or soft_labels.file.is_absolute():
        return soft_labels
    return SoftLabels(file=near.parent / soft_labels.file, weight=soft_labels.weight)


def _split_kind(value: Any, what: str) -> tuple[str, dict[str, Any]]:
    if isinstance(value, str):
        return value, {}
    options = dict(_check_mapping(value, what))
    kind = options.pop("kind", None)
    if not isinstance(kind, str):
        raise ConfigError(f"{what} needs a kind; it holds {sorted(map(str, options))}")
    return kind, options


def _read_cost(value: Any) -> CostKind:
    kinds: dict[Any, CostKind] = {kind: kind for kind in get_args(CostKind)}
    if not isinstance(value, str) or value not in kinds:
        raise ConfigError(f"cost is {value!r}; it must be {' or '.join(kinds)}")
    return kinds[value]


def _check_truth(value: Any, what: str) -> bool:
    if not isinstance(value, bool):
        raise ConfigError(f"{what} is {value!r}; it must be true or false")
    return value


def _check_mapping(value: Any, what: str = "a recipe") -> Mapping[str, Any]:
    if not isinstance(value, Mapping):
        raise ConfigError(f"{what} must be a mapping of names to values, not {value!r}")
    return value


def _name_router(name: str, read: Callable[[], Recipe]) -> Recipe:
    try:
        return read()
    except PrefillRouterError as error:
        raise ConfigError(f"router {name!r}: {error}") from None


def _name_file(path: Path, read: Callable[[], _Read]) -> _Read:
    try:
        return read()
    except PrefillRouterError as error:
        raise FormatError(str(error), file=path) from None
