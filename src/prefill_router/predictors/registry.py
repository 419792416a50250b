"""The predictors by kind; each is imported when it is first asked for."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, final

from prefill_router.predictors.base import Predictor, PredictorConfig
from prefill_router.serialization import Kinds, Tensors


@final
@dataclass(frozen=True)
class PredictorEntry:
    """One kind.

    Attributes:
        config: Its options, and how it is fitted.
        predictor: What is fitted.
        label: What tables call it.
        source: Where it is described.
    """

    config: type[PredictorConfig]
    predictor: type[Predictor]
    label: str
    source: str


_PREDICTORS = Kinds[PredictorEntry](
    "predictor",
    "prefill_router.predictors",
    {
        "shared_trunk": "trunk:ENTRY",
        "constant": "constant:ENTRY",
        "knn_majority": "knn_majority:ENTRY",
        "knn_score": "knn_score:ENTRY",
        "clusters": "clusters:ENTRY",
        "logistic": "logistic:ENTRY",
        "xgboost": "boosting:ENTRY",
        "mlp": "networks.mlp:ENTRY",
        "multitask": "networks.multitask:ENTRY",
        "unified_multitask": "networks.unified:ENTRY",
        "matrix_factorisation": "networks.factorisation:ENTRY",
        "pairwise_factorisation": "networks.pairwise:ENTRY",
        "irt": "networks.irt:ENTRY",
        "graph": "graph:ENTRY",
        "given": "given:ENTRY",
    },
)
KINDS = _PREDICTORS.names
find, kind_of = _PREDICTORS.find, _PREDICTORS.kind_of


def load_predictor(config: Mapping[str, Any], tensors: Tensors) -> Predictor:
    """The predictor of `Predictor.to_dict` and `Predictor.tensors`.

    Raises:
        CorruptError: The kind is unknown, or the rest contradicts itself.
    """
    return _PREDICTORS.of_saved(config).predictor.from_dict(config, tensors)
