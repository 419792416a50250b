"""The routers of the paper's tables, the paper's pools in a dataset, and the run of one pool.

A `PoolContext` is one pool with its fitted routers, the input of the studies. A `PoolRun` is the
input of the pool's tables: the routers, their evaluations, and the results of the studies.

The paper's pools in a dataset: which targets correspond to the paper's.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any, Literal, final

import numpy as np
import yaml

from prefill_router.activations import Activations
from prefill_router.calibration import CalibratorKind
from prefill_router.comparison import ALL, Charge, ComparedRouter, ComparisonResult, recipes_of
from prefill_router.data import RoutingDataset, Split
from prefill_router.encoders import MINILM
from prefill_router.engines import Engine
from prefill_router.features import FamilyConfig, PrefillConfig
from prefill_router.fitting import Recipe, SoftLabels
from prefill_router.predictors import GivenConfig, PredictorConfig
from prefill_router.progress import Progress, SilentProgress
from prefill_router.router import EncoderSources
from prefill_router.short_repr import short_repr
from prefill_router_lab.end_to_end import Speed
from prefill_router_lab.features import TextNetworkConfig
from prefill_router_lab.predictors import GraphConfig
from prefill_router_lab.reproduce.options import QWEN_PRICE, ReproduceOptions

PoolName = Literal["frontier", "small", "mixed"]
Bench = Literal["llmrouterbench", "nvidia-v1", "mmlu-pro"]
POOLS: tuple[PoolName, ...] = ("frontier", "small", "mixed")
OF_BENCH: Mapping[str, tuple[PoolName, ...]] = {
    "llmrouterbench": ("frontier", "small"),
    "nvidia-v1": ("mixed",),
    "mmlu-pro": (),
}
"""The paper's pools for each source of data."""
LEAST = 2
"""The fewest targets of a pool."""


@short_repr
@final
@dataclass(frozen=True, eq=False)
class PaperPool:
    """A pool in the data.

    Attributes:
        pool: The paper's pool whose numbers are shown beside ours.
        title: The name of our pool in tables.
        dataset: Its scored answers.
        names: The paper's name of each target; empty where the targets aren't the paper's, so that
            its numbers are shown for context only.
        absent: The paper's targets that the data lack.
    """

    pool: PoolName
    title: str
    dataset: RoutingDataset
    names: Mapping[str, str]
    absent: tuple[str, ...] = ()

    @property
    def is_counterpart(self) -> bool:
        """Whether these are the paper's targets."""
        return bool(self.names)

    def paper_name(self, target: str) -> str:
        """The paper's name of a target; its own name where it isn't one of the paper's."""
        return self.names.get(target, target)


def find_pools(bench: str, dataset: RoutingDataset) -> list[PaperPool]:
    """The paper's pools in the data, or all targets as one pool where there are none.

    Args:
        bench: The source of the data.
        dataset: Scored answers.
    """
    pools = []
    for pool in OF_BENCH[bench]:
        names = match_targets(pool, dataset.pool.names)
        if len(names) >= LEAST:
            absent = tuple(name for name in read_names()[pool] if name not in names.values())
            part = _select_measured(dataset.select(targets=list(names)))
            pools.append(PaperPool(pool, f"{pool.capitalize()} pool", part, names, absent))
    return pools or [PaperPool("mixed", "All targets", _select_measured(dataset), {})]


def match_targets(pool: str, targets: Sequence[str]) -> dict[str, str]:
    """The targets that belong to a pool, in the paper's order, with the paper's names."""
    by_key = {_normalise_name(target): target for target in reversed(targets)}
    result: dict[str, str] = {}
    for name, aliases in read_names()[pool].items():
        matches = [
            by_key[_normalise_name(alias)] for alias in aliases if _normalise_name(alias) in by_key
        ]
        if matches and matches[0] not in result:
            result[matches[0]] = name
    return result


@cache
def read_names() -> Mapping[str, Mapping[str, Sequence[str]]]:
    """The possible names of each target of the paper's pools, by pool and the paper's name."""
    text = (files("prefill_router_lab.reproduce") / "pools.yaml").read_text(encoding="utf-8")
    names: Mapping[str, Mapping[str, Sequence[str]]] = yaml.safe_load(text)
    return names


def _normalise_name(name: str) -> str:
    return re.sub(r"[^a-z0-9]", "", name.rsplit("/", 1)[-1].lower())


