"""What a target that joins a router needs in labels: each of MMLU-Pro's 14 in turn.

    python -m benchmarks.add_target --routers FOLDER [--store FOLDER ...]

One router is fitted for all targets and one without each of them (kept in FOLDER). The target left
out is then added with 50 to 500 labels, and judged on the test queries. The
baseline is the mean of the others' log-odds, which needs no label; the full head is that of the
router that was fitted on all of its labels. The results are the share of the way from one to the
other, in the mean over targets of AUC and of choice AUC (against the 13 others), and the Brier
score above the full head's. Beside the chosen questions
there are random ones, and with these a ridge regression on the others' log-odds, UniRoute's
clusters and the nearest neighbours; the last two get the best of several sizes, by the test
queries.
"""

import argparse
import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks._system import machine
from prefill_router import files
from prefill_router.activations import ActivationStore
from prefill_router.data import RoutingDataset, read_dataset, split
from prefill_router.fitting import (
    FitConfig,
    TargetAddition,
    known_answers,
    learn,
    recipe_from_dict,
)
from prefill_router.policy import Predictions
from prefill_router.progress import BarProgress
from prefill_router.reporting import BLUE, QUIET, new_figure, style, write_figure
from prefill_router.router import Router, head_inputs
from prefill_router.statistics import auc_by_target, log_odds, sigmoid

RESULT = Path(__file__).parent / "results" / "add_target.json"
DATA = Path("../shared/data/mmlu_pro")
LABELS = (50, 100, 200, 500)
DRAWS = 10
CLUSTERS, NEIGHBOURS = (5, 10, 20, 40), (5, 10, 25, 50)
_SURE = 0.01
Table = NDArray[np.float64]


def _joint(encoder: str, sites: Sequence[str]) -> dict[str, Any]:
    return {"kind": "joint", "encoders": [encoder], "sites": {encoder: list(sites)}, "dim": 200}


def _neighbours(encoder: str, site: str) -> dict[str, Any]:
    weighted = {"kernel": "exponential", "smoothing": 3.0, "statistics": ["weighted share"]}
    where = {"kind": "neighbours", "encoder": encoder, "site": site, "standardise": True}
    return where | weighted


RECIPE = {
    "features": [
        _joint("smollm2", ("mean.16", "mean.18", "mean.20")),
        _joint("minilm", ("mean.3", "mean.4", "mean.5", "mean.6")),
        _neighbours("smollm2", "mean.18"),
        _neighbours("minilm", "mean.4"),
    ],
    "predictor": {"kind": "unified_multitask", "seeds": 4, "pairs": 0.5},
    "shrinkage": False,
    "operating_points": False,
}


