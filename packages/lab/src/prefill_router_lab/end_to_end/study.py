"""Total cost and time of routers and the best single target at several lam, and their summary."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, final

import numpy as np
from numpy.typing import NDArray

from prefill_router.errors import ConfigError
from prefill_router.evaluation import (
    LEVEL,
    NOTHING,
    PER,
    UNKNOWN,
    Estimate,
    Estimates,
    PerResample,
    Weights,
    chunks,
    digits,
    divide,
    estimates_to_dict,
    ones,
    worded,
)
from prefill_router.money import dollars
from prefill_router.plotting import Axes, Figure
from prefill_router.progress import Progress, SilentProgress
from prefill_router.reporting import (
    INK,
    ORANGE,
    SKY,
    Cell,
    Note,
    Report,
    ReportFigure,
    Row,
    Rows,
    Section,
    Table,
    flat,
    legend_below,
    new_figure,
    style,
)
from prefill_router_lab.end_to_end.contender import (
    ChargedPlane,
    Contender,
    ContenderUse,
    Latency,
)
from prefill_router_lab.end_to_end.options import EndToEndOptions

ROUTER = "router"
Kind = Literal["share", "usd", "seconds"]
NUMBERS: Mapping[str, tuple[str, Kind, str]] = {
    "accuracy": ("Accuracy", "share", "The mean label of the answers."),
    "target_cost": ("Targets, $ per query", "usd", "The observed cost of the targets' answers."),
    "encoder_cost": ("Encoder, $ per query", "usd", "The cost of encoding the query."),
    "total_cost": ("Total, $ per query", "usd", "Targets and encoder together."),
    "encoder_share": (
        "Encoder's share of the cost",
        "share",
        "The encoder's part of the total cost.",
    ),
    "answer_seconds": (
        "Target completion, s",
        "seconds",
        "From the request to the target until the end of its answer, reasoning included.",
    ),
    "routing_seconds": ("Routing, s", "seconds", "The decision, before any target is called."),
    "total_seconds": ("Until the answer, s", "seconds", "Routing and completion together."),
    "routing_share": ("Routing's share of the time", "share", "Routing's part of the total time."),
}
"""The metrics of a system at one setting, by name: heading, unit, meaning."""


@final
@dataclass(frozen=True, eq=False, kw_only=True)
class EndToEndPoint:
    """All systems at one setting of the routers.

    Attributes:
        lam: The setting; 1 is argmax accuracy.
        systems: The metrics (`NUMBERS`) by system: `router` first, the best single target last.
        against: The router compared with each other system: `savings` (the share of the other's
            total cost that the router saves), `accuracy_gain`, `cost_difference` (US dollars per
            query) and `seconds_difference`, router minus other, paired.
        shares: The share of queries that each target answers, by system.
    """

    lam: float
    systems: Mapping[str, Estimates]
    against: Mapping[str, Estimates]
    shares: Mapping[str, Mapping[str, float]]

    @property
    def title(self) -> str:
        """The name of the setting in tables."""
        return "argmax accuracy" if self.lam == 1 else f"lam = {self.lam:g}"


@final
@dataclass(frozen=True, eq=False, kw_only=True)
class EndToEndStudy:
    """Total cost and latency of routing.

    Attributes:
        queries: How many queries were judged.
        best: The single target that everything is compared with.
        points: The settings, argmax first.
        areas: P-AUCCC of each router before and after its encoder is charged (`ChargedPlane`).
        area_difference: Router minus the other router, paired; empty without another.
        latencies: The latency of each router, where known.
        charges: The price of each router's encoder, in words.
        timing: The source of the answers' durations, in words; empty where they are unknown.
        resamples: How many resamples the intervals come from.
        seed: Random seed of the resamples.
    """

    queries: int
    best: str
    points: tuple[EndToEndPoint, ...]
    areas: Mapping[str, Estimates]
    area_difference: Estimates
    latencies: Mapping[str, Latency | None]
    charges: Mapping[str, str]
    timing: str
    resamples: int
    seed: int

    @property
    def routers(self) -> tuple[str, ...]:
        """The routers' names, the studied one first."""
        return tuple(self.areas)

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON; None where a number isn't defined."""
        return {
            "queries": self.queries,
            "best_single": self.best,
            "points": [_point_to_dict(point) for point in self.points],
            "p_auccc": {name: estimates_to_dict(values) for name, values in self.areas.items()},
            "p_auccc_difference": estimates_to_dict(self.area_difference),
            "latency": {
                name: None
                if latency is None
                else latency.to_dict(resamples=self.resamples, seed=self.seed)
                for name, latency in self.latencies.items()
            },
            "charges": dict(self.charges),
            "timing": self.timing,
            "bootstrap": {
                "resamples": self.resamples,
                "seed": self.seed,
                "level": LEVEL,
                "unit": "query",
                "interval": "percentile",
            },
        }

    def report(self, *, title: str, facts: Mapping[str, str]) -> Report:
        """What the study says: its page, tables and figures.

        Args:
            self: The study.
            title: Title of the page.
            facts: Facts about the data, by name.
        """
        area = "P-AUCCC with the encoder charged"
        return Report(
            name=NAME,
            title=title,
            summary=summary(self),
            facts={
                **facts,
                "best single": self.best,
                **{f"encoder of {name}": text for name, text in self.charges.items()},
                "answers' time": self.timing or "unknown",
            },
            parts=[
                ReportFigure("overhead", draw(self), rows(self), _CAPTION),
                Section("What it costs", [Note(_ABOUT_COST), _tabulate_costs(self)]),
                Section(
                    "How long it takes",
                    [Note(_ABOUT_TIME), _tabulate_times(self), *_tabulate_decisions(self)],
                ),
                Section(area, [Note(_ABOUT_AREA), _tabulate_areas(self)]),
                Section("Who answers", [Note(_ABOUT_SHARES), _tabulate_shares(self)]),
                Section("What the numbers mean", [{h: m for h, _, m in NUMBERS.values()}]),
            ],
            numbers=self.to_dict(),
            tables=tables(self),
            short=_tabulate_summary(self),
        )


