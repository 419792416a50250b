"""The study itself: total cost and time of routers and the best single target at several lam."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import final

import numpy as np
from numpy.typing import NDArray

from prefill_router.errors import ConfigError
from prefill_router.evaluation import (
    Estimate,
    Estimates,
    PerResample,
    Weights,
    chunks,
    divide,
    ones,
)
from prefill_router.policy import check_lam
from prefill_router.progress import Progress, SilentProgress
from prefill_router.studies.end_to_end.contender import ChargedPlane, Contender, ContenderUse
from prefill_router.studies.end_to_end.result import EndToEndPoint, EndToEndStudy, alone

LAMS = (1.0, 0.5)
"""The paper's two operating points."""
_REASONS = {
    "seconds": "no speed or measured time of the targets' answers is known",
    "routing": "the routing latency isn't known",
    "cost": "no observed cost is known; add prices and token counts, or recorded costs",
    "area": "the single targets' costs or accuracies can't be normalised",
    "accuracy": "no answer has a label",
}
Key = tuple[str, ...]
Table = dict[Key, PerResample]


def study_end_to_end(
    contenders: Sequence[Contender],
    best: str,
    *,
    charges: Mapping[str, str] | None = None,
    timing: str = "",
    lams: Sequence[float] = LAMS,
    resamples: int = 1000,
    seed: int = 0,
    progress: Progress | None = None,
) -> EndToEndStudy:
    """Compare total cost, latency and accuracy, targets and encoders included.

    Args:
        contenders: The router, and others that it is compared with; all on the same queries and
            targets, in the same order.
        best: The single target that they are compared with; choose it on other queries.
        charges: The price of each router's encoder, in words.
        timing: The source of the answers' durations, in words.
        lams: The settings of lam.
        resamples: Bootstrap resamples of the queries; 0 for no intervals.
        seed: Random seed of the resampling.
        progress: Reports the progress of the work.

    Raises:
        ConfigError: Names repeat, the queries or targets differ, or an option is invalid.
    """
    _check(contenders, best, lams)
    scene = _StudyContext(
        [_Setting.of(contenders, best, lam) for lam in lams],
        [ChargedPlane.of(c) for c in contenders],
    )
    queries = len(contenders[0].trial)
    waits = _waits(contenders, resamples, seed)
    point = scene.numbers(ones(queries), {name: wait[:1] for name, wait in waits.items()})
    drawn: dict[Key, list[NDArray[np.float64]]] = {key: [] for key in point}
    width = max(plane.scorer.width for plane in scene.planes)
    with (progress or SilentProgress()).task("bootstrap", total=float(resamples)) as advance:
        done = 1
        for weights in chunks(queries, count=resamples, seed=seed, width=width):
            part = {name: wait[done : done + len(weights)] for name, wait in waits.items()}
            done += len(weights)
            for key, value in scene.numbers(weights, part).items():
                drawn[key].append(value)
            advance(float(len(weights)))
    found = {
        key: Estimate.of(
            float(value[0]), np.concatenate([np.zeros(0), *drawn[key]]), reason=_reason(key)
        )
        for key, value in point.items()
    }
    names = [contender.name for contender in contenders]
    return EndToEndStudy(
        queries=queries,
        best=best,
        points=tuple(_point(setting, i, found) for i, setting in enumerate(scene.settings)),
        areas={name: _under(found, "area", name) for name in names},
        area_difference=_under(found, "difference"),
        latencies={contender.name: contender.latency for contender in contenders},
        charges=dict(charges or {}),
        timing=timing,
        resamples=resamples,
        seed=seed,
    )


def _waits(
    contenders: Sequence[Contender], resamples: int, seed: int
) -> dict[str, NDArray[np.float64]]:
    """The mean latency of a decision, as measured and in each resample of the measurements."""
    waits = {}
    for one in contenders:
        if one.latency is None:
            waits[one.name] = np.full(1 + resamples, np.nan)
        else:
            drawn = one.latency.means(resamples=resamples, seed=seed)
            waits[one.name] = np.concatenate([[one.latency.mean], drawn])
    return waits


