"""`prefill-router study peers`: a router beside others on the same queries, at the same cost."""

from typing import TYPE_CHECKING

from prefill_router.cli.application import err
from prefill_router.cli.judged_queries import CROSS_FIT, JudgedQueries
from prefill_router.cli.options import open_stores
from prefill_router.errors import DataError
from prefill_router.progress import BarProgress
from prefill_router_lab.cli.study import (
    RouterInputs,
    begin_judged,
    finish,
    list_facts,
    study,
)
from prefill_router_lab.cli.typed_options import with_options

if TYPE_CHECKING:
    from prefill_router.evaluation import Trial
    from prefill_router_lab.studies import PeerPart


@study.command()
@with_options
def peers(inputs: RouterInputs) -> None:
    """Compare a router with the best fixed mix, price alone, and LiteLLM's local classifiers.

    All are judged on the same queries, at 20, 30, 50 and 70 % of the best target's price. Each
    learns from train rows alone.

    Example: prefill-router study peers router --data answers --out peers
    """
    from prefill_router.evaluation import Trial
    from prefill_router.reporting import mark
    from prefill_router_lab.studies import CLASSIFIERS, classify_prompts, study_peers

    queries = begin_judged("peers", inputs)
    router, folder = queries.router, inputs.folder
    mark(inputs.to, "peers", {"router": str(folder), "part": queries.part})
    bar = BarProgress(console=err)
    predictions = queries.predict(open_stores(inputs.store), bar)
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
    facts = list_facts(inputs.data, router.split, 0) | {
        "router": str(folder),
        "judged on": judged_on,
    }
    finish(result.report(title=f"Peers on {inputs.data.name}", facts=facts), inputs)


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
            "the dataset has none of the queries that the router was fitted on, and the "
            "peers learn from these; give the dataset that the router was fitted on"
        )
    return [PeerPart(part, queries.train) for part in parts]