def alone(target: str) -> str:
    """The name in tables of using a single target for all queries."""
    return f"{target} alone"


def _point_to_dict(point: EndToEndPoint) -> dict[str, Any]:
    return {
        "lam": point.lam,
        "systems": {name: estimates_to_dict(values) for name, values in point.systems.items()},
        "against": {name: estimates_to_dict(values) for name, values in point.against.items()},
        "shares": {name: dict(values) for name, values in point.shares.items()},
    }


_SMALL = 5e-4
"""Areas that differ by less are equal to three digits."""


def summary(result: EndToEndStudy) -> list[str]:
    """The result in sentences, for readers who don't know the paper."""
    sentences = [_word_overhead(result, point) for point in result.points[:1]]
    sentences += [_word_savings(result, point) for point in result.points]
    return [
        *sentences,
        *_word_wait(result.points[0], result.best),
        _word_area(result),
        *_word_order(result),
    ]


def _word_overhead(result: EndToEndStudy, point: EndToEndPoint) -> str:
    numbers = point.systems[ROUTER]
    share, time = numbers["encoder_share"], numbers["routing_share"]
    text = (
        f"Before a router chooses, its encoder reads the query ({result.charges[ROUTER]}). "
        if ROUTER in result.charges
        else "Before a router chooses, its encoder reads the query. "
    )
    cost = (
        f"That is {percent(share)} of the total cost of a query"
        if math.isfinite(share.value)
        else "Its share of the cost is unknown, since the targets' costs are unknown"
    )
    wait = (
        f"the decision takes {percent(time)} of the time until the answer is complete"
        if math.isfinite(time.value)
        else "the decision's share of the time is unknown"
    )
    return f"{text}{cost}, and {wait} ({point.title}, {result.queries:,} queries)."