def _select_measured(dataset: RoutingDataset) -> RoutingDataset:
    """The queries on which any of the targets was measured."""
    rows = np.flatnonzero(~np.isnan(dataset.correct).all(axis=1))
    return dataset.select([dataset.query_ids[row] for row in rows])


TRUNK = "SharedTrunkNet"
UNIFIED = "Unified Multitask"
SYSTEMS: Mapping[str, str] = {
    TRUNK: "SharedTrunkNet",
    UNIFIED: "Unified Multitask",
    "Matrix Factorization": "Matrix Factorisation",
    "Per-Model Multitask": "Per-Target Multitask",
    "GraphRouter": "GraphRouter",
    "kNN": "kNN majority",
}
"""The six routers of the paper's tables, and their names in the packaged list."""
SEMANTIC = tuple(name for name in SYSTEMS if name != TRUNK)
"""The semantic baselines among these routers."""


@short_repr
@final
@dataclass(frozen=True, eq=False)
class PoolRun:
    """The results of one pool.

    Attributes:
        paper_pool: The pool.
        split: Its split.
        result: Every router, fitted and judged on the test part.
        parts: The results of the studies, plain values by the study's name; `{"missing": why}`
            where one can't be made on these data.
        options: The extent of the work.
    """

    paper_pool: PaperPool
    split: Split
    result: ComparisonResult
    parts: Mapping[str, Mapping[str, Any]]
    options: ReproduceOptions

    @property
    def pool(self) -> str:
        """The paper's pool whose numbers are shown beside ours."""
        return self.paper_pool.pool

    @property
    def title(self) -> str:
        """The name of the pool in tables."""
        return self.paper_pool.title

    @property
    def test(self) -> RoutingDataset:
        """The test part."""
        return self.paper_pool.dataset.select(self.split["test"])

    def system(self, name: str) -> ComparedRouter | None:
        """A router by the paper's name; None where it couldn't be fitted."""
        return self.result.by_name.get(SYSTEMS.get(name, name))

    def why_not(self, name: str) -> str:
        """Why a router is missing."""
        own_name = SYSTEMS.get(name, name)
        failed = [failure.why for failure in self.result.failures if failure.name == own_name]
        return failed[0] if failed else "it isn't among the routers"

    def missing(self, part: str) -> str:
        """Why a study is missing; empty if it is there."""
        if part not in self.parts:
            return "it wasn't done"
        return str(self.parts[part].get("missing", ""))


ONE_NETWORK: Mapping[str, int] = {"seeds": 1, "keep": 1, "networks": 1}
"""Options of the predictors that average several networks, for a study of single seeds."""
REHEARSAL: Mapping[str, int] = {
    **{"max_epochs": 2, "patience": 1, "seeds": 1, "keep": 1, "networks": 1},
    **{"rounds": 10},
}
"""Options that make a fit fast and its router useless."""
CALIBRATION: CalibratorKind = "platt"
"""The paper has several calibrations and doesn't say which one its tables use."""
BASELINES = tuple(SYSTEMS[name] for name in SEMANTIC)
TUNED = "Fine-tuned text network"
JUDGED = "Unified Multitask, soft labels"
REHEARSED = ("IRT-2PL", "kNN score")
"""The routers that a rehearsal fits besides the six of the paper's tables."""


def make_recipes(
    encoders: Sequence[str],
    embedding: str,
    options: ReproduceOptions,
    *,
    text_network: str | None = None,
    soft_labels: Path | None = None,
) -> dict[str, Recipe]:
    """The recipes of the packaged list, with the paper's semantic baselines calibrated.

    The list's own calibrated routers are left out, since they are the same baselines. There is no
    shrinkage, costs follow Equation 1, and no operating points are chosen, since the tables use the
    whole path of lam.

    Args:
        encoders: The encoders of the prefill router; where there are several, the best by
            cross-validation on the train part is used.
        embedding: The model for the embeddings of the semantic routers.
        options: The extent of the work.
        text_network: The text model to fine-tune, for example DeBERTa-v3; None leaves that router
            out.
        soft_labels: A judge's scores; None leaves out the router trained on them.
    """
    recipes = {}
    for name, recipe in recipes_of(ALL).recipes.items():
        is_rehearsed = name in SYSTEMS.values() or name in REHEARSED
        if recipe.calibration == "none" and (is_rehearsed or not options.quick):
            recipes[name] = _adapt_recipe(name, recipe, encoders, embedding, options)
    if text_network is not None:
        tuned = TextNetworkConfig(network=text_network)
        if options.quick:
            tuned = replace(tuned, epochs=1)
        recipes[TUNED] = Recipe(
            features=(tuned,),
            predictor=GivenConfig(),
            shrinkage=False,
            operating_points=False,
            cost="median",
        )
    if soft_labels is not None:
        judged = replace(recipes[SYSTEMS[UNIFIED]], calibration="none")
        recipes[JUDGED] = replace(judged, soft_labels=SoftLabels(file=soft_labels))
    return recipes


