"""`prefill-router doctor`: is this router more than a fixed choice?"""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from prefill_router.cli import options as opt
from prefill_router.cli.application import ExitCode, app, err, out, print_json
from prefill_router.cli.usage import one_of
from prefill_router.errors import DataError, PrefillRouterError
from prefill_router.progress import BarProgress

if TYPE_CHECKING:
    from prefill_router.activations import Activations
    from prefill_router.cli.unseen_queries import UnseenQueries
    from prefill_router.data import RoutingDataset
    from prefill_router.router import Router
    from prefill_router.studies.doctor import Checkup, PerQuery, Probe
    from prefill_router.studies.robustness import RobustnessStudy

CODES = {
    "worth it": ExitCode.DONE,
    "not worth it": ExitCode.NO_BETTER,
    "can't tell": ExitCode.CANT_TELL,
}
"""Exit codes by verdict."""


@app.command()
def doctor(
    folder: opt.RouterFolder,
    data: opt.Data,
    to: Annotated[Path | None, typer.Option("--out", help="A folder for the report.")] = None,
    given_lam: opt.OwnLam = None,
    part: opt.UnseenPart = "test",
    store: opt.Stores = None,
    resamples: Annotated[int, typer.Option(help="Bootstrap resamples and shuffles.")] = 1000,
    seed: Annotated[int, typer.Option(help="Seed of everything that is random.")] = 0,
    probe: Annotated[
        bool, typer.Option(help="Also predict on nonsense prompts; needs the encoder.")
    ] = True,
    robustness: Annotated[
        int,
        typer.Option(
            help="Queries that are perturbed to count the decisions that change; 0 for none; "
            "needs the encoder."
        ),
    ] = 50,
    encoder_folder: opt.EncoderFolders = None,
    overwrite: opt.Overwrite = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print doctor.json.")] = False,
) -> None:
    """Examine whether a router is more than a fixed choice.

    It is compared with its own choices shuffled over the queries, and with the best fixed mix of
    targets at the same cost, on queries that it was not trained on. Exit codes: 0 worth it, 4 not
    worth it, 5 can't tell.

    Example: prefill-router doctor router --data answers --out check-up
    """
    from prefill_router.cli.unseen_queries import PARTS, UnseenQueries
    from prefill_router.data import Origin, read_dataset
    from prefill_router.studies.doctor import KIND, write_checkup

    one_of("--part", part, PARTS)
    origin = Origin.of("doctor", folder, data)
    if to is not None:
        KIND.check_replaceable(to)
        opt.check_origin(to, origin, overwrite=overwrite)
    router = opt.load_router(folder, encoder_folder)
    lam = opt.own_lam(router, given_lam)
    unseen = UnseenQueries.of(router, read_dataset(data), part)
    stores = opt.open_stores(store)
    found = _examined(
        router,
        unseen,
        stores,
        lam=lam,
        resamples=resamples,
        seed=seed,
        nonsense=probe,
        perturb=robustness,
    )
    if to is not None:
        facts = {
            "router": str(folder),
            "dataset": f"{data}, {part} part",
            "queries": f"{len(unseen.judged):,}",
            "trained on": f"{len(router.split['train']):,}",
            "lam": f"{lam:g}",
            "prices": router.pool.prices_date or "undated",
        }
        title = f"Check-up of {folder.name} on {data.name}"
        write_checkup(found, to, title=title, facts=facts, origin=origin)
    if as_json:
        print_json(found.to_dict())
    else:
        _show(found, to)
    raise typer.Exit(CODES[found.verdict])