def _word_savings(result: EndToEndStudy, point: EndToEndPoint) -> str:
    parts = []
    for name, numbers in point.against.items():
        savings, gain = numbers["savings"], numbers["accuracy_gain"]
        if not math.isfinite(savings.value):
            parts.append(f"{name}: {points(gain)} in accuracy, costs unknown")
            continue
        cheaper = "less" if savings.value >= 0 else "more"
        spread = _word_interval(savings, sign=1 if savings.value >= 0 else -1)
        parts.append(
            f"{abs(100 * savings.value):.1f} % {cheaper} than {name}{spread}, "
            f"at {points(gain)} in accuracy"
        )
    total = result.queries * point.systems[ROUTER]["total_cost"].value
    is_known = math.isfinite(total)
    cost = (
        f"{dollars(total)} for all {result.queries:,} queries" if is_known else "an unknown amount"
    )
    start = f"At {point.title} the router costs {cost}, its encoder included"
    return f"{start}: {'; '.join(parts)}."


def _word_wait(point: EndToEndPoint, best: str) -> list[str]:
    own, single = (
        point.systems[ROUTER]["total_seconds"],
        point.systems[alone(best)]["total_seconds"],
    )
    if not (math.isfinite(own.value) and math.isfinite(single.value)):
        return []
    return [
        f"An answer is complete after {own.value:.3g} s on average, routing included; with "
        f"{alone(best)} after {single.value:.3g} s."
    ]


def _word_area(result: EndToEndStudy) -> str:
    areas = result.areas[ROUTER]
    before, charged, moved = (areas[n].value for n in ("p_auccc", "charged", "translated"))
    if not math.isfinite(before):
        return f"P-AUCCC isn't defined here: {areas['p_auccc'].reason}."
    change = charged - before
    how = (
        "it stays the same to three digits"
        if abs(change) < _SMALL
        else f"it becomes {charged:.4f} ({change:+.4f})"
    )
    return (
        f"P-AUCCC, the area under the normalised accuracy-cost curve, is {before:.4f} with the "
        f"targets' costs alone. With the encoder charged at every setting, and not to single "
        f"targets, {how}; if the anchors also move by the encoder's cost, as in the paper, it is "
        f"{moved:.4f} with inverse cost and unchanged with linear cost."
    )


def _word_order(result: EndToEndStudy) -> list[str]:
    if not result.area_difference:
        return []
    before, after = (result.area_difference[name].value for name in ("p_auccc", "charged"))
    if not (math.isfinite(before) and math.isfinite(after)):
        return []
    first, second = result.routers[:2]
    order = (
        "The order of the two routers by P-AUCCC stays"
        if before * after > 0
        else "Charging the encoders reverses the order of the two routers by P-AUCCC"
    )
    return [f"{order}: {first} minus {second} is {before:+.4f} before and {after:+.4f} after."]


def number(name: str, estimate: Estimate) -> str:
    """A metric in its unit."""
    if not math.isfinite(estimate.value):
        return UNKNOWN if NUMBERS[name][1] == "usd" else NOTHING
    match NUMBERS[name][1]:
        case "share":
            digits = 1 if name == "accuracy" else 2
            return f"{100 * estimate.value:.{digits}f} %"
        case "usd":
            return dollars(estimate.value)
        case "seconds":
            return f"{estimate.value:.3g}"


def percent(estimate: Estimate) -> str:
    """A share in percent, with two decimals."""
    return f"{100 * estimate.value:.2f} %"


def points(estimate: Estimate) -> str:
    """A difference of accuracies, with its interval."""
    low, high = estimate.lower, estimate.upper
    text = worded(estimate.value, "points")
    if math.isfinite(low) and math.isfinite(high):
        text += f" ({100 * low:+.1f} to {100 * high:+.1f})"
    return text