def _adapt_recipe(
    name: str,
    recipe: Recipe,
    encoders: Sequence[str],
    embedding: str,
    options: ReproduceOptions,
) -> Recipe:
    predictor = recipe.predictor
    if isinstance(predictor, GraphConfig):
        # A packaged encoder can encode texts anywhere; others may exist only as stored states.
        predictor = replace(predictor, text=MINILM if embedding == MINILM else None)
    if options.quick:
        predictor = with_options(predictor, REHEARSAL)
    return replace(
        recipe,
        features=tuple(_adapt_family(family, encoders, embedding) for family in recipe.features),
        predictor=predictor,
        calibration=CALIBRATION if name in BASELINES else recipe.calibration,
        shrinkage=False,
        operating_points=False,
        cost="median",
    )


def single_networks(recipes: Mapping[str, Recipe]) -> dict[str, Recipe]:
    """The six routers of the paper's tables, each trained once and not averaged."""
    return {
        name: replace(recipes[name], predictor=with_options(recipes[name].predictor, ONE_NETWORK))
        for name in SYSTEMS.values()
        if name in recipes
    }


def without_calibration(recipes: Mapping[str, Recipe]) -> dict[str, Recipe]:
    """The recipes without calibration, for studies that have no calibration part."""
    return {name: replace(recipe, calibration="none") for name, recipe in recipes.items()}


def with_options(predictor: PredictorConfig, options: Mapping[str, int]) -> PredictorConfig:
    """A predictor with the options that apply to it."""
    names = {field.name for field in fields(predictor) if field.init}  # type: ignore[arg-type]
    values: Any = {name: value for name, value in options.items() if name in names}
    return replace(predictor, **values)  # type: ignore[type-var]


def _adapt_family(family: FamilyConfig, encoders: Sequence[str], embedding: str) -> FamilyConfig:
    if isinstance(family, PrefillConfig):
        return replace(family, encoders=tuple(encoders))
    if any(field.name == "encoder" for field in fields(family)):  # type: ignore[arg-type]
        values: Any = {"encoder": embedding}
        return replace(family, **values)  # type: ignore[type-var]
    return family


@final
@dataclass(frozen=True, eq=False, kw_only=True)
class PoolContext:
    """One pool with its fitted routers.

    Attributes:
        paper_pool: The pool.
        split: Its split, 85/15.
        calibrated: The split of the calibrated routers, 75/10/15 with the same test part.
        states: The states of its queries.
        encoders: Names of the encoders in the sweeps.
        recipes: Every router's recipe.
        result: The routers with their evaluations.
        options: The extent of the work.
        folder: Keeps the routers that are fitted in the studies; None keeps nothing.
        sources: Where encoders are found, for timing them.
        charge: The price of the encoder.
        speeds: The speeds of the targets, by target.
        engine: Where the fits run; None is this process.
        progress: Reports the progress of the work.
    """

    paper_pool: PaperPool
    split: Split
    calibrated: Split
    states: Sequence[Activations]
    encoders: Sequence[str]
    recipes: Mapping[str, Recipe]
    result: ComparisonResult
    options: ReproduceOptions
    folder: Path | None = None
    sources: EncoderSources = field(default_factory=EncoderSources)
    charge: Charge = field(default_factory=lambda: Charge(per_million_tokens=QWEN_PRICE))
    speeds: Mapping[str, Speed] = field(default_factory=dict)
    engine: Engine | None = None
    progress: Progress = field(default_factory=SilentProgress)

    @property
    def train(self) -> RoutingDataset:
        """The train part."""
        return self.paper_pool.dataset.select(self.split["train"])

    @property
    def test(self) -> RoutingDataset:
        """The test part."""
        return self.paper_pool.dataset.select(self.split["test"])

    @property
    def stores(self) -> list[Activations]:
        """The states that the sweeps read, one store per encoder."""
        first: dict[str, Activations] = {}
        for store in self.states:
            first.setdefault(store.provenance.encoder, store)
        return [first[name] for name in self.encoders if name in first]

    def place(self, name: str) -> Path | None:
        """The folder that keeps a study's routers."""
        return None if self.folder is None else self.folder / name
