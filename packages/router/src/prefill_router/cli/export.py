"""`prefill-router export`: receipts as a dataset, and routers in the formats of others."""

from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from prefill_router import files
from prefill_router.cli import options as opt
from prefill_router.cli.application import app, err, out, print_json
from prefill_router.cli.commands import UsageError, reading_words
from prefill_router_gateway.cli.receipts import SINCE_HELP, URL, moment
from prefill_router.progress import BarProgress
from prefill_router.remote import PathOrUrl

if TYPE_CHECKING:
    from prefill_router.activations import Activations
    from prefill_router.data import Query
    from prefill_router_gateway.receipts import DatasetExport
    from prefill_router.router import ArenaSubmission, Router

_RECEIPTS, _SWITCHYARD, _ARENA = "Receipts", "A router for Switchyard", "A router for RouterArena"
_OF: dict[str, tuple[str, ...]] = {
    "--out": ("--pool", "--since", "--unscored"),
    "--switchyard": (),
    "--router-arena": ("--data", "--paraphrases", "--lam", "--store", "--encoder-folder"),
}
"""The option that says what is exported, each with the options that belong to it."""


@app.command()
def export(
    subject: Annotated[
        str,
        typer.Argument(metavar="RECEIPTS", help=f"{URL} For the formats of others, a ROUTER."),
    ],
    to: Annotated[
        PathOrUrl | None,
        typer.Option(
            "--out",
            help="The dataset folder to write.",
            parser=opt.path_or_url,
            rich_help_panel=_RECEIPTS,
        ),
    ] = None,
    pool: Annotated[
        Path | None,
        typer.Option(
            help="The pool file; without it, targets have no prices.", rich_help_panel=_RECEIPTS
        ),
    ] = None,
    since: Annotated[str | None, typer.Option(help=SINCE_HELP, rich_help_panel=_RECEIPTS)] = None,
    unscored: Annotated[
        bool,
        typer.Option(
            "--unscored", help="Keep answers without feedback, too.", rich_help_panel=_RECEIPTS
        ),
    ] = False,
    switchyard: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="Write the router as a prefill checkpoint of NVIDIA's Switchyard.",
            rich_help_panel=_SWITCHYARD,
        ),
    ] = None,
    router_arena: Annotated[
        Path | None,
        typer.Option(
            metavar="FOLDER",
            help="Write configuration, predictions and robustness file into this checkout of "
            "RouterArena, or a new folder.",
            rich_help_panel=_ARENA,
        ),
    ] = None,
    data: Annotated[
        PathOrUrl | None,
        typer.Option(
            help="The questions: a dataset's folder, or JSON as RouterArena's router_data.json.",
            parser=opt.path_or_url,
            rich_help_panel=_ARENA,
        ),
    ] = None,
    paraphrases: opt.Paraphrases = None,
    given_lam: opt.OwnLam = None,
    store: opt.Stores = None,
    encoder_folder: opt.EncoderFolders = None,
    overwrite: opt.Overwrite = False,
    as_json: opt.AsJson = False,
) -> None:
    """Make a dataset of receipts and feedback, or write a router in another project's format.

    A router is written as a checkpoint of Switchyard: prefill-router export router --switchyard
    router.pt; or as a submission to RouterArena: prefill-router export router --router-arena
    RouterArena --data router_data.json --paraphrases router_robustness.json

    Example: prefill-router export receipts.sqlite --out traffic --pool pool.yaml --since 30d
    """
    names = ("--out", "--pool", "--since", "--unscored", "--switchyard", "--router-arena")
    values = (to, pool, since, unscored, switchyard, router_arena)
    theirs = (data, paraphrases, given_lam, store, encoder_folder)
    told = zip((*names, *_OF["--router-arena"]), (*values, *theirs), strict=True)
    _check({name for name, value in told if value is not None and value is not False})
    if switchyard is not None:
        _write_switchyard(subject, switchyard, overwrite=overwrite, as_json=as_json)
    elif to is not None:
        found = _receipts_dataset(
            subject, to, pool=pool, since=moment(since), unscored=unscored, overwrite=overwrite
        )
        _show_dataset(found, to, as_json=as_json)
    elif router_arena is not None and data is not None:
        from prefill_router.router import arena_name

        with reading_words():
            name = arena_name(Path(subject).resolve().name)
        router = opt.load_router(opt.path_or_url(subject), encoder_folder)
        made = _submission(
            name, router, opt.own_lam(router, given_lam), data, paraphrases, store or ()
        )
        _write_arena(made, router_arena, overwrite=overwrite)
        _show_arena(made, router, router_arena, paraphrases, as_json=as_json)


def _check(given: set[str]) -> None:
    """Check that one thing is exported, and that the other options are about it.

    Raises:
        UsageError: It isn't so.
    """
    asked = [name for name in _OF if name in given]
    if not asked:
        raise UsageError(
            "export needs --out, the dataset folder to write of receipts, or --switchyard or "
            "--router-arena, the file or folder to write of a router"
        )
    what = asked[-1]
    others = sorted(given - {what, *_OF[what]})
    if others:
        raise UsageError(f"leave out {', '.join(others)}: not for what {what} writes")
    if what == "--router-arena" and "--data" not in given:
        raise UsageError("--router-arena needs --data, the questions that the router decides on")