class World:
    """One target left out: its router, the states as features, and all labels."""

    def __init__(
        self,
        name: str,
        router: Router,
        full: Predictions,
        data: RoutingDataset,
        stores: Sequence[ActivationStore],
    ) -> None:
        self.name, self.router, self.data = name, router, data
        self.train, self.test = (data.select(router.split[part]) for part in ("train", "test"))
        (self.near, tokens), (self.far, _) = (
            router.read(part, stores=stores) for part in (self.train, self.test)
        )
        self.fitted, self.others = (
            router.predictor.correctness(features) for features in (self.near, self.far)
        )
        rows, unknown = self.train.select(targets=router.pool.names), np.full(len(tokens), np.nan)
        self.addition = TargetAddition(router, rows, self.fitted, tokens, unknown)
        self.cells: dict[int, tuple[NDArray[np.int64], NDArray[np.int64]]] = {}
        column = data.pool.names.index(name)
        self.labels, self.truth = self.train.correct[:, column], self.test.correct[:, column]
        self.truths = np.delete(self.test.correct, column, axis=1)
        full_others = np.delete(full.correctness, column, axis=1)
        self.full_head = self.judge(full.correctness[:, column], full_others)
        self.baseline = self.judge(sigmoid(head_inputs(self.others)[:, 1]))

    def judge(self, chances: Table, others: Table | None = None) -> list[float]:
        """AUC, mean choice AUC against the others, and the Brier score."""
        odds = log_odds(np.clip(chances, _SURE, 1 - _SURE))
        beside = log_odds(np.clip(self.others if others is None else others, _SURE, 1 - _SURE))
        apart = np.where(self.truths != self.truth[:, None], self.truth[:, None], np.nan)
        apart[np.isnan(self.truths)] = np.nan
        choice = float(np.nanmean(auc_by_target(odds[:, None] - beside, apart)))
        auc = float(auc_by_target(odds[:, None], self.truth[:, None])[0])
        return [auc, choice, float(np.nanmean(np.square(chances - self.truth)))]

    def ours(self, labels: int, draw: int, *, chosen: bool) -> list[float]:
        """The package's own code, choosing among half of the train rows, drawn at random."""
        some = self.rows(len(self.labels) // 2, draw) if chosen else self.rows(labels, draw)
        new, ask = self.data.pool.select([self.name]), known_answers(self.data, self.name)
        among = [self.train.query_ids[row] for row in some.tolist()]
        found = self.addition.add(new, ask, labels=labels, candidates=among, caution=0.0)
        assert found.router.changes is not None
        return self.judge(found.router.changes.correctness(self.others)[:, -1])

    def rows(self, labels: int, draw: int) -> NDArray[np.int64]:
        """The random questions, the same for all methods."""
        _, first = np.unique(self.train.prompt_keys, return_index=True)
        there = first[~np.isnan(self.labels[first])]
        return np.random.default_rng([draw, labels]).permutation(there)[:labels]

    def ridge(self, rows: NDArray[np.int64]) -> list[float]:
        """Ridge on the others' log-odds; its strength by leave-one-out."""
        from sklearn.linear_model import RidgeCV

        near, far = (log_odds(np.clip(p, 0.02, 0.98)) for p in (self.fitted, self.others))
        found = RidgeCV(alphas=np.logspace(0, 4, 9)).fit(near[rows], self.labels[rows])
        return self.judge(np.clip(found.predict(far), _SURE, 1 - _SURE))

    def nearest(self, rows: NDArray[np.int64], count: int) -> list[float]:
        """The mean label of the nearest labelled questions."""
        near, far = self.states(self.near[rows]), self.states(self.far)
        order = np.argsort(-(far @ near.T), axis=1)[:, :count]
        return self.judge(self.labels[rows][order].mean(axis=1))

    def clusters(self, rows: NDArray[np.int64], count: int) -> list[float]:
        """UniRoute: the target's share of right answers in the question's cluster."""
        from sklearn.cluster import KMeans

        if count not in self.cells:
            near, far = (self.states(part) for part in (self.near, self.far))
            found = KMeans(count, n_init=1, random_state=0).fit(near)
            self.cells[count] = found.predict(near), found.predict(far)
        own, mean = self.cells[count][0][rows], self.labels[rows].mean()
        total = np.bincount(own, minlength=count)
        right = np.bincount(own, weights=self.labels[rows], minlength=count)
        return self.judge(((right + mean) / (total + 1))[self.cells[count][1]])

    def states(self, features: NDArray[np.float32]) -> NDArray[np.float32]:
        """The components of both encoders' states, of length 1."""
        width = sum(family.width for family in self.router.features.families[:2])
        kept = features[:, :width]
        return np.asarray(kept / np.linalg.norm(kept, axis=1, keepdims=True))


def measure(world: World) -> dict[str, Any]:
    """Every method at every number of labels, the mean over draws."""
    methods: dict[str, Callable[[int, int], list[float]]] = {
        "chosen": lambda n, d: world.ours(n, d, chosen=True),
        "random": lambda n, d: world.ours(n, d, chosen=False),
        "ridge": lambda n, d: world.ridge(world.rows(n, d)),
        **{f"clusters {k}": _of(world.clusters, world, k) for k in CLUSTERS},
        **{f"neighbours {k}": _of(world.nearest, world, k) for k in NEIGHBOURS},
    }
    return {
        "target": world.name,
        "zero": world.baseline,
        "one": world.full_head,
        **{
            name: [np.mean([method(n, d) for d in range(DRAWS)], axis=0).tolist() for n in LABELS]
            for name, method in methods.items()
        },
    }


def _of(
    method: Callable[[NDArray[np.int64], int], list[float]], world: World, size: int
) -> Callable[[int, int], list[float]]:
    return lambda labels, draw: method(world.rows(labels, draw), size)


def summary(targets: Sequence[Mapping[str, Any]]) -> dict[str, list[list[float]]]:
    """For each method and number of labels: both shares of the way, and the Brier score above."""
    baseline, full_head = (np.mean([t[name] for t in targets], axis=0) for name in ("zero", "one"))
    methods = {}
    for name in targets[0]:
        if name not in ("target", "zero", "one"):
            mean = np.mean([t[name] for t in targets], axis=0)
            gone = (mean[:, :2] - baseline[:2]) / (full_head[:2] - baseline[:2])
            above = mean[:, 2:] - full_head[2]
            methods[name] = np.hstack([gone, above]).tolist()
    for kind in ("clusters", "neighbours"):
        sizes = [rows for name, rows in methods.items() if name.startswith(kind + " ")]
        methods[kind] = [max((rows[i] for rows in sizes), key=lambda row: row[0]) for i in range(4)]
    return {name: rows for name, rows in methods.items() if " " not in name}


def table(methods: Mapping[str, list[list[float]]]) -> str:
    """The shares of the way in per cent, AUC / choice AUC, and the Brier score above in 0.001."""
    lines = ["labels".ljust(14) + "".join(f"{n:>22}" for n in LABELS)]
    for name, rows in methods.items():
        cells = (f"{100 * a:7.0f} /{100 * c:5.0f} {1000 * b:+7.1f}" for a, c, b in rows)
        lines.append(name.ljust(14) + "".join(cells))
    return "\n".join(lines)


def draw(methods: Mapping[str, list[list[float]]], path: Path) -> None:
    """Draw both shares by labels; write the data."""
    figure = new_figure(9.0, 3.6)
    for column, axes in enumerate(figure.subplots(1, 2)):
        title = ("AUC", "choice AUC")[column]
        for name, rows in methods.items():
            colour = BLUE if name == "chosen" else QUIET
            shares = [100 * row[column] for row in rows]
            axes.plot(LABELS, shares, marker="o", ms=3, color=colour, lw=1)
            axes.annotate(name, (LABELS[-1], shares[-1]), fontsize=7)
        axes.set_xscale("log")
        axes.set_xticks(LABELS, [str(count) for count in LABELS])
        axes.minorticks_off()
        axes.set_ylim(-60, 100)
        style(axes, title=f"% of the way to the full head, {title}", x="labels")
    columns = ("labels", "auc", "choice_auc", "brier_above")
    table_rows = [
        {"method": name, **dict(zip(columns, (n, *row), strict=True))}
        for name, each in methods.items()
        for n, row in zip(LABELS, each, strict=True)
    ]
    write_figure(figure, path, table_rows)


def main() -> None:
    """Fit what isn't fitted yet, measure what isn't measured yet, print the table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--routers", type=Path, required=True)
    parser.add_argument("--store", type=Path, action="append", default=[])
    options = parser.parse_args()
    data = read_dataset(DATA)
    parts, stores = split(data, seed=0), [ActivationStore.open(path) for path in options.store]
    config = FitConfig(recipe=recipe_from_dict(RECIPE))

    def router(number: int | None) -> Router:
        place = options.routers / ("full" if number is None else f"without-{number}")
        if not place.exists():
            names = [name for k, name in enumerate(data.pool.names) if k != number]
            part = data.select(targets=names)
            learn(part, stores, parts, config=config, progress=BarProgress()).save(place)
        return Router.load(place)

    results = json.loads(RESULT.read_text())["targets"] if RESULT.exists() else []
    full = router(None).predict(data.select(parts["test"]), stores=stores)
    for number, name in enumerate(data.pool.names):
        if name not in [result["target"] for result in results]:
            results.append(measure(World(name, router(number), full, data, stores)))
            methods = summary(results)
            files.write_json(RESULT, {"targets": results, "summary": methods, "machine": machine()})
            draw(methods, RESULT.with_suffix(""))
            print(f"{len(results)} targets\n{table(methods)}", flush=True)


if __name__ == "__main__":
    main()