def _word_interval(estimate: Estimate, *, sign: int) -> str:
    ends = sorted(100 * sign * end for end in (estimate.lower, estimate.upper))
    return f" ({ends[0]:.1f} to {ends[1]:.1f})" if all(map(math.isfinite, ends)) else ""


_REASONS = {
    "seconds": "no speed or measured time of the targets' answers is known",
    "routing": "the routing latency isn't known",
    "cost": "no observed cost is known; add prices and token counts, or recorded costs",
    "area": "the single targets' costs or accuracies can't be normalised",
    "accuracy": "no answer has a label",
}
Key = tuple[str, ...]
NumberTable = dict[Key, PerResample]


def study_end_to_end(
    contenders: Sequence[Contender],
    best: str,
    options: EndToEndOptions | None = None,
    *,
    charges: Mapping[str, str] | None = None,
    timing: str = "",
    progress: Progress | None = None,
) -> EndToEndStudy:
    """Compare total cost, latency and accuracy, targets and encoders included.

    Args:
        contenders: The router, and others that it is compared with; all on the same queries and
            targets, in the same order.
        best: The single target that they are compared with; choose it on other queries.
        options: The settings of lam, and the resampling of the queries.
        charges: The price of each router's encoder, in words.
        timing: The source of the answers' durations, in words.
        progress: Reports the progress of the work.

    Raises:
        ConfigError: Names repeat, or the queries or targets differ.
    """
    options = options or EndToEndOptions()
    _check_contenders(contenders, best)
    context = _StudyContext(
        [_Setting.of(contenders, best, lam) for lam in options.lam],
        [ChargedPlane.of(c) for c in contenders],
    )
    queries = len(contenders[0].trial)
    waits = _resample_waits(contenders, options)
    estimates = _estimate_numbers(context, queries, waits, options, progress or SilentProgress())
    names = [contender.name for contender in contenders]
    return EndToEndStudy(
        queries=queries,
        best=best,
        points=tuple(
            _make_point(setting, i, estimates) for i, setting in enumerate(context.settings)
        ),
        areas={name: _select_estimates(estimates, "area", name) for name in names},
        area_difference=_select_estimates(estimates, "difference"),
        latencies={contender.name: contender.latency for contender in contenders},
        charges=dict(charges or {}),
        timing=timing,
        resamples=options.resamples,
        seed=options.seed,
    )


def _resample_waits(
    contenders: Sequence[Contender], options: EndToEndOptions
) -> dict[str, NDArray[np.float64]]:
    """The mean latency of a decision, as measured and in each resample of the measurements."""
    waits = {}
    for contender in contenders:
        if contender.latency is None:
            waits[contender.name] = np.full(1 + options.resamples, np.nan)
        else:
            means = contender.latency.means(resamples=options.resamples, seed=options.seed)
            waits[contender.name] = np.concatenate([[contender.latency.mean], means])
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

    def numbers(self, weights: Weights, waits: Mapping[str, PerResample]) -> NumberTable:
        table: NumberTable = {}
        weights = weights * np.all([p.contender.trial.compared for p in self.planes], axis=0)
        nothing = np.zeros(len(weights))  # a single target needs no decision
        for i, setting in enumerate(self.settings):
            numbers_by_system = {
                name: use.numbers(weights, waits.get(name, nothing))
                for name, use in setting.uses.items()
            }
            first = next(iter(numbers_by_system.values()))
            for name, numbers in numbers_by_system.items():
                table |= {("use", str(i), name, n): value for n, value in numbers.items()}
                if numbers is not first:
                    comparison = _compare(first, numbers)
                    table |= {("against", str(i), name, n): v for n, v in comparison.items()}
        areas = {plane.contender.name: plane.areas(weights) for plane in self.planes}
        for name, values in areas.items():
            table |= {("area", name, n): value for n, value in values.items()}
        if len(areas) > 1:
            first_areas, second_areas = list(areas.values())[:2]
            table |= {
                ("difference", n): value - second_areas[n] for n, value in first_areas.items()
            }
        return table