def _receipts_dataset(
    receipts: str,
    to: PathOrUrl,
    *,
    pool: Path | None,
    since: float | None,
    unscored: bool,
    overwrite: bool,
) -> "DatasetExport":
    from prefill_router.data import Origin, check_replaceable, write_dataset
    from prefill_router_gateway.receipts import (
        export as make,
        file_of,
        labelled_samples,
        scored_receipts,
    )
    from prefill_router.targets import read_pool

    origin = Origin.of("export", file_of(receipts) or receipts)
    check_replaceable(to, origin=origin, overwrite=overwrite)
    prices = None if pool is None else read_pool(pool)
    samples = labelled_samples(receipts, since=since)
    scored = scored_receipts(receipts, since=since)
    found = make(scored, pool=prices, samples=samples, unscored=unscored)
    write_dataset(found.dataset, to, origin=origin)
    return found


def _show_dataset(found: "DatasetExport", to: PathOrUrl, *, as_json: bool) -> None:
    import numpy as np

    labels = int((~np.isnan(found.dataset.correct)).sum())
    if as_json:
        print_json(
            {
                "receipts": found.receipts,
                "queries": len(found.dataset),
                "targets": list(found.dataset.pool.names),
                "labels": labels,
                "sources": dict(found.sources),
                "left_out": dict(found.left_out),
                "notes": list(found.notes),
            }
        )
        return
    out.say(
        f"{to}: {len(found.dataset):,} queries and {labels:,} labels, "
        f"of {found.receipts:,} receipts"
    )
    for source, count in found.sources.items():
        out.say(f"labels by {source}: {count:,}")
    for why, count in found.left_out.items():
        out.say(f"left out: {count:,} {why}")
    for note in found.notes:
        out.say(f"note: {note}")


def _write_switchyard(router: str, to: Path, *, overwrite: bool, as_json: bool) -> None:
    from prefill_router.router import Router, switchyard_bytes

    found = Router.load(opt.path_or_url(router))
    content = switchyard_bytes(found)
    with opt.replacing(to, overwrite=overwrite) as temporary:
        temporary.write_bytes(content)
    [source] = found.features.sources
    made_by = source.provenance
    if as_json:
        encoder = {"encoder": made_by.encoder, "revision": made_by.revision}
        print_json({"file": str(to), "targets": list(found.pool.names), **encoder})
        return
    out.say(f"{to}: {len(found.pool)} targets; it takes the most probable one, as lam = 1 does")
    err.say(
        f"note: Switchyard loads the encoder {made_by.encoder!r} in whatever revision is there; "
        f"this router was fitted on {made_by.revision}"
    )
    if (made_by.dtype, source.rounding) != ("float32", "float32"):
        err.say(
            f"note: its states were computed in {made_by.dtype} and kept in {source.rounding}; "
            "Switchyard computes in float32 on a CPU, so probabilities differ slightly"
        )


def _submission(
    name: str,
    router: "Router",
    lam: float,
    data: PathOrUrl,
    paraphrases: PathOrUrl | None,
    store: Sequence[PathOrUrl],
) -> "ArenaSubmission":
    """Decide on the questions, and on the other wordings; without any, on questions with typos."""
    from prefill_router.router import ArenaSubmission
    from prefill_router.robustness import perturbed

    questions = opt.read_questions(data)
    others = (
        perturbed(questions, "typos") if paraphrases is None else opt.read_questions(paraphrases)
    )
    stores, bar = opt.open_stores(store), BarProgress(console=err)
    asked, reworded = (_decided(router, x, lam, stores, bar) for x in (questions, others))
    return ArenaSubmission.of(name, router, asked, reworded)


def _decided(
    router: "Router",
    queries: "Sequence[Query]",
    lam: float,
    stores: "Sequence[Activations]",
    bar: BarProgress,
) -> "list[tuple[Query, str]]":
    from prefill_router.robustness import chosen, predicted

    found = predicted(router, queries, stores=stores, cache=files.default_cache(), progress=bar)
    targets = [router.pool.names[k] for k in chosen(router, found, lam)]
    return list(zip(queries, targets, strict=True))


def _write_arena(made: "ArenaSubmission", folder: Path, *, overwrite: bool) -> None:
    """Write the files, all or none; others in the folder stay as they are."""
    with ExitStack() as writing:
        written = []
        for path, content in made.files.items():
            temporary = writing.enter_context(opt.replacing(folder / path, overwrite=overwrite))
            temporary.write_text(files.as_json(content), encoding="utf-8")
            written.append((folder / path, temporary))
        for place, temporary in written:
            opt.check_same(place, temporary, overwrite=overwrite)


def _show_arena(
    made: "ArenaSubmission",
    router: "Router",
    folder: Path,
    paraphrases: PathOrUrl | None,
    *,
    as_json: bool,
) -> None:
    from prefill_router.router import ARENA_SIZES

    score = made.robustness_score
    sizes = {"questions": len(made.predictions), "reworded": len(made.robustness)}
    notes = [
        "RouterArena takes only models that its universal_model_names.py and model_cost.json list",
        *(
            f"{size:,} {what}; RouterArena has {' or '.join(map(str, ARENA_SIZES[what]))}"
            for what, size in sizes.items()
            if size not in ARENA_SIZES[what]
        ),
        *(["the reworded questions are these with typos"] if paraphrases is None else []),
    ]
    prices = {
        t.name: {
            "input_token_price_per_million": t.input_price,
            "output_token_price_per_million": t.output_price,
        }
        for t in router.pool
    }
    if as_json:
        told = {"files": list(made.files), **sizes, "robustness": score, "model_cost": prices}
        print_json({**told, "notes": notes})
        return
    out.say(f"{folder}: {', '.join(made.files)}")
    out.say(f"{sizes['questions']:,} questions, {sizes['reworded']:,} reworded")
    out.say(f"robustness as RouterArena computes it: {score:.4f}")
    for note in notes:
        err.say(f"note: {note}")
