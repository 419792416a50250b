"""The predictors by kind; each is imported when it is first asked for.

The module of a kind has a constant `ENTRY`, a `PredictorEntry`; one of several kinds has a constant
for each, which is named here after the module.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from importlib import import_module
from typing import Any, final

from prefill_router.errors import ConfigError, CorruptError
from prefill_router.predictors.base import Predictor, PredictorConfig, Tensors

_HOME = {
    "shared_trunk": "trunk",
    "constant": "constant",
    "knn_majority": "knn:MAJORITY",
    "knn_score": "knn:SCORE",
    "clusters": "clusters",
    "logistic": "logistic",
    "xgboost": "boosting",
    "mlp": "networks.perceptrons:MLP",
    "multitask": "networks.perceptrons:MULTITASK",
    "unified_multitask": "networks.perceptrons:UNIFIED",
    "matrix_factorisation": "networks.latent:FACTORISATION",
    "pairwise_factorisation": "networks.latent:PAIRWISE",
    "irt": "networks.latent:IRT",
    "graph": "graph",
    "given": "given",
}
KINDS: tuple[str, ...] = tuple(_HOME)


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


def find(kind: str) -> PredictorEntry:
    """The entry of a kind.

    Raises:
        ConfigError: There is none of that name.
    """
    if kind not in _HOME:
        raise ConfigError(f"there is no predictor {kind!r}; known are {list(KINDS)}")
    module, _, name = _HOME[kind].partition(":")
    entry = getattr(import_module(f"prefill_router.predictors.{module}"), name or "ENTRY")
    if not isinstance(entry, PredictorEntry):
        raise TypeError(f"the module of {kind} has no entry")
    return entry


def kind_of(config: PredictorConfig) -> str:
    """The kind of some options.

    Raises:
        ConfigError: They are of no kind known.
    """
    for kind in KINDS:
        if find(kind).config is type(config):
            return kind
    raise ConfigError(f"{type(config).__name__} belongs to no kind; known are {list(KINDS)}")


def load_predictor(config: Mapping[str, Any], tensors: Tensors) -> Predictor:
    """The predictor of `Predictor.to_dict` and `Predictor.tensors`.

    Raises:
        CorruptError: The kind is unknown, or the rest contradicts itself.
    """
    kind = config.get("kind")
    if not isinstance(kind, str) or kind not in _HOME:
        raise CorruptError(
            f"the predictor is of the kind {kind!r}; known are {list(KINDS)}; "
            "it may need a newer version of prefill-router"
        )
    return find(kind).predictor.from_dict(config, tensors)
