"""Which encoder, and which layer of it: the sweep and the ablation."""

import math
from typing import Any

from prefill_router.data import binary
from prefill_router.evaluation.bootstrap import plain
from prefill_router.layers import ablation, candidate_sites, search, survey, sweep
from prefill_router.reports.reproduce.parts.scene import Scene

_Z = 1.959964
"""The normal distribution's 97.5th percentile."""


def sweep_part(scene: Scene) -> dict[str, Any]:
    """The test AUC of every target under every encoder, with intervals."""
    found = sweep(
        scene.stores,
        scene.train,
        scene.test,
        dim=scene.options.dim,
        seed=scene.options.seed,
        progress=scene.progress,
    )
    labels = binary(scene.test.correct)
    right = (labels == 1).sum(axis=0).tolist()
    wrong = (labels == 0).sum(axis=0).tolist()
    return {
        "encoders": [
            {
                "encoder": encoder,
                "mean": plain(float(found.mean()[e])),
                "sites": {t: s.name for t, s in zip(found.targets, found.sites[e], strict=True)},
                "auc": {
                    target: with_interval(float(found.auc[e, k]), right[k], wrong[k])
                    for k, target in enumerate(found.targets)
                },
            }
            for e, encoder in enumerate(found.encoders)
        ]
    }


def with_interval(auc: float, right: int, wrong: int) -> dict[str, float | None]:
    """An AUC with its 95 % interval.

    Hanley and McNeil, "The meaning and use of the area under a ROC curve", Radiology 143, 1982:
    the standard error follows from the AUC and the sizes of both classes. It supposes a shape of
    the scores, so that 95 % is about right and not exact.

    Args:
        auc: The AUC; NaN where it isn't defined.
        right: Queries answered correctly.
        wrong: The others.
    """
    if math.isnan(auc) or not right or not wrong:
        return {"value": plain(auc), "lower": None, "upper": None}
    both_right, both_wrong = auc / (2 - auc), 2 * auc**2 / (1 + auc)
    variance = (
        auc * (1 - auc) + (right - 1) * (both_right - auc**2) + (wrong - 1) * (both_wrong - auc**2)
    ) / (right * wrong)
    half = _Z * math.sqrt(max(variance, 0.0))
    return {"value": auc, "lower": max(0.0, auc - half), "upper": min(1.0, auc + half)}


def ablation_part(scene: Scene) -> dict[str, Any]:
    """The ways to select a layer, for every encoder."""
    rows = []
    for store in scene.stores:
        dim, sites = scene.options.dim, candidate_sites(store, poolings=("last",))
        geometry = survey(store, scene.train, sites=sites, dim=dim, progress=scene.progress)
        grid = search(
            store,
            scene.train,
            sites=sites,
            dims=(dim,),
            seed=scene.options.seed,
            progress=scene.progress,
        )
        found = ablation(geometry, grid, dim=dim)
        rows.append({"encoder": store.provenance.encoder, **found.to_dict()})
    return {"encoders": rows}
