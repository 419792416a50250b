"""The predictors by kind; each is imported when it is first looked up.

The module of a kind has a constant `ENTRY`, a `PredictorEntry`; a module with several kinds has a
constant for each.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, final

from prefill_router.options import build
from prefill_router.predictors.base import Predictor, PredictorConfig
from prefill_router.serialization import Kinds, Tensors


@final
@dataclass(frozen=True)
class PredictorEntry:
    """One kind of predictor.

    Attributes:
        config: The class of its options, which fit it.
        predictor: The class of the fitted predictor.
        label: The name in tables.
        source: The publication that describes it.
    """

    config: type[PredictorConfig]
    predictor: type[Predictor]
    label: str
    source: str


PREDICTORS = Kinds[PredictorEntry](
    "predictor",
    "prefill_router.predictors",
    {
        "shared_trunk": "trunk:ENTRY",
        "constant": "constant:ENTRY",
        "knn_majority": "knn:MAJORITY",
        "knn_score": "knn:SCORE",
        "clusters": "clusters:ENTRY",
        "logistic": "logistic:ENTRY",
        "xgboost": "boosting:ENTRY",
        "mlp": "networks.perceptrons:MLP",
        "multitask": "networks.perceptrons:MULTITASK",
        "unified_multitask": "networks.perceptrons:UNIFIED",
        "matrix_factorisation": "networks.latent:FACTORISATION",
        "pairwise_factorisation": "networks.latent:PAIRWISE",
        "irt": "networks.latent:IRT",
        "graph": "graph:ENTRY",
        "stack": "stack:ENTRY",
        "given": "given:ENTRY",
    },
)


def predictor_config(value: Mapping[str, Any]) -> PredictorConfig:
    """The options of a predictor, from a mapping with its kind and those that aren't defaults.

    Raises:
        ConfigError: The kind or an option is unknown, or of the wrong type.
    """
    options = {name: option for name, option in value.items() if name != "kind"}
    kind = str(value.get("kind"))
    return build(PREDICTORS.find(kind).config, options, what=f"the predictor {kind}")


def load_predictor(config: Mapping[str, Any], tensors: Tensors) -> Predictor:
    """The predictor that `Predictor.to_dict` and `Predictor.tensors` describe.

    Raises:
        CorruptError: The kind is unknown, or the values contradict each other.
    """
    return PREDICTORS.of_saved(config).predictor.from_dict(config, tensors)
