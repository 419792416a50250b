"""`prefill-router reproduce` and `study seeds`, `ratio` and `shift`: the paper's results.

`seeds` measures how much the metrics vary with the training seed. `ratio` measures how accurate
routing is when a given share of the queries goes to one target. `shift` measures what a router
loses on queries of a kind that it wasn't fitted on.
"""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.table import Table

from prefill_router.cli import options as opt
from prefill_router.cli.application import app, err, format_count, out, print_json
from prefill_router.cli.commands import UsageError, parse_choice, usage_errors
from prefill_router.cli.options import with_engine
from prefill_router.errors import ConfigError
from prefill_router.options import NOT_NEGATIVE
from prefill_router.progress import BarProgress
from prefill_router.remote import PathOrUrl
from prefill_router_lab.cli.study import (
    OpenedStudy,
    RecipeInputs,
    begin,
    finish,
    require_some,
    study,
)
from prefill_router_lab.cli.typed_options import with_options
from prefill_router_lab.reproduce import QWEN_PRICE, ReproduceOptions
from prefill_router_lab.studies import RatioOptions, SeedOptions, ShiftOptions

if TYPE_CHECKING:
    from prefill_router.activations import Activations
    from prefill_router.comparison import RecipeFailure
    from prefill_router.data import RoutingDataset, Split
    from prefill_router.engines import Engine
    from prefill_router.router import Router
    from prefill_router_lab.reproduce import PoolRun, ReproduceMeans
    from prefill_router_lab.studies import Shift


_FORMATS = {"llmrouterbench": "llmrouterbench", "nvidia-v1": "nvidia", "mmlu-pro": "mmlu_pro"}


class BenchName(StrEnum):
    """Where the data come from."""

    LLMROUTERBENCH = "llmrouterbench"
    NVIDIA = "nvidia-v1"
    MMLU_PRO = "mmlu-pro"


@app.command()
@with_engine
@with_options
def reproduce(
    *,
    data: Annotated[
        PathOrUrl,
        typer.Argument(
            metavar="DATA",
            help="The data as published, or a dataset folder of them.",
            parser=opt.path_or_url,
        ),
    ],
    bench: Annotated[BenchName, typer.Option(help="Where the data come from.")],
    to: opt.ReportOut,
    encoder: Annotated[
        list[str] | None,
        typer.Option(help="The encoder of the hidden states, by default minilm; repeatable."),
    ] = None,
    embedding: Annotated[
        str, typer.Option(help="The encoder of the semantic routers' embeddings.")
    ] = "minilm",
    store: opt.Stores = None,
    encoder_folder: opt.EncoderFolders = None,
    prices: Annotated[Path | None, typer.Option(help="Prices, for data without prices.")] = None,
    encoder_price: Annotated[
        float,
        NOT_NEGATIVE,
        typer.Option(help="US dollars per million tokens that the encoder reads."),
    ] = QWEN_PRICE,
    speeds: Annotated[
        Path | None, typer.Option(help="TTFT and throughput of each target: YAML or CSV.")
    ] = None,
    text_network: Annotated[
        str | None,
        typer.Option(help="A network to fine-tune, microsoft/deberta-v3-base or its folder."),
    ] = None,
    soft_labels: Annotated[
        Path | None, typer.Option(help="A judge's scores, for a router that learns from them.")
    ] = None,
    options: ReproduceOptions,
    as_json: Annotated[bool, typer.Option("--json", help="Print results.json.")] = False,
    engine: "Engine | None" = None,
) -> None:
    """Rebuild the paper's tables and figures, with our numbers beside the paper's.

    Fitted routers are kept in the report's folder. After an interruption the same command goes on
    from there.

    Example: prefill-router reproduce answers --bench mmlu-pro --store states --out paper
    """
    from prefill_router.comparison import Charge
    from prefill_router.reporting import check_place, mark
    from prefill_router_lab.end_to_end import read_speeds
    from prefill_router_lab.reproduce import (
        STUDY,
        WORK,
        ReproduceMeans,
        find_pools,
        reproduce as work,
        to_dict,
        write,
    )

    check_place(to, STUDY)
    stores = opt.open_stores(store)
    means = ReproduceMeans(
        encoders=tuple(encoder or _list_encoders(stores)),
        embedding=embedding,
        sources=opt.sources(encoder_folder),
        charge=Charge(per_million_tokens=encoder_price),
        speeds={} if speeds is None else read_speeds(speeds),
        text_network=text_network,
        soft_labels=soft_labels,
    )
    dataset = _read_data(bench, data, prices)
    mark(to, STUDY, {"bench": bench.value, "options": options.to_dict(), "means": means.to_dict()})
    bar = BarProgress(console=err)
    pools = format_count(len(find_pools(bench.value, dataset)), "pool")
    err.say(f"{pools} of targets to fit; the bar of each step shows how long it still takes")
    runs = work(
        bench.value,
        dataset,
        stores,
        options=options,
        means=means,
        folder=to / WORK,
        engine=engine,
        progress=bar,
    )
    facts = _list_facts(data, options, means, runs)
    write(
        runs,
        to,
        title=f"The paper's tables on {data.name}",
        introduction=_write_introduction(options),
        facts=facts,
    )
    if as_json:
        print_json(to_dict(runs))
        return
    _print_claims(runs)
    out.say(f"report: {to / 'index.html'}")