def _estimate_numbers(
    context: _StudyContext,
    queries: int,
    waits: Mapping[str, NDArray[np.float64]],
    options: EndToEndOptions,
    progress: Progress,
) -> dict[Key, Estimate]:
    """Each number with its interval over resampled queries and resampled measurements."""
    point = context.numbers(ones(queries), {name: wait[:1] for name, wait in waits.items()})
    resampled: dict[Key, list[NDArray[np.float64]]] = {key: [np.zeros(0)] for key in point}
    width = max(plane.scorer.width for plane in context.planes)
    with progress.task("bootstrap", total=float(options.resamples)) as advance:
        start = 1  # the first wait is the measured one
        for weights in chunks(queries, count=options.resamples, seed=options.seed, width=width):
            part = {name: wait[start : start + len(weights)] for name, wait in waits.items()}
            start += len(weights)
            for key, value in context.numbers(weights, part).items():
                resampled[key].append(value)
            advance(float(len(weights)))
    return {
        key: Estimate.of(float(value[0]), np.concatenate(resampled[key]), reason=_find_reason(key))
        for key, value in point.items()
    }


def _compare(
    first: Mapping[str, PerResample], second: Mapping[str, PerResample]
) -> dict[str, PerResample]:
    return {
        "savings": 1 - divide(first["total_cost"], second["total_cost"]),
        "accuracy_gain": first["accuracy"] - second["accuracy"],
        "cost_difference": first["total_cost"] - second["total_cost"],
        "seconds_difference": first["total_seconds"] - second["total_seconds"],
    }


def _check_contenders(contenders: Sequence[Contender], best: str) -> None:
    if not contenders:
        raise ConfigError("there is nothing to study; name a router")
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


def _find_reason(key: Key) -> str:
    number = key[-1]
    if key[0] in ("area", "difference"):
        return _REASONS["area"]
    if number in ("routing_seconds", "routing_share"):
        return _REASONS["routing"]
    for part in ("seconds", "accuracy"):
        if part in number:
            return _REASONS[part]
    return _REASONS["cost"]


def _select_estimates(estimates: Mapping[Key, Estimate], *prefix: str) -> Estimates:
    """The numbers whose keys begin with the prefix, by the rest of the key."""
    return {key[-1]: estimate for key, estimate in estimates.items() if key[:-1] == prefix}


def _make_point(setting: _Setting, place: int, estimates: Mapping[Key, Estimate]) -> EndToEndPoint:
    names = list(setting.uses)
    return EndToEndPoint(
        lam=setting.lam,
        systems={name: _select_estimates(estimates, "use", str(place), name) for name in names},
        against={
            name: _select_estimates(estimates, "against", str(place), name) for name in names[1:]
        },
        shares={
            name: dict(zip(setting.targets, use.shares.tolist(), strict=True))
            for name, use in setting.uses.items()
        },
    )


NAME = "end-to-end"
_CAPTION = (
    "Each bar is the mean over the queries at argmax accuracy, where every query goes to the "
    "target that is most probably right. The orange part is what routing adds: the encoder's cost "
    "on the left, the decision's time on the right."
)
_WAIT = ("routing_seconds", "answer_seconds", "routing_share", "total_cost", "accuracy")
_READINGS = {
    "p_auccc": "targets alone",
    "charged": "encoder charged",
    "translated": "anchors moved as well",
}


_ABOUT_COST = (
    "Totals over all queries; the small print is the 95 % interval over resampled queries. Savings "
    "and gains compare the router with the other system on the same queries."
)
_ABOUT_TIME = (
    "At argmax accuracy. Completion is from the request to the target until its answer ends; "
    "routing comes before it. The share is routing's part of the total time. Systems took turns on "
    "every prompt; the intervals of routing are over the timed prompts and rounds."
)
_ABOUT_AREA = (
    "The encoder costs the same at every setting, so it moves a router's whole curve. If single "
    "targets don't pay for it, the area changes; if the anchors of the plane move with the curve, "
    "linear cost gives the same area and inverse cost nearly the same."
)
_ABOUT_SHARES = "The share of the queries that each target answers at argmax accuracy."


