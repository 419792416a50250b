"""The page of the study of peers: its tables, its figure, and what they say."""

from collections.abc import Mapping

from prefill_router.evaluation import worded
from prefill_router.plotting import Figure
from prefill_router.reporting import (
    BOLD,
    INK,
    Note,
    Report,
    ReportFigure,
    Row,
    Rows,
    Section,
    Table,
    estimate_cell,
    flat,
    legend_below,
    new_figure,
    significance,
    stroke,
    style,
)
from prefill_router_lab.studies.peers import MIX, PRICE, SHARES, PeerPoint, PeerStudy

NAME = "peers"
_MEANINGS = {
    MIX: "A fixed share of the queries to one target and the rest to another, without reading "
    "them; the best such mix on train rows.",
    PRICE: "What the router predicts that each answer will cost, with each target's accuracy on "
    "train rows in the place of probabilities.",
    "LiteLLM": "The local classifiers of its complexity router. Each tier gets the target that is "
    "best for it on train rows, at every cost: better than an operator could assign by hand.",
    "three steps": "By hand: the cheapest target for simple requests, one halfway in price for "
    "medium ones, the best for complex ones and for reasoning.",
    "cheap unless complex": "By hand: the cheapest target for simple and medium requests, the best "
    "for the others.",
    "cost": "The mean cost of the queries as a share of the best single target's. Between two "
    "settings of a system lie mixes of both.",
    "intervals": "95 %, of paired differences on the same queries; one comparison at a time, "
    "without a correction for their number.",
}


def report_peers(study: PeerStudy, *, title: str, known: Mapping[str, str]) -> Report:
    """The content of the study's report."""
    return Report(
        name=NAME,
        title=title,
        summary=summarise(study),
        known={**known, "best single target": study.best},
        parts=[
            ReportFigure("peers", draw(study), _curve_rows(study), _CAPTION),
            Section("Accuracy at equal cost", [Note(BOLD), _accuracies(study), _gains(study)]),
            Section("Systems of one cost", [_setups(study)]),
            Section("How to read it", [_MEANINGS]),
        ],
        numbers=study.to_dict(),
        tables={"peers": _point_rows(study)},
        short=_accuracies(study),
    )


_CAPTION = (
    "Higher at the same cost is better. The fixed mix needs no router; price alone reads nothing "
    "but prices. A system that isn't above both has learned nothing from what the queries say."
)


def summarise(study: PeerStudy) -> list[str]:
    """The result in a few sentences."""
    alone = worded(study.best_accuracy, "share")
    lines = [f"{study.best} alone is right on {alone} of {study.queries:,} queries."]
    for name, points in study.points.items():
        if name != MIX:
            lines.append(f"{name}: {'; '.join(_word_gain(point) for point in points)}.")
    return lines


def _word_gain(point: PeerPoint) -> str:
    gain = worded(point.over_mix.value, "points", signed=True)
    sure = "" if point.over_mix.lower > 0 or point.over_mix.upper < 0 else ", not significant"
    return f"at {100 * point.share:.0f} % of its price {gain} points over the mix{sure}"


def _shares(points: tuple[PeerPoint, ...]) -> dict[float, PeerPoint]:
    return {point.share: point for point in points}


def _accuracies(study: PeerStudy) -> Table:
    rows: list[Row] = []
    for name, points in study.points.items():
        at = _shares(points)
        cells = [worded(at[s].accuracy, "share") if s in at else "-" for s in SHARES]
        rows.append([name, *cells])
    return Table(["accuracy at", *_HEADS], rows, right_from=1, unbroken=True)


_HEADS = tuple(f"{100 * share:.0f} % of the price" for share in SHARES)


def _gains(study: PeerStudy) -> Table:
    rows: list[Row] = []
    for name, points in study.points.items():
        at = _shares(points)
        if name == MIX:
            continue
        rows.append(
            [
                name,
                *(
                    estimate_cell(
                        at[share].over_mix,
                        "points",
                        signed=True,
                        compared=significance(at[share].over_mix, "higher"),
                    )
                    if share in at
                    else "-"
                    for share in SHARES
                ),
            ]
        )
    return Table(["points over the mix at", *_HEADS], rows)


def _setups(study: PeerStudy) -> Table:
    rows: list[Row] = []
    for name, point in study.setups.items():
        gains = [
            estimate_cell(gain, "points", signed=True, compared=significance(gain, "higher"))
            for gain in (point.over_mix, point.over_price)
        ]
        share, accuracy = worded(point.share, "share"), worded(point.accuracy, "share")
        rows.append([name, share, accuracy, *gains])
    head = ["system", "of the best one's price", "accuracy", "over the mix", "over price alone"]
    return Table(head, rows)


def draw(study: PeerStudy) -> Figure:
    """Draw all curves, and the systems of one cost as points."""
    figure = new_figure(9.4, 5.6)
    axes = figure.add_subplot()
    for place, (name, points) in enumerate(reversed(list(study.curves.items()))):
        colour, line, _ = stroke(place)
        x, y = [100 * p.share for p in points], [100 * p.accuracy for p in points]
        axes.plot(x, y, color=colour, ls=line, lw=2.2 if place == 0 else 1.5, label=name)
    by_hand = [point for name, point in study.setups.items() if name.startswith("LiteLLM")]
    own = [point for name, point in study.setups.items() if not name.startswith("LiteLLM")]
    for single, marker, colour, label in (
        (by_hand, "x", INK, "LiteLLM, assigned by hand"),
        (own, "o", stroke(0)[0], "router at its setting"),
    ):
        at = [100 * p.share for p in single], [100 * p.accuracy for p in single]
        axes.plot(*at, marker=marker, color=colour, ls="", ms=7, label=label)
    axes.axhline(100 * study.best_accuracy, lw=0.9, ls=":", label=f"{study.best} alone")
    style(
        axes,
        title=f"{study.queries:,} queries, each system at the same cost",
        x="mean cost (% of the best single target's)",
        y="accuracy (%)",
    )
    axes.set_xlim(0, 105)
    legend_below(figure, columns=3)
    return figure


def _curve_rows(study: PeerStudy) -> Rows:
    return [
        {"system": name, "share": point.share, "accuracy": point.accuracy}
        for each in (study.curves, {name: (one,) for name, one in study.setups.items()})
        for name, points in each.items()
        for point in points
    ]


def _point_rows(study: PeerStudy) -> Rows:
    each = {**study.points, **{name: (one,) for name, one in study.setups.items()}}
    return [
        {
            "system": name,
            "share": point.share,
            "accuracy": point.accuracy,
            **flat({"over_mix": point.over_mix, "over_price": point.over_price}),
        }
        for name, points in each.items()
        for point in points
    ]
