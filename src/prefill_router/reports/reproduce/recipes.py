"""The routers that the paper's tables are about, on the encoders at hand."""

from collections.abc import Mapping, Sequence
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

from prefill_router.calibration import CalibratorKind
from prefill_router.encoders import MINILM
from prefill_router.features import FamilyConfig
from prefill_router.features.prefill import PrefillConfig
from prefill_router.features.text_network.config import TextNetworkConfig
from prefill_router.fitting import Recipe, SoftLabels
from prefill_router.predictors import PredictorConfig
from prefill_router.predictors.given import GivenConfig
from prefill_router.predictors.graph import GraphConfig
from prefill_router.reports.compare import ALL, recipes_of
from prefill_router.reports.reproduce.run import SEMANTIC, SYSTEMS, UNIFIED, Options

ONE_NETWORK: Mapping[str, int] = {"seeds": 1, "keep": 1, "networks": 1}
"""Options of the predictors that average several networks, for a study of single seeds."""
REHEARSAL: Mapping[str, int] = {
    **{"max_epochs": 2, "patience": 1, "seeds": 1, "keep": 1, "networks": 1},
    **{"rounds": 10},
}
"""Options that make a fit quick and its router useless."""
CALIBRATION: CalibratorKind = "platt"
"""Of the paper's suite it doesn't say which its tables have."""
BASELINES = tuple(SYSTEMS[name] for name in SEMANTIC)
TUNED = "Fine-tuned text network"
JUDGED = "Unified Multitask, soft labels"
REHEARSED = ("IRT-2PL", "kNN score")
"""What a rehearsal fits beside the six routers of the paper's tables."""


def routers(
    encoders: Sequence[str],
    embedding: str,
    options: Options,
    *,
    text_network: str | None = None,
    soft_labels: Path | None = None,
) -> dict[str, Recipe]:
    """The packaged list. The semantic baselines of the paper's tables are calibrated, as there.

    The list's own calibrated routers are left out: they are the same baselines again. Nothing is
    shrunk, costs are Equation 1's, and no operating points are chosen: the tables read the whole
    path of lam.

    Args:
        encoders: Whose hidden states the prefill router reads; the best of them, by
            cross-validation on the train part, where there are several.
        embedding: What makes the embeddings of the semantic routers.
        options: How much work is put in.
        text_network: What is tuned on the text, such as DeBERTa-v3; None leaves that router out.
        soft_labels: A judge's scores; None leaves out the router that learns from them.
    """
    made = {}
    for name, recipe in recipes_of(ALL).items():
        rehearsed = name in SYSTEMS.values() or name in REHEARSED
        if recipe.calibration != "none" or (options.quick and not rehearsed):
            continue
        features = tuple(_features(one, encoders, embedding) for one in recipe.features)
        predictor = recipe.predictor
        if isinstance(predictor, GraphConfig):
            # A packaged encoder can read texts anywhere; others may be known as states alone.
            predictor = replace(predictor, text=MINILM if embedding == MINILM else None)
        if options.quick:
            predictor = with_options(predictor, REHEARSAL)
        calibration = CALIBRATION if name in BASELINES else recipe.calibration
        made[name] = replace(
            recipe,
            features=features,
            predictor=predictor,
            calibration=calibration,
            shrinkage=False,
            operating_points=False,
            cost="median",
        )
    if text_network is not None:
        tuned = TextNetworkConfig(network=text_network)
        if options.quick:
            tuned = replace(tuned, epochs=1)
        made[TUNED] = Recipe(
            features=(tuned,),
            predictor=GivenConfig(),
            shrinkage=False,
            operating_points=False,
            cost="median",
        )
    if soft_labels is not None:
        judged = replace(made[SYSTEMS[UNIFIED]], calibration="none")
        made[JUDGED] = replace(judged, soft_labels=SoftLabels(file=soft_labels))
    return made


def single_networks(recipes: Mapping[str, Recipe]) -> dict[str, Recipe]:
    """The six routers of the paper's tables, each trained once and not averaged."""
    return {
        name: replace(recipes[name], predictor=with_options(recipes[name].predictor, ONE_NETWORK))
        for name in SYSTEMS.values()
        if name in recipes
    }


def uncalibrated(recipes: Mapping[str, Recipe]) -> dict[str, Recipe]:
    """The same, without calibration: for studies that have no calibration part."""
    return {name: replace(recipe, calibration="none") for name, recipe in recipes.items()}


def with_options(predictor: PredictorConfig, options: Mapping[str, int]) -> PredictorConfig:
    """A predictor with those of the options that it has."""
    own = {one.name for one in fields(predictor) if one.init}  # type: ignore[arg-type]
    given: Any = {name: value for name, value in options.items() if name in own}
    return replace(predictor, **given)  # type: ignore[type-var]


def _features(one: FamilyConfig, encoders: Sequence[str], embedding: str) -> FamilyConfig:
    if isinstance(one, PrefillConfig):
        return replace(one, encoders=tuple(encoders))
    if any(field.name == "encoder" for field in fields(one)):  # type: ignore[arg-type]
        changed: Any = {"encoder": embedding}
        return replace(one, **changed)  # type: ignore[type-var]
    return one
