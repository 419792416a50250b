"""Cost and latency with the encoder counted."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from prefill_router.errors import ConfigError, DataError, MissingExtraError
from prefill_router.evaluation import Trial
from prefill_router.reports.reproduce.parts.scene import Scene
from prefill_router.reports.reproduce.run import SYSTEMS, TRUNK, UNIFIED
from prefill_router.router import Router
from prefill_router.router.states import default_cache
from prefill_router.studies.end_to_end import (
    Contender,
    Latency,
    answer_seconds,
    study_end_to_end,
    time_routing,
    tokens_read,
)
from prefill_router.studies.ratio import strongest

_TIMED = 20
"""Prompts whose decisions are timed."""


def end_to_end_part(scene: Scene) -> dict[str, Any]:
    """SharedTrunkNet, its encoder charged, against Unified Multitask for nothing."""
    fitted = scene.result.by_name
    if SYSTEMS[UNIFIED] not in fitted:
        raise DataError("the semantic router couldn't be fitted")
    notes: list[str] = []
    routers = {name: fitted[SYSTEMS[name]].fitted.router for name in (TRUNK, UNIFIED)}
    latencies = _latencies(scene, routers, notes)
    contenders = [
        _contender(scene, router, name, latencies.get(name)) for name, router in routers.items()
    ]
    found = study_end_to_end(
        contenders,
        strongest(scene.train),
        charges={TRUNK: scene.charge.said, UNIFIED: "nothing"},
        lams=(1.0, 0.5),
        resamples=scene.options.resamples,
        seed=scene.options.seed,
        progress=scene.progress,
    )
    return {**found.to_dict(), "notes": notes}


def _contender(scene: Scene, router: Router, name: str, latency: Latency | None) -> Contender:
    test = scene.test
    trial = Trial.join(router.predict(test, stores=scene.states), test, policy=router.policy)
    cost = np.zeros(len(test))
    if name == TRUNK:
        tokens = tokens_read(
            router, test, stores=scene.states, cache=default_cache(), progress=scene.progress
        )
        cost = scene.charge.dollars(tokens, latency)
    return Contender(name, trial, answer_seconds(test, scene.speeds), cost, latency)


def _latencies(scene: Scene, routers: Mapping[str, Router], notes: list[str]) -> dict[str, Latency]:
    """Of those that can decide here, taking turns."""
    prompts = [query.prompt for query in scene.test.queries[:_TIMED]]
    routes = {}
    for name, router in routers.items():
        placed = replace(router, sources=scene.sources)
        try:
            placed.route(prompts[0])
        except (ConfigError, MissingExtraError) as error:
            notes.append(f"{name} couldn't be timed: {error}")
        else:
            routes[name] = placed.route
    return time_routing(routes, prompts, progress=scene.progress) if routes else {}
