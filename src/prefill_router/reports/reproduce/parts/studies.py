"""Seeds, shifts and routing ratios of the six routers."""

import re
from typing import Any

import numpy as np

from prefill_router.errors import DataError
from prefill_router.reports.reproduce.parts.scene import Scene
from prefill_router.reports.reproduce.recipes import single_networks, uncalibrated
from prefill_router.reports.reproduce.run import SYSTEMS
from prefill_router.studies.ratio import routing_ratio, strongest
from prefill_router.studies.seeds import seed_study
from prefill_router.studies.shift import shift_study
from prefill_router.studies.shift_plan import Shift

_STEM = "mmlu-pro-stem"
_HLE = re.compile(r"(hle|humanity'?s?[-_ ]?last[-_ ]?exam)", re.IGNORECASE)


def seeds_part(scene: Scene) -> dict[str, Any]:
    """Every router with several training seeds."""
    return seed_study(
        scene.found.dataset,
        single_networks(scene.recipes),
        scene.states,
        scene.drawn,
        calibrated=scene.calibrated,
        count=scene.options.seeds,
        seed=scene.options.seed,
        folder=scene.place("seeds"),
        progress=scene.progress,
    ).to_dict()


def domains_part(scene: Scene) -> dict[str, Any]:
    """Trained on MMLU-Pro's STEM, tested on its humanities and social sciences."""
    wanted = Shift.preset(_STEM)
    known = {query.domain for query in scene.found.dataset.queries}
    lacking = [name for name in (*wanted.train_on, *wanted.test_on) if name not in known]
    if lacking:
        raise DataError(
            "the data don't name MMLU-Pro's subjects: no query has the domains "
            f"{', '.join(lacking)}"
        )
    return _shift(scene, wanted, "domains")


def benchmark_part(scene: Scene) -> dict[str, Any]:
    """Humanity's Last Exam held out."""
    known = sorted({query.benchmark for query in scene.found.dataset.queries} - {""})
    held = [name for name in known if _HLE.search(name)]
    if not held:
        raise DataError(
            "the data hold no question of Humanity's Last Exam; their benchmarks are "
            f"{', '.join(known[:20]) or 'not named'}"
        )
    return _shift(scene, Shift.hold_out(scene.found.dataset, held), "benchmark")


def ratio_part(scene: Scene) -> dict[str, Any]:
    """Accuracy over the share of queries that is forced on the strong target."""
    fitted = scene.result.by_name
    systems = {
        paper: fitted[name].fitted.router.predict(scene.test, stores=scene.states)
        for paper, name in SYSTEMS.items()
        if name in fitted
    }
    found = routing_ratio(
        systems,
        scene.test,
        strong=strongest(scene.test),
        resamples=scene.options.resamples,
        seed=scene.options.seed,
        progress=scene.progress,
    )
    curves = {
        one.name: {
            "ratio": _thin(one.ratio),
            "accuracy": _thin(one.accuracy),
        }
        for one in found.curves
    }
    return {**found.to_dict(), "curves": curves}


def _shift(scene: Scene, shift: Shift, name: str) -> dict[str, Any]:
    return shift_study(
        scene.found.dataset,
        uncalibrated(single_networks(scene.recipes)),
        scene.states,
        scene.drawn,
        shift,
        resamples=scene.options.resamples,
        seed=scene.options.seed,
        folder=scene.place(f"shift_{name}"),
        progress=scene.progress,
    ).to_dict()


def _thin(values: np.ndarray) -> list[float | None]:
    """At most some hundred points of a curve, both ends among them."""
    places = np.unique(np.linspace(0, len(values) - 1, 301).round().astype(np.int64))
    return [float(v) if np.isfinite(v) else None for v in values[places]]
