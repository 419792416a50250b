"""`prefill-router reproduce`: the paper's tables and figures on data at hand."""

from collections.abc import Sequence
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.table import Table

from prefill_router.cli import options as opt
from prefill_router.cli.application import app, err, out, print_json
from prefill_router.cli.options import with_engine
from prefill_router.progress import BarProgress
from prefill_router.remote import PathOrUrl

if TYPE_CHECKING:
    from prefill_router.activations import Activations
    from prefill_router.data import RoutingDataset
    from prefill_router.engines import Engine
    from prefill_router.reproduce import PoolRun, ReproduceMeans, ReproduceOptions

_QUICK = {"seeds": 2, "resamples": 100}
_FORMATS = {"llmrouterbench": "llmrouterbench", "nvidia-v1": "nvidia", "mmlu-pro": "mmlu_pro"}


class BenchName(StrEnum):
    """Where the data come from."""

    LLMROUTERBENCH = "llmrouterbench"
    NVIDIA = "nvidia-v1"
    MMLU_PRO = "mmlu-pro"


@app.command()
@with_engine
def reproduce(
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
        float, typer.Option(help="US dollars per million tokens that the encoder reads.")
    ] = 0.1625,
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
    seeds: Annotated[
        int | None, typer.Option(help="Seeds of the seed study; by default 5 (the paper has 10).")
    ] = None,
    resamples: Annotated[int | None, typer.Option(help="Bootstrap resamples.")] = None,
    seed: opt.StudySeed = 0,
    quick: Annotated[
        bool,
        typer.Option("--quick", help="A rehearsal with little training; its numbers mean little."),
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print results.json.")] = False,
    engine: "Engine | None" = None,
) -> None:
    """Rebuild the paper's tables and figures, our numbers beside the paper's.

    What is fitted is kept in the report's folder; after an interruption the same command
    goes on from there.

    Example: prefill-router reproduce answers --bench mmlu-pro --store states --out paper
    """
    from prefill_router.reporting import check_place, mark
    from prefill_router.reproduce import (
        STUDY,
        WORK,
        ReproduceMeans,
        ReproduceOptions,
        reproduce as work,
        to_dict,
        write,
    )
    from prefill_router.studies.end_to_end import Charge, read_speeds

    check_place(to, STUDY)
    options = ReproduceOptions(
        seed=seed,
        seeds=_QUICK["seeds"] if quick and seeds is None else 5 if seeds is None else seeds,
        resamples=_given(resamples, quick=quick),
        quick=quick,
    )
    stores = opt.open_stores(store)
    means = ReproduceMeans(
        encoders=tuple(encoder or _held(stores)),
        embedding=embedding,
        sources=opt.sources(encoder_folder),
        charge=Charge(per_million_tokens=encoder_price),
        speeds={} if speeds is None else read_speeds(speeds),
        text_network=text_network,
        soft_labels=soft_labels,
    )
    dataset = _read(bench, data, prices)
    mark(to, STUDY, {"bench": bench.value, "options": options.to_dict(), "means": means.to_dict()})
    bar = BarProgress(console=err)
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
    known = _known(data, options, means, runs)
    write(runs, to, title=f"The paper's tables on {data.name}", said=_said(options), known=known)
    if as_json:
        print_json(to_dict(runs))
        return
    _show(runs)
    out.say(f"report: {to / 'index.html'}")


def _given(resamples: int | None, *, quick: bool) -> int:
    if resamples is not None:
        return resamples
    return _QUICK["resamples"] if quick else 1000


def _held(stores: "Sequence[Activations]") -> list[str]:
    names = [
        one.provenance.encoder
        for one in stores
        if any(site.pooling == "last" for site in one.sites)
    ]
    return list(dict.fromkeys(names)) or ["minilm"]


def _read(bench: BenchName, data: PathOrUrl, prices: Path | None) -> "RoutingDataset":
    from prefill_router.data import is_dataset, read_dataset
    from prefill_router.importers import import_dataset

    if not isinstance(data, Path) or is_dataset(data):
        return read_dataset(data)
    with err.status(f"reading {bench.value}"):
        dataset, report = import_dataset(_FORMATS[bench.value], [data], prices=prices)
    if report.malformed:
        err.say(f"{report.malformed:,} malformed rows of {data} were left out")
    return dataset


def _said(options: "ReproduceOptions") -> list[str]:
    said = [
        "Every table and figure of the paper, rebuilt on these data: our number with its interval, "
        "and the paper's beside it. Where one can't be rebuilt, the reason is given.",
        "The encoder is not the paper's: the paper reads language models of 20 to 122 billion "
        "parameters, ours is named below. Differences of level are to be expected from that "
        "alone.",
    ]
    if options.quick:
        said.insert(
            0,
            "A rehearsal: the networks were trained for a few epochs only, with few seeds and "
            "resamples. The numbers show that everything runs, and nothing else.",
        )
    return said


def _known(
    data: PathOrUrl, options: "ReproduceOptions", means: "ReproduceMeans", runs: "list[PoolRun]"
) -> dict[str, str]:
    sizes = [
        f"{run.title}: {len(run.found.dataset.pool)} targets, "
        + ", ".join(f"{len(ids):,} {part}" for part, ids in run.drawn.parts.items())
        for run in runs
    ]
    return {
        "data": str(data),
        "pools": "; ".join(sizes),
        "encoders": ", ".join(means.encoders),
        "embeddings": means.embedding,
        "split": f"85/15, seed {options.seed}; calibrated routers 75/10/15 with the same test part",
        "calibration": "Platt scaling for the semantic baselines of the tables; none in the shifts",
        "intervals": f"95 %, {options.resamples:,} bootstrap resamples of the test queries",
        "fine-tuned on the text": means.text_network or "nothing; give weights with --text-network",
        "soft labels": str(means.soft_labels or "none; give a judge's scores with --soft-labels"),
        "not as in their papers": "GraphRouter predicts each label, with separate messages for "
        "labels and costs; matrix factorisation learns from single labels, and a second router "
        "from pairs; the cascade's scorer reads an answer's length, not its text",
        "training seeds": f"{options.seeds} in the seed study",
    }


def _show(runs: "list[PoolRun]") -> None:
    from prefill_router.reproduce import all_tables, check

    table = Table(box=None, pad_edge=False)
    for title in ("pool", "the paper says", "holds"):
        table.add_column(title)
    for claim in check(runs):
        table.add_row(claim.pool, claim.text, claim.answer)
    out.print(table)
    for one in all_tables(runs):
        if one.missing:
            out.say(f"Table {one.number}: {one.missing}")
