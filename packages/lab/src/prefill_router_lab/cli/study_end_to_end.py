"""`prefill-router study end-to-end`: cost and latency of routing, the encoder included."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, final

import typer

from prefill_router.cli.application import err
from prefill_router.cli.judged_queries import CROSS_FIT, JudgedQueries, check_part_name
from prefill_router.cli.options import (
    load_router,
    open_stores,
    path_or_url,
)
from prefill_router.errors import ConfigError, DataError, PrefillRouterError
from prefill_router.files import default_cache
from prefill_router.options import AT_LEAST_ONE, NOT_NEGATIVE
from prefill_router.progress import BarProgress
from prefill_router.remote import PathOrUrl
from prefill_router_lab.cli.study import (
    RouterInputs,
    begin_judged,
    finish,
    list_facts,
    study,
)
from prefill_router_lab.cli.typed_options import with_options
from prefill_router_lab.end_to_end import EndToEndOptions

if TYPE_CHECKING:
    from prefill_router.activations import Activations
    from prefill_router.comparison import Charge
    from prefill_router.data import Prompt, RoutingDataset
    from prefill_router.router import Router
    from prefill_router_lab.end_to_end import Contender, Latency, PerCell


@dataclass(frozen=True, kw_only=True)
class ContenderOptions:
    """What a router and its reference cost, and how long they and the answers take."""

    reference: Annotated[
        PathOrUrl | None,
        typer.Option(
            help="A second router to compare with, such as a semantic one.", parser=path_or_url
        ),
    ] = None
    encoder_price: Annotated[
        float | None,
        NOT_NEGATIVE,
        typer.Option(help="US dollars per million tokens that the encoder reads."),
    ] = None
    per_hour: Annotated[
        float | None,
        NOT_NEGATIVE,
        typer.Option(help="Instead: US dollars per hour of the machine that routes."),
    ] = None
    reference_price: Annotated[
        float,
        NOT_NEGATIVE,
        typer.Option(help="Price of the reference's encoder, in the same unit; 0 in the paper."),
    ] = 0.0
    speeds: Annotated[
        Path | None,
        typer.Option(help="YAML or CSV: ttft_seconds and tokens_per_second of each target."),
    ] = None
    run: Annotated[
        Path | None, typer.Option(help="The run that the answers come from, with their times.")
    ] = None
    routing_ms: Annotated[
        float | None,
        NOT_NEGATIVE,
        typer.Option(help="The routing latency; by default it is measured here."),
    ] = None
    reference_ms: Annotated[
        float | None, NOT_NEGATIVE, typer.Option(help="The routing latency of the reference.")
    ] = None
    sample: Annotated[int, AT_LEAST_ONE, typer.Option(help="How many prompts are timed.")] = 100
    rounds: Annotated[int, AT_LEAST_ONE, typer.Option(help="How often each of them is timed.")] = 5
    best: Annotated[
        str | None,
        typer.Option(help="The best single target; by default the best on the train part."),
    ] = None


@study.command(name="end-to-end")
@with_options
def end_to_end(costs: ContenderOptions, options: EndToEndOptions, inputs: RouterInputs) -> None:
    """Count the encoder's cost and the decision's latency, and see what is left of the savings.

    It prints the total cost, accuracy, time until the answer, and P-AUCCC, with the encoder's cost
    included, at lam = 1 and 0.5. The router is compared with the best single target, and with a
    second router if you give one.

    Example: prefill-router study end-to-end router --data answers --encoder-price 0.16 --out costs
    """
    from prefill_router.comparison import Charge
    from prefill_router.reporting import mark
    from prefill_router_lab.end_to_end import NAME, ROUTER, study_end_to_end

    check_part_name(inputs.part)
    charge = Charge(per_million_tokens=costs.encoder_price, per_hour=costs.per_hour)
    shared = _ContenderInputs.of(inputs, costs, options.seed)
    seconds, timing = _read_answer_seconds(shared.judged, costs.speeds, costs.run)
    named = {"router": str(inputs.folder), "reference": str(costs.reference or "")}
    mark(inputs.to, NAME, {**named, "part": shared.part})
    routers, charges = {ROUTER: shared.router}, {ROUTER: charge}
    if costs.reference is not None:
        routers["reference"] = shared.load_reference(costs.reference)
        charges["reference"] = Charge(per_million_tokens=costs.reference_price)
    latencies = shared.latencies(routers)
    contenders = [
        shared.contender(name, router, charges[name], latencies[name], seconds)
        for name, router in routers.items()
    ]
    result = study_end_to_end(
        contenders,
        costs.best or shared.best,
        options,
        charges={name: charge.words for name, charge in charges.items()},
        timing=timing,
        progress=shared.bar,
    )
    facts = list_facts(inputs.data, shared.router.split, options.seed) | shared.facts
    title = f"End-to-end cost and latency on {inputs.data.name}"
    finish(result.report(title=title, facts=facts), inputs)


@final
@dataclass(frozen=True, eq=False)
class _ContenderInputs:
    """What all contenders share: the queries at the router's prices, and how they are timed."""

    inputs: RouterInputs
    costs: ContenderOptions
    seed: int
    router: "Router"
    judged: "RoutingDataset"
    part: str
    best: str
    stores: "Sequence[Activations]"
    bar: BarProgress

    @classmethod
    def of(cls, inputs: RouterInputs, costs: ContenderOptions, seed: int) -> "_ContenderInputs":
        from prefill_router.guarantee import best_single
        from prefill_router_lab.end_to_end import NAME

        queries = begin_judged(NAME, inputs)
        stores = open_stores(inputs.store)
        if queries.train is None:
            err.print(
                "note: the dataset has none of the router's train queries, so the best single "
                "target is that of the judged queries; --best names another",
                soft_wrap=True,
            )
        best, bar = best_single(queries.train or queries.judged), BarProgress(console=err)
        router, judged, part = queries.router, queries.judged, queries.part
        return cls(inputs, costs, seed, router, judged, part, best, stores, bar)

    @property
    def facts(self) -> dict[str, str]:
        """Facts for the reader of the page."""
        reference = self.costs.reference
        return {
            "router": str(self.inputs.folder),
            **({} if reference is None else {"reference": str(reference)}),
            "judged on": f"{len(self.judged):,} queries, {self.part} part",
            "prices": self.router.pool.prices_date or "undated",
        }

    def load_reference(self, folder: PathOrUrl) -> "Router":
        """The reference, checked to be comparable with the router."""
        reference = load_router(folder, self.inputs.encoder_folder)
        if reference.pool.names != self.router.pool.names:
            raise ConfigError(
                f"the reference has the targets {reference.pool.names}, the router "
                f"{self.router.pool.names}; both must have the same"
            )
        learned_ids = {
            i for p in ("train", "calibration") for i in reference.split.parts.get(p, ())
        }
        if self.part == CROSS_FIT and reference.cross_fit is not None:
            learned_ids -= set(reference.cross_fit.predictions.query_ids)
        overlap = len(learned_ids & set(self.judged.query_ids))
        if overlap:
            raise DataError(
                f"the reference was fitted on {overlap:,} of the queries that are judged; fit it "
                "on the router's split: prefill-router fit --split ROUTER/split.json"
            )
        return reference.with_pool(self.router.pool)

    def contender(
        self,
        name: str,
        router: "Router",
        charge: "Charge",
        latency: "Latency",
        seconds: "PerCell",
    ) -> "Contender":
        """A router with its predictions, its latency and its encoder's cost."""
        from prefill_router.comparison import count_tokens
        from prefill_router.evaluation import Trial
        from prefill_router_lab.end_to_end import Contender

        cache = default_cache()
        queries = JudgedQueries(router, self.part, self.judged, None)
        predictions = queries.predict(self.stores, self.bar)
        trial = Trial.join(predictions, self.judged, policy=router.policy)
        tokens = count_tokens(
            router, self.judged, stores=self.stores, cache=cache, progress=self.bar
        )
        mean = None if latency is None else latency.mean
        return Contender(name, trial, seconds, charge.dollars(tokens, mean), latency)

    def latencies(self, routers: "Mapping[str, Router]") -> "dict[str, Latency]":
        """The latencies given in milliseconds; the other routers are timed here, in turns."""
        import numpy as np

        from prefill_router_lab.end_to_end import ROUTER, Latency, time_routing

        options = self.costs
        milliseconds = {ROUTER: options.routing_ms, "reference": options.reference_ms}
        latencies = {
            n: Latency((ms / 1000,), "given") for n, ms in milliseconds.items() if ms is not None
        }
        count = min(options.sample, len(self.judged))
        picked = np.random.default_rng(self.seed).choice(len(self.judged), count, replace=False)
        prompts = [self.judged.queries[i].prompt for i in picked]
        routes = {n: _time_route(n, router) for n, router in routers.items() if n not in latencies}
        timed = (
            time_routing(routes, prompts, rounds=options.rounds, progress=self.bar)
            if routes
            else {}
        )
        return latencies | timed