@final
@dataclass(frozen=True, eq=False)
class _Setting:
    lam: float
    uses: dict[str, ContenderUse]
    targets: tuple[str, ...]

    @classmethod
    def of(cls, contenders: Sequence[Contender], best: str, lam: float) -> "_Setting":
        uses = {contender.name: contender.at(lam) for contender in contenders}
        first = contenders[0]
        return cls(lam, {**uses, alone(best): first.always(best)}, first.trial.targets)


@final
@dataclass(frozen=True, eq=False)
class _StudyContext:
    settings: list[_Setting]
    planes: list[ChargedPlane]

    def numbers(self, weights: Weights, waits: Mapping[str, PerResample]) -> Table:
        table: Table = {}
        weights = weights * np.all([p.contender.trial.compared for p in self.planes], axis=0)
        nothing = np.zeros(len(weights))  # a single target needs no decision
        for i, setting in enumerate(self.settings):
            of = {
                name: use.numbers(weights, waits.get(name, nothing))
                for name, use in setting.uses.items()
            }
            first = next(iter(of.values()))
            for name, numbers in of.items():
                table |= {("use", str(i), name, n): value for n, value in numbers.items()}
                if numbers is not first:
                    held = _against(first, numbers)
                    table |= {("against", str(i), name, n): v for n, v in held.items()}
        areas = {plane.contender.name: plane.areas(weights) for plane in self.planes}
        for name, values in areas.items():
            table |= {("area", name, n): value for n, value in values.items()}
        if len(areas) > 1:
            one, other = list(areas.values())[:2]
            table |= {("difference", n): value - other[n] for n, value in one.items()}
        return table


def _against(
    one: Mapping[str, PerResample], other: Mapping[str, PerResample]
) -> dict[str, PerResample]:
    return {
        "savings": 1 - divide(one["total_cost"], other["total_cost"]),
        "accuracy_gain": one["accuracy"] - other["accuracy"],
        "cost_difference": one["total_cost"] - other["total_cost"],
        "seconds_difference": one["total_seconds"] - other["total_seconds"],
    }


def _check(contenders: Sequence[Contender], best: str, lams: Sequence[float]) -> None:
    if not contenders or not lams:
        raise ConfigError("there is nothing to study; name a router and a lam")
    first = contenders[0].trial
    for contender in contenders:
        same = (contender.trial.query_ids, contender.trial.targets)
        if same != (first.query_ids, first.targets):
            raise ConfigError(
                f"{contender.name} and {contenders[0].name} must be judged on the same queries and "
                "targets, in the same order"
            )
    if best not in first.targets:
        raise ConfigError(f"there is no target {best!r}; there are {list(first.targets)}")
    names = [*(contender.name for contender in contenders), alone(best)]
    if len(set(names)) < len(names):
        raise ConfigError(f"the names {names} repeat; give each router a name of its own")
    for lam in lams:
        check_lam(lam)


def _reason(key: Key) -> str:
    number = key[-1]
    if key[0] in ("area", "difference"):
        return _REASONS["area"]
    if number in ("routing_seconds", "routing_share"):
        return _REASONS["routing"]
    for part in ("seconds", "accuracy"):
        if part in number:
            return _REASONS[part]
    return _REASONS["cost"]


def _under(found: Mapping[Key, Estimate], *prefix: str) -> Estimates:
    """The numbers whose keys begin with the prefix, by the rest of the key."""
    return {key[-1]: one for key, one in found.items() if key[:-1] == prefix}


def _point(setting: _Setting, place: int, found: Mapping[Key, Estimate]) -> EndToEndPoint:
    names = list(setting.uses)
    return EndToEndPoint(
        lam=setting.lam,
        systems={name: _under(found, "use", str(place), name) for name in names},
        against={name: _under(found, "against", str(place), name) for name in names[1:]},
        shares={
            name: dict(zip(setting.targets, use.shares.tolist(), strict=True))
            for name, use in setting.uses.items()
        },
    )
