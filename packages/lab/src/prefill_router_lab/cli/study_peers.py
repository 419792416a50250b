"""`prefill-router study peers`: a router beside others on the same queries, at the same cost."""

from typing import TYPE_CHECKING

from prefill_router.cli.application import err
from prefill_router.cli.judged_queries import CROSS_FIT, JudgedQueries, check_part_name
from prefill_router.cli.options import RouterFolder, UnseenPart, load_router, open_stores
from prefill_router.errors import DataError
from prefill_router.progress import BarProgress
from prefill_router_lab.cli.study import AsJson, Data, Folders, Out, Stores, facts, finish, study

if TYPE_CHECKING:
    from prefill_router.evaluation import Trial
    from prefill_router_lab.studies import PeerPart


@study.command()
def peers(
    folder: RouterFolder,
    data: Data,
    to: Out,
    store: Stores = None,
    part: UnseenPart = None,
    encoder_folder: Folders = None,
    as_json: AsJson = False,
) -> None:
    """Compare a router with the best fixed mix, price alone, and LiteLLM's local classifiers.

    All are judged on the same queries, at 20, 30, 50 and 70 % of the best target's price. What each
    one needs to know is learned from train rows.

    Example: prefill-router study peers router --data answers --out peers
    """
    from prefill_router.data import read_dataset
    from prefill_router.evaluation import Trial
    from prefill_router.reporting import check_place, mark
    from prefill_router_lab.studies import (
        CLASSIFIERS,
        classify_prompts,
        study_peers,
    )

    check_part_name(part)
    check_place(to, "peers")
    router = load_router(folder, encoder_folder)
    queries = JudgedQueries.of(router, read_dataset(data), part)
    mark(to, "peers", {"router": str(folder), "part": queries.part})
    bar = BarProgress(console=err)
    predictions = queries.predict(open_stores(store), bar)
    trial = Trial.join(predictions, queries.judged, policy=router.policy)
    parts = _list_parts(queries, trial)
    every = {q.id: q.prompt for p in parts for q in p.train.queries} | {
        q.id: q.prompt for q in queries.judged.queries
    }
    tiers: dict[str, dict[str, int]] = {}
    with bar.task("classify", total=float(len(CLASSIFIERS))) as advance:
        for name in CLASSIFIERS:
            tiers[name] = dict(
                zip(every, classify_prompts(tuple(every.values()), name), strict=True)
            )
            advance()
    result = study_peers(parts, tiers, name=folder.name)
    judged_on = f"{len(queries.judged):,} queries, {queries.words}"
    known = facts(data, router.split, 0) | {"router": str(folder), "judged on": judged_on}
    finish(result.report(title=f"Peers on {data.name}", known=known), to, as_json=as_json)


def _list_parts(queries: JudgedQueries, trial: "Trial") -> "list[PeerPart]":
    """The judged rows, each with the rows that its router learned from."""
    from prefill_router_lab.studies import PeerPart

    parts = queries.judged_parts(trial)
    if queries.part == CROSS_FIT:
        ids = queries.judged.query_ids
        judged = [set(part.trial.query_ids) for part in parts]
        rest = [[name for name in ids if name not in own] for own in judged]
        pairs = zip(parts, rest, strict=True)
        return [PeerPart(part, queries.judged.select(others)) for part, others in pairs]
    if queries.train is None or not parts:
        raise DataError(
            "the peers learn from the queries that the router was trained on, and the dataset "
            "has none of them; give the dataset that it was fitted on"
        )
    return [PeerPart(part, queries.train) for part in parts]