def tables(result: EndToEndStudy) -> dict[str, Rows]:
    """The tables of the study as rows: `systems`, `differences`, `areas`."""
    systems, differences, areas = [], [], []
    for point in result.points:
        for name, numbers in point.systems.items():
            systems.append({"lam": point.lam, "system": name, **flat(numbers)})
        for name, numbers in point.against.items():
            differences.append({"lam": point.lam, "against": name, **flat(numbers)})
    for name, numbers in result.areas.items():
        areas.append({"system": name, **flat(numbers)})
    return {"systems": systems, "differences": differences, "areas": areas}


def _tabulate_costs(result: EndToEndStudy) -> Table:
    """The paper's table of costs at the operating points."""
    names, others = list(result.points[0].systems), list(result.points[0].against)
    head = [
        "Operating point",
        *(f"{name}, total" for name in names),
        *(f"Savings vs. {name}" for name in others),
        *(f"Accuracy gain vs. {name}" for name in others),
    ]
    body: list[Row] = []
    for point in result.points:
        totals = [_scale(point.systems[name]["total_cost"], result.queries) for name in names]
        cells = [_make_cell(total, _format_money) for total in totals]
        cells += [_make_cell(point.against[name]["savings"], _format_percent) for name in others]
        cells += [
            _make_cell(point.against[name]["accuracy_gain"], _format_points) for name in others
        ]
        body.append([point.title, *cells])
    return Table(head, body)


def _tabulate_times(result: EndToEndStudy) -> Table:
    """The paper's table of latencies, at the first operating point."""
    body: list[Row] = [
        [name, *(_make_use_cell(n, numbers[n]) for n in _WAIT)]
        for name, numbers in result.points[0].systems.items()
    ]
    return Table(["Scenario", *(NUMBERS[n][0] for n in _WAIT)], body)


def _tabulate_decisions(result: EndToEndStudy) -> list[Table]:
    body: list[Row] = []
    for name, latency in result.latencies.items():
        if latency is None:
            continue
        rounds = f"{len(latency.seconds) // latency.rounds:,} prompts, {latency.rounds} rounds"
        estimates = latency.estimates(resamples=result.resamples, seed=result.seed)
        cells = [_make_cell(value, _format_milliseconds) for value in estimates.values()]
        body.append([name, rounds if latency.source == "measured" else "given", *cells])
    head = ["Router", "timed", "mean, ms", "median, ms", "95th percentile, ms"]
    return [Table(head, body)] if body else []


def _tabulate_areas(result: EndToEndStudy) -> Table:
    body: list[Row] = []
    for name, numbers in result.areas.items():
        for axis, end in (("inverse", ""), ("linear", "_linear")):
            cells = [
                _make_cell(numbers[f"{reading}{end}"], _format_number) for reading in _READINGS
            ]
            body.append([f"{name}, {axis} cost", *cells])
    return Table(["Router", *_READINGS.values()], body)


def _tabulate_shares(result: EndToEndStudy) -> Table:
    shares = result.points[0].shares
    body = [
        [target, *(f"{100 * shares[name][target]:.1f} %" for name in result.routers)]
        for target in shares[ROUTER]
    ]
    return Table(["Target", *result.routers], body)


def _tabulate_summary(result: EndToEndStudy) -> Table:
    head = ["lam", "system", f"$ per {PER:,}", "encoder", "routing, ms", "answer, s", "accuracy"]
    body = []
    for point in result.points:
        for system, numbers in point.systems.items():
            cells = [
                worded(numbers["total_cost"].value, "usd"),
                number("encoder_share", numbers["encoder_share"]),
                _format_milliseconds(numbers["routing_seconds"].value),
                number("answer_seconds", numbers["answer_seconds"]),
                number("accuracy", numbers["accuracy"]),
            ]
            body.append([f"{point.lam:g}", system, *cells])
    return Table(head, body, right_from=2, unbroken=True)