def _time_route(name: str, router: "Router") -> Callable[["Prompt"], object]:
    def route(prompt: "Prompt") -> object:
        try:
            return router.route(prompt)
        except PrefillRouterError as error:
            option = "--routing-ms" if name == "router" else "--reference-ms"
            raise ConfigError(
                f"the decisions of the {name} can't be timed here: {error}; or give {option}"
            ) from None

    return route


def _read_run_seconds(folder: Path, dataset: "RoutingDataset") -> "PerCell":
    """Seconds from each request to the end of its answer in a run; NaN where there is none.

    Args:
        folder: The run's folder.
        dataset: The queries and targets; those that the run lacks stay NaN.

    Raises:
        FormatError: The folder isn't a run.
        DataError: It has no answer to any of these queries.
    """
    import numpy as np

    from prefill_router.runs import Run

    row = {name: i for i, name in enumerate(dataset.query_ids)}
    column = {name: k for k, name in enumerate(dataset.pool.names)}
    seconds = np.full((len(row), len(column)), np.nan)
    with Run.open(folder) as run:
        shared = column.keys() & set(run.pool.names)
        for answer in run.answers(targets=shared):
            if answer.reply is not None and answer.query_id in row:
                seconds[row[answer.query_id], column[answer.target]] = answer.reply.seconds
    if np.isnan(seconds).all():
        raise DataError(
            f"{folder} has no answer to any of the queries that are judged; name the run that the "
            "dataset was graded from"
        )
    return seconds


def _read_answer_seconds(
    judged: "RoutingDataset", speeds: Path | None, run: Path | None
) -> "tuple[PerCell, str]":
    """Seconds of each answer, from speeds or as measured in a run, and a note on the source."""
    import numpy as np

    from prefill_router_lab.end_to_end import answer_seconds, read_speeds

    seconds = np.full(judged.correct.shape, np.nan)
    sources = []
    if speeds is not None:
        speeds_by_target = read_speeds(speeds)
        if run is None and (lacking := sorted(set(judged.pool.names) - set(speeds_by_target))):
            raise DataError(f"{speeds} lacks the targets {lacking}; name the speed of each")
        seconds = answer_seconds(judged, speeds_by_target)
        sources.append(f"TTFT and output tokens at the speeds in {speeds.name}")
    if run is not None:
        timed = _read_run_seconds(run, judged)
        seconds = np.where(np.isnan(timed), seconds, timed)
        share = float(np.mean(~np.isnan(timed)))
        sources.insert(0, f"measured in {run} ({100 * share:.0f} % of the answers)")
    if not sources:
        err.print("note: no --speeds and no --run, so the time of the answers is unknown")
    return seconds, "; else ".join(sources)
