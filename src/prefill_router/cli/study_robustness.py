"""`prefill-router study robustness`: decisions on perturbed prompts."""

from typing import TYPE_CHECKING, Annotated

import typer

from prefill_router.cli import options as opt
from prefill_router.cli.application import err
from prefill_router.cli.study import (
    AsJson,
    Data,
    Folders,
    Out,
    Resamples,
    Seed,
    Stores,
    facts,
    finish,
    study,
)
from prefill_router.cli.usage import one_of
from prefill_router.progress import BarProgress

if TYPE_CHECKING:
    from collections.abc import Sequence

    from prefill_router.data import Query
    from prefill_router.studies.robustness import Kind


@study.command()
def robustness(
    folder: opt.RouterFolder,
    data: Data,
    to: Out,
    store: Stores = None,
    given_lam: opt.OwnLam = None,
    paraphrases: opt.Paraphrases = None,
    typos: Annotated[
        float, typer.Option(help="The share of words of four or more letters that have a typo.")
    ] = 0.05,
    part: opt.UnseenPart = "test",
    sample: Annotated[
        int | None, typer.Option(help="How many queries, drawn at random; by default all.")
    ] = None,
    resamples: Resamples = 1000,
    seed: Seed = 0,
    encoder_folder: Folders = None,
    as_json: AsJson = False,
) -> None:
    """Count the decisions that change if prompts have typos, other words or reordered options.

    Both are decided at lam by the encoder's states. The share that stays is RouterArena's
    robustness; what the others cost is told by the labels of the original prompts.

    Example: prefill-router study robustness router --data answers --out robustness
    """
    from prefill_router.cli.unseen_queries import PARTS, UnseenQueries
    from prefill_router.data import read_dataset
    from prefill_router.files import default_cache
    from prefill_router.reporting import check_place, mark
    from prefill_router.studies.robustness import NAME, report_of, robustness_study, sampled

    one_of("--part", part, PARTS)
    check_place(to, NAME)
    router = opt.load_router(folder, encoder_folder)
    lam = opt.own_lam(router, given_lam)
    judged = sampled(UnseenQueries.of(router, read_dataset(data), part).judged, sample, seed=seed)
    others = None if paraphrases is None else opt.read_questions(paraphrases)
    versions = _versions(judged.queries, others, typos, seed)
    asked = {"router": str(folder), "part": part, "lam": lam, "typos": typos, "seed": seed}
    mark(to, NAME, asked | {"queries": len(judged), "paraphrases": str(paraphrases or "")})
    found = robustness_study(
        router,
        judged,
        versions,
        lam=lam,
        stores=opt.open_stores(store),
        cache=default_cache(),
        resamples=resamples,
        seed=seed,
        progress=BarProgress(console=err),
    )
    judged_on = f"{len(judged):,} queries, {part} part"
    known = facts(data, router.split, seed) | {"router": str(folder), "judged on": judged_on}
    finish(report_of(found, title=f"Robustness on {data.name}", known=known), to, as_json=as_json)


def _versions(
    queries: "Sequence[Query]", others: "Sequence[Query] | None", typos: float, seed: int
) -> "dict[Kind, Sequence[Query]]":
    from prefill_router.studies.robustness import CHANGES, paraphrased, perturbed

    made: dict[Kind, Sequence[Query]] = {
        kind: perturbed(queries, kind, seed=seed, typos=typos) for kind in CHANGES
    }
    return made if others is None else {**made, "paraphrases": paraphrased(queries, others)}