def _make_use_cell(name: str, estimate: Estimate) -> Cell:
    low, high = (number(name, Estimate(end, end, end)) for end in (estimate.lower, estimate.upper))
    note = "" if NOTHING in (low, high) or low == high else f"{low} to {high}"
    return Cell(number(name, estimate), note=note)


def _make_cell(estimate: Estimate, word: Callable[[float], str]) -> Cell:
    ends = [word(end) for end in (estimate.lower, estimate.upper)]
    return Cell(
        word(estimate.value), note="" if {NOTHING, UNKNOWN} & set(ends) else " to ".join(ends)
    )


def _scale(estimate: Estimate, by: int) -> Estimate:
    return Estimate(
        by * estimate.value,
        by * estimate.lower,
        by * estimate.upper,
        estimate.undefined,
        estimate.reason,
    )


def _format_money(value: float) -> str:
    return dollars(value) if math.isfinite(value) else UNKNOWN


def _format_percent(value: float) -> str:
    return f"{100 * value:.1f} %" if math.isfinite(value) else NOTHING


def _format_points(value: float) -> str:
    return f"{100 * value:+.2f} pp" if math.isfinite(value) else NOTHING


def _format_milliseconds(value: float) -> str:
    return digits(1000 * value, ",.1f")


def _format_number(value: float) -> str:
    return digits(value, ".4f")


_ROOM = 1.35
"""Length of the axis relative to the longest bar, to leave space for the labels."""
_PANELS = (
    ("target_cost", "encoder_cost", PER, f"US dollars per {PER:,} queries", "encoder"),
    ("answer_seconds", "routing_seconds", 1, "seconds until the answer", "decision"),
)


def draw(result: EndToEndStudy) -> Figure:
    """Draw cost and time at the first setting, a bar per system."""
    systems = result.points[0].systems
    figure = new_figure(9.4, 1.9 + 0.5 * len(systems))
    panels = figure.subplots(1, 2, sharey=True)
    for axes, (answer, routing, scale, label, what) in zip(panels, _PANELS, strict=True):
        ends = [
            (scale * numbers[answer].value, scale * numbers[routing].value)
            for numbers in systems.values()
        ]
        _draw_bars(axes, ends, what)
        style(axes, x=label, label_size=9, bars=True)
    panels[0].set_yticks(range(len(systems)), list(systems))
    panels[0].invert_yaxis()
    legend_below(figure, columns=2)
    return figure


def rows(result: EndToEndStudy) -> list[dict[str, Any]]:
    """The data of the figure: means per query, US dollars and seconds."""
    names = [name for answer, routing, *_ in _PANELS for name in (answer, routing)]
    return [
        {"system": system, **{name: numbers[name].value for name in names}}
        for system, numbers in result.points[0].systems.items()
    ]


def _draw_bars(axes: Axes, ends: list[tuple[float, float]], what: str) -> None:
    places = np.arange(len(ends))
    answer, routing = (np.array(part) for part in zip(*ends, strict=True))
    is_known = np.isfinite(answer)
    answer_ends = np.where(is_known, answer, 0)
    axes.barh(places, answer_ends, color=SKY, label="the target's answer", height=0.6)
    routing_parts = np.nan_to_num(routing)
    axes.barh(places, routing_parts, left=answer_ends, color=ORANGE, label="routing", height=0.6)
    for place in range(len(ends)):
        share = routing[place] / (answer[place] + routing[place]) if is_known[place] else np.nan
        text = (
            "  unknown" if not is_known[place] else f"  {100 * share:.2f} % {what}" if share else ""
        )
        axes.text(
            answer_ends[place] + routing_parts[place],
            place,
            text,
            va="center",
            color=INK,
            fontsize=8,
        )
    axes.set_xlim(0, _ROOM * max(float(np.max(answer_ends + routing_parts)), 1e-9))
