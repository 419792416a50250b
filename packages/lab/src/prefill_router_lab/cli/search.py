"""`prefill-router search`: the best of many configurations, chosen on train rows alone."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from prefill_router.cli import options as opt
from prefill_router.cli.application import app, err, out, print_json
from prefill_router.cli.commands import UsageError
from prefill_router.cli.options import with_engine
from prefill_router.progress import BarProgress
from prefill_router.remote import PathOrUrl
from prefill_router_lab.cli.typed_options import with_options
from prefill_router_lab.search import SearchConfig

if TYPE_CHECKING:
    from prefill_router.activations import Activations
    from prefill_router.data import RoutingDataset, Split
    from prefill_router.engines import Engine
    from prefill_router.router import EncoderSources
    from prefill_router_lab.search import SealedTest, SearchResult, Space


@app.command()
@with_engine
@with_options
def search(
    *,
    space: Annotated[
        str,
        typer.Argument(
            metavar="SPACE", help="A YAML file with what to try, or: default, the packaged one."
        ),
    ],
    data: Annotated[
        PathOrUrl | None, typer.Option(help="The dataset's folder.", parser=opt.path_or_url)
    ] = None,
    to: Annotated[Path | None, typer.Option("--out", help="The search's folder.")] = None,
    store: opt.Stores = None,
    config: SearchConfig,
    split_file: opt.SplitFile = None,
    sealed: Annotated[
        bool, typer.Option("--sealed", help="Only choose, and leave the test part unopened.")
    ] = False,
    open_again: Annotated[
        bool,
        typer.Option(
            "--open-again",
            help="Open the test part for another configuration, although it was opened before.",
        ),
    ] = False,
    encoder_folder: opt.EncoderFolders = None,
    listed: Annotated[bool, typer.Option("--list", help="Only list what can be tried.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print search.json.")] = False,
    engine: "Engine | None" = None,
) -> None:
    """Search features, predictors and calibrations; then look at the test part, once.

    Everything is chosen by cross-validation on the train part. The test part stays sealed until
    there is a winner, and opened.json says when it was opened. After an interruption the same
    command goes on from there; with more --trials it adds to them.

    Example: prefill-router search default --data answers --store states --out found
    """
    from prefill_router_lab.search import read_space

    what = read_space(space)
    if listed:
        _print_space(what, as_json=as_json)
        return
    if data is None or to is None:
        raise UsageError("a search needs --data and --out; only --list works without them")
    if engine is not None and config.jobs > 1:
        raise UsageError("--jobs are processes of this machine; with --engine ray give --workers")
    job = _SearchJob(what, config, data, to, split_file, open_again, engine)
    verdict = job.run(store or [], encoder_folder, sealed=sealed)
    if as_json:
        print_json(verdict.to_dict())
        return
    _print_result(verdict, to)


class _SearchJob:
    """One run of the command."""

    def __init__(
        self,
        space: "Space",
        config: SearchConfig,
        data: PathOrUrl,
        to: Path,
        split_file: Path | None,
        again: bool,
        engine: "Engine | None",
    ) -> None:
        self._space, self._config, self._to, self._data = space, config, to, data
        self._again, self._split = again, split_file
        self._engine = engine

    def run(
        self, stores: Sequence[PathOrUrl], encoders: list[Path] | None, *, sealed: bool
    ) -> "SearchResult":
        """Search, choose, write; and open the test part, unless it stays sealed."""
        from prefill_router.data import read_dataset
        from prefill_router_lab.search import begin, choose, plan_of, seal, search

        dataset = read_dataset(self._data)
        split = opt.load_or_draw_split(dataset, self._split, self._config.seed)
        begin(self._to, plan_of(self._space, self._config, dataset, split))
        bar, sources = BarProgress(console=err), opt.sources(encoders)
        states = self._gather_states(dataset, opt.open_stores(stores), sources, bar)
        train, test = seal(dataset, split, self._to)
        del dataset  # from here on nothing has test rows until `conclude` opens them
        trials = search(
            train,
            self._space,
            states,
            config=self._config,
            folder=self._to,
            engine=self._engine,
            progress=bar,
        )
        verdict = choose(trials, self._space, self._config, targets=train.dataset.pool.names)
        self._write_report(verdict, test.split_for(verdict.winner.recipe, seed=self._config.seed))
        if sealed:
            return verdict
        return self._open_test(verdict, test, states, sources, bar)

    def _gather_states(
        self,
        dataset: "RoutingDataset",
        stores: "Sequence[Activations]",
        sources: "EncoderSources",
        bar: BarProgress,
    ) -> "tuple[Activations, ...]":
        """The states that any recipe of the space reads."""
        from prefill_router.fitting import gather
        from prefill_router_lab.search import openers

        needs = [n for c in openers(self._space) for n in self._space.recipe(c).needs]
        distinct_needs = tuple(dict.fromkeys(needs))
        return gather(distinct_needs, dataset, stores, sources=sources, progress=bar)

    def _open_test(
        self,
        verdict: "SearchResult",
        test: "SealedTest",
        states: "Sequence[Activations]",
        sources: "EncoderSources",
        bar: BarProgress,
    ) -> "SearchResult":
        """Fit the winner, judge it on the test part, and write its router and its report."""
        from prefill_router_lab.search import ROUTER, conclude

        result, router = conclude(
            verdict, test, states, again=self._again, sources=sources, progress=bar
        )
        router.save(self._to / ROUTER)
        self._write_report(result, router.split)
        return result

    def _write_report(self, verdict: "SearchResult", split: "Split") -> None:
        from prefill_router_lab.search import write

        sizes = ", ".join(f"{len(ids):,} {part}" for part, ids in split.parts.items())
        facts = {
            "dataset": str(self._data),
            "queries": sizes,
            "chosen by": f"{self._config.objective}, {self._config.folds}-fold cross-validation on "
            "all rows but test",
            "seed": str(self._config.seed),
        }
        write(verdict, split, self._to, title=f"Search on {self._data.name}", facts=facts)


def _print_space(space: "Space", *, as_json: bool) -> None:
    counts = {
        "configurations": space.size,
        "fits": space.candidates,
        "features": {name: branch.size for name, branch in space.features.items()},
        "predictors": {name: branch.size for name, branch in space.predictors.items()},
        "calibrations": list(space.calibrations),
    }
    if as_json:
        print_json(counts)
        return
    out.print(f"{space.size:,} distinct configurations, of {space.candidates:,} fits per fold")
    for what in ("features", "predictors"):
        rows = getattr(space, what)
        out.print(f"{what}: " + "; ".join(f"{n} ({b.size})" for n, b in rows.items()))
    out.print(f"calibrations: {', '.join(space.calibrations)}")


def _print_result(verdict: "SearchResult", to: Path) -> None:
    from prefill_router_lab.search import words

    for trial in verdict.ranking[:3]:
        out.say(
            f"#{trial.rank} {trial.predictor} on {trial.features}, calibration "
            f"{trial.calibration}: AUC {trial.mean('auc'):.4f}, Brier {trial.mean('brier'):.4f}",
        )
    for line in words(verdict):
        out.print(line)
    out.say(f"report: {to / 'index.html'}")