def _list_encoders(stores: "Sequence[Activations]") -> list[str]:
    names = [
        store.provenance.encoder
        for store in stores
        if any(site.pooling == "last" for site in store.sites)
    ]
    return list(dict.fromkeys(names)) or ["minilm"]


def _read_data(bench: BenchName, data: PathOrUrl, prices: Path | None) -> "RoutingDataset":
    from prefill_router.data import is_dataset, read_dataset
    from prefill_router.importers import import_dataset

    if not isinstance(data, Path) or is_dataset(data):
        return read_dataset(data)
    with err.status(f"reading {bench.value}"):
        dataset, report = import_dataset(_FORMATS[bench.value], [data], prices=prices)
    if report.malformed:
        err.say(f"{report.malformed:,} malformed rows of {data} were left out")
    return dataset


def _write_introduction(options: ReproduceOptions) -> list[str]:
    paragraphs = [
        "Every table and figure of the paper, rebuilt on these data: our number with its interval, "
        "and the paper's beside it. Where one can't be rebuilt, the reason is given.",
        "The encoder is not the paper's: the paper reads language models of 20 to 122 billion "
        "parameters, ours is named below. Differences of level are to be expected from that "
        "alone.",
    ]
    if options.quick:
        paragraphs.insert(
            0,
            "A rehearsal: the networks were trained for a few epochs only, with few seeds and "
            "resamples. The numbers show that everything runs, and nothing else.",
        )
    return paragraphs


def _list_facts(
    data: PathOrUrl, options: ReproduceOptions, means: "ReproduceMeans", runs: "list[PoolRun]"
) -> dict[str, str]:
    sizes = [
        f"{run.title}: {len(run.paper_pool.dataset.pool)} targets, "
        + ", ".join(f"{len(ids):,} {part}" for part, ids in run.split.parts.items())
        for run in runs
    ]
    return {
        "data": str(data),
        "pools": "; ".join(sizes),
        "encoders": ", ".join(means.encoders),
        "embeddings": means.embedding,
        "split": f"85/15, seed {options.seed}; calibrated routers 75/10/15 with the same test part",
        "calibration": "Platt scaling for the semantic baselines of the tables; none in the shifts",
        "intervals": f"95 %, {options.resample_count:,} bootstrap resamples of the test queries",
        "fine-tuned on the text": means.text_network or "nothing; give weights with --text-network",
        "soft labels": str(means.soft_labels or "none; give a judge's scores with --soft-labels"),
        "not as in their papers": "GraphRouter predicts each label, with separate messages for "
        "labels and costs; matrix factorisation learns from single labels, and a second router "
        "from pairs; the cascade's scorer reads an answer's length, not its text",
        "training seeds": f"{options.seed_count} in the seed study",
    }


def _print_claims(runs: "list[PoolRun]") -> None:
    from prefill_router_lab.reproduce import all_tables, check

    table = Table(box=None, pad_edge=False)
    for title in ("pool", "the paper says", "holds"):
        table.add_column(title)
    for claim in check(runs):
        table.add_row(claim.pool, claim.text, claim.answer)
    out.print(table)
    for paper_table in all_tables(runs):
        if paper_table.missing:
            out.say(f"Table {paper_table.number}: {paper_table.missing}")


@study.command()
@with_engine
@with_options
def seeds(options: SeedOptions, inputs: RecipeInputs, engine: "Engine | None" = None) -> None:
    """Fit each router with several seeds on one split: mean, standard deviation, extremes.

    A router with the same predictions for every seed is reported as deterministic.

    Example: prefill-router study seeds routers.yaml --data answers --store states --out seeds
    """
    from prefill_router.reporting import ROUTERS
    from prefill_router_lab.studies import seed_study

    open_study = begin("seeds", inputs, options)
    result = seed_study(
        open_study.dataset,
        open_study.recipes,
        open_study.states,
        open_study.split,
        options,
        folder=inputs.to / ROUTERS,
        engine=engine,
        progress=open_study.bar,
    )
    require_some(result.spreads, result.failures)
    report = result.report(title=f"Seed variability on {inputs.data.name}", facts=open_study.facts)
    finish(report, inputs)


_BY = ("train", "test")


