"""`prefill-router study effort`: what a choice of reasoning effort is worth."""

from prefill_router.cli.application import err
from prefill_router.cli.options import open_stores
from prefill_router.progress import BarProgress
from prefill_router_lab.cli.study import RouterInputs, begin_judged, finish, list_facts, study
from prefill_router_lab.cli.typed_options import with_options
from prefill_router_lab.studies import EffortOptions


@study.command()
@with_options
def effort(options: EffortOptions, inputs: RouterInputs) -> None:
    """Compare fixed reasoning efforts with routing over models, efforts, and both.

    The router predicts every pair of model and effort. All choices get the same budgets, are judged
    on the same queries, and are compared pair by pair.

    Example: prefill-router study effort router --data answers --store states --out effort
    """
    from prefill_router.reporting import mark
    from prefill_router_lab.studies import study_efforts

    queries = begin_judged("effort", inputs)
    folder, seed = inputs.folder, options.seed
    settings = {"router": str(folder), "part": queries.part, "seed": seed}
    mark(inputs.to, "effort", {**settings, "resamples": options.resamples})
    bar = BarProgress(console=err)
    predictions = queries.predict(open_stores(inputs.store), bar)
    result = study_efforts(predictions, queries.judged, options, progress=bar)
    judged_on = f"{result.queries:,} queries, {queries.words}"
    facts = list_facts(inputs.data, queries.router.split, seed)
    facts |= {"router": str(folder), "judged on": judged_on}
    finish(result.report(title=f"Reasoning effort on {inputs.data.name}", facts=facts), inputs)