def _examined(
    router: "Router",
    unseen: "UnseenQueries",
    stores: Sequence["Activations"],
    *,
    lam: float,
    resamples: int,
    seed: int,
    nonsense: bool,
    perturb: int,
) -> "Checkup":
    from prefill_router.evaluation import Trial
    from prefill_router.studies.doctor import Subject, examine

    if unseen.train is None:
        raise DataError(
            "the dataset has none of the queries that the router was trained on, and the fixed "
            "choices that it is compared with come from these; give the whole dataset"
        )
    bar, notes = BarProgress(console=err), []
    predictions = opt.predict(router, unseen.judged, stores, bar)
    trial = Trial.join(predictions, unseen.judged, policy=router.policy)
    distances = _distances(router, unseen.train, unseen.judged, stores)
    if distances is None:
        notes.append(
            "the distance from the training queries wasn't measured: no store holds their states; "
            "give it with --store"
        )
    probed, reason = _probed(router, lam, seed) if nonsense else (None, "it was left out")
    if probed is None:
        notes.append(f"confidence on nonsense wasn't probed: {reason}")
    flips, reason = _flips(router, unseen.judged, stores, lam, perturb, seed, bar)
    if flips is None:
        notes.append(f"the share of decisions that flip wasn't measured: {reason}")
    return examine(
        Subject(trial, unseen.judged.queries, unseen.train, lam),
        distances=distances,
        probe=probed,
        flips=flips,
        resamples=resamples,
        shuffles=resamples,
        seed=seed,
        notes=tuple(notes),
        progress=bar,
    )


def _distances(
    router: "Router",
    train: "RoutingDataset",
    judged: "RoutingDataset",
    stores: Sequence["Activations"],
) -> "PerQuery | None":
    """Distances in the router's features, where the stores hold the states of the train part."""
    from prefill_router.features import PromptStates
    from prefill_router.router import finished_store
    from prefill_router.studies.doctor import distances

    keys = [*train.prompt_keys, *judged.prompt_keys]
    features = router.features
    held = [
        finished_store(
            stores, source.provenance, features.sites_of(source.provenance), source.rounding, keys
        )
        for source in features.sources
    ]
    states = [one for one in held if one is not None]
    if len(states) < len(held):
        return None
    near, far = (features.read(PromptStates.of_dataset(part, states)) for part in (train, judged))
    return distances(near, far)


def _probed(router: "Router", lam: float, seed: int) -> "tuple[Probe | None, str]":
    import numpy as np

    from prefill_router.studies.doctor import probe

    def highest(prompts: Sequence[str]) -> "PerQuery":
        decisions = router.route_many(prompts, lam=lam)
        return np.array([max(decision.correctness.values()) for decision in decisions])

    try:
        return probe(highest, seed=seed), ""
    except PrefillRouterError as error:
        return None, str(error)


def _flips(
    router: "Router",
    judged: "RoutingDataset",
    stores: Sequence["Activations"],
    lam: float,
    count: int,
    seed: int,
    bar: BarProgress,
) -> "tuple[RobustnessStudy | None, str]":
    from prefill_router.files import default_cache
    from prefill_router.studies.robustness import CHANGES, perturbed, robustness_study, sampled

    if not count:
        return None, "it was left out"
    some = sampled(judged, count, seed=seed)
    versions = {kind: perturbed(some.queries, kind, seed=seed) for kind in CHANGES}
    cache = default_cache()
    try:
        return robustness_study(
            router, some, versions, lam=lam, stores=stores, cache=cache, seed=seed, progress=bar
        ), ""
    except PrefillRouterError as error:
        return None, str(error)


def _show(found: "Checkup", to: Path | None) -> None:
    from rich.table import Table

    from prefill_router.studies.doctor import SIGNS

    table = Table(box=None, pad_edge=False, show_header=False)
    for finding in found.findings:
        table.add_row(SIGNS[finding.sign], finding.title, finding.said)
    out.print(table)
    out.print(", ".join(f"{mark} {sign}" for sign, mark in SIGNS.items()), style="dim")
    for note in found.notes:
        out.say(f"note: {note}")
    out.say(f"\nverdict: {found.verdict}: {found.because}")
    if to is not None:
        out.say(f"report: {to / 'index.html'}")