@study.command()
@with_engine
@with_options
def ratio(
    *,
    strong: Annotated[
        str | None, typer.Option(help="The strong target; the most accurate one if not given.")
    ] = None,
    strong_by: Annotated[
        str, typer.Option(help="The part that decides on it: train, or test as in the paper.")
    ] = "train",
    options: RatioOptions,
    inputs: RecipeInputs,
    engine: "Engine | None" = None,
) -> None:
    """Send each share of the queries to the strong target, in the router's own order.

    The others go where the router's probability is highest. Prices play no part.

    Example: prefill-router study ratio routers.yaml --data answers --store states --out ratio
    """
    from prefill_router.reporting import ROUTERS
    from prefill_router_lab.studies import find_strongest, routing_ratio

    parse_choice("--strong-by", strong_by, _BY)

    def check(dataset: "RoutingDataset", split: "Split") -> None:
        del split
        if strong is not None and strong not in dataset.pool.names:
            raise ConfigError(
                f"the strong target is {strong!r}; the dataset has {list(dataset.pool.names)}"
            )

    open_study = begin("ratio", inputs, options, check, strong=strong, strong_by=strong_by)
    routers, failures = _fit_routers(open_study, inputs.to / ROUTERS, options.seed, engine)
    part = open_study.dataset.select(open_study.split["train" if strong_by == "train" else "test"])
    test = open_study.dataset.select(open_study.split["test"])
    result = routing_ratio(
        {name: router.predict(test, stores=open_study.states) for name, router in routers.items()},
        test,
        options,
        strong=strong or find_strongest(part),
        progress=open_study.bar,
    )
    how = "named" if strong else f"the most accurate on the {strong_by} part"
    intervals = f"95 %, {options.resamples:,} resamples"
    facts = {**open_study.facts, "chosen": how, "intervals": intervals}
    title = f"Accuracy against routing ratio on {inputs.data.name}"
    finish(result.report(title=title, facts=facts, failures=failures), inputs)


def _fit_routers(
    open_study: OpenedStudy, folder: Path, seed: int, engine: "Engine | None"
) -> "tuple[dict[str, Router], list[RecipeFailure]]":
    """The router itself where its folder was given, else those of the recipes."""
    from prefill_router.comparison import fit_all
    from prefill_router.fitting import FitConfig

    if open_study.router is not None:
        return {next(iter(open_study.recipes)): open_study.router}, []
    fits, failures = fit_all(
        open_study.dataset,
        open_study.recipes,
        open_study.states,
        open_study.split,
        config=FitConfig(seed=seed),
        folder=folder,
        engine=engine,
        progress=open_study.bar,
    )
    require_some(fits, failures)
    return {fit.name: fit.router for fit in fits}, failures


@dataclass(frozen=True, kw_only=True)
class NamedShift:
    """The ways to name a shift on the command line.

    Raises:
        UsageError: The shift is named in no way, or in several.
    """

    train_on: Annotated[
        str | None, typer.Option(help="Benchmarks or domains to train on, separated by commas.")
    ] = None
    test_on: Annotated[
        str | None, typer.Option(help="Benchmarks or domains to test on, separated by commas.")
    ] = None
    hold_out: Annotated[
        str | None, typer.Option(help="Test on these and train on all the others.")
    ] = None
    preset: Annotated[
        str | None, typer.Option(help="mmlu-pro-stem: STEM to humanities and social sciences.")
    ] = None

    def __post_init__(self) -> None:
        by_parts = self.train_on is not None or self.test_on is not None
        ways = sum((by_parts, bool(self.hold_out), bool(self.preset)))
        if ways != 1 or (self.train_on is None) != (self.test_on is None):
            raise UsageError(
                "give --train-on with --test-on, or --hold-out, or --preset; one of these"
            )
        if self.preset:
            from prefill_router_lab.studies import Shift

            with usage_errors():
                Shift.preset(self.preset)

    def find(self, dataset: "RoutingDataset") -> "Shift":
        """The shift between the named benchmarks or domains of a dataset."""
        from prefill_router_lab.studies import Shift

        if self.preset:
            return Shift.preset(self.preset)
        if self.hold_out:
            return Shift.hold_out(dataset, _read_names(self.hold_out))
        return Shift(_read_names(self.train_on or ""), _read_names(self.test_on or ""))


@study.command()
@with_engine
@with_options
def shift(
    named: NamedShift,
    options: ShiftOptions,
    inputs: RecipeInputs,
    engine: "Engine | None" = None,
) -> None:
    """Train on some benchmarks or domains, test on others, and compare with training on all.

    All routers are tested on the same queries of the test part. Two references are compared: one
    is trained on the whole train part, the other on a sample of it, with as many queries as the
    shifted router had.

    Example: prefill-router study shift routers.yaml --data answers --hold-out hle --out shift
    """
    from prefill_router.reporting import ROUTERS
    from prefill_router_lab.studies import arms, shift_study

    open_study = begin(
        "shift",
        inputs,
        options,
        lambda dataset, split: arms(dataset, split, named.find(dataset)),
        **asdict(named),
    )
    result = shift_study(
        open_study.dataset,
        open_study.recipes,
        open_study.states,
        open_study.split,
        named.find(open_study.dataset),
        options,
        folder=inputs.to / ROUTERS,
        engine=engine,
        progress=open_study.bar,
    )
    require_some(result.routers, result.failures)
    report = result.report(
        title=f"Distribution shift on {inputs.data.name}", facts=open_study.facts
    )
    finish(report, inputs)


def _read_names(text: str) -> tuple[str, ...]:
    return tuple(name.strip() for name in text.split(",") if name.strip())
