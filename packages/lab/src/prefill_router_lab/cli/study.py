"""`prefill-router study`: the inputs of all studies, and how they begin and end.

The studies of labels and of prompts are here: `learning` shows quality against labelled queries and
measured targets, `robustness` decisions on perturbed prompts.
"""

from collections.abc import Callable, Mapping, Sequence, Sized
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, final

import typer

from prefill_router.cli import options as opt
from prefill_router.cli.application import err, out, print_json
from prefill_router.cli.commands import UsageError
from prefill_router.cli.judged_queries import JudgedQueries, check_part_name
from prefill_router.cli.options import SplitFile, with_engine
from prefill_router.errors import ConfigError, FitError
from prefill_router.files import default_cache
from prefill_router.options import AT_LEAST_ONE, SHARE_ABOVE_ZERO
from prefill_router.progress import BarProgress
from prefill_router.remote import PathOrUrl, location
from prefill_router_lab.cli.typed_options import list_options, with_options
from prefill_router_lab.learning_curves import LearningOptions
from prefill_router_lab.study_options import Resamples, StudyOptions

if TYPE_CHECKING:
    from prefill_router.activations import Activations
    from prefill_router.comparison import RecipeFailure
    from prefill_router.data import Query, RoutingDataset, Split
    from prefill_router.engines import Engine
    from prefill_router.fitting import Recipe
    from prefill_router.reporting import Report
    from prefill_router.robustness import Kind
    from prefill_router.router import Router
    from prefill_router_lab.learning_curves import Size

study = typer.Typer()

Config = Annotated[
    str,
    typer.Argument(
        metavar="CONFIG",
        help="A YAML file with routers, the folder of a router, or: all, the packaged list.",
    ),
]
Data = opt.Data
Stores = opt.Stores
Folders = opt.EncoderFolders
Out = Annotated[Path, typer.Option("--out", help="The study's folder.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print every number as JSON.")]


@dataclass(frozen=True, kw_only=True)
class RecipeInputs:
    """The inputs of a study of recipes.

    Attributes:
        config: See `Config`.
        data: The dataset's folder.
        to: The study's folder.
        store: Stores of states; what they lack is encoded now.
        split_file: The split; by default a router's own, or one drawn with the seed.
        encoder_folder: Folders of local encoders.
        as_json: Whether the numbers are printed as JSON.
    """

    config: Config
    data: Data
    to: Out
    store: Stores = None
    split_file: SplitFile = None
    encoder_folder: Folders = None
    as_json: AsJson = False


@dataclass(frozen=True, kw_only=True)
class RouterInputs:
    """The inputs of a study of a fitted router.

    Attributes:
        folder: The router.
        data: The dataset's folder.
        to: The study's folder.
        store: Stores of states; what they lack is encoded now.
        part: The queries that it is judged on, see `JudgedQueries`.
        encoder_folder: Folders of local encoders.
        as_json: Whether the numbers are printed as JSON.
    """

    folder: opt.RouterFolder
    data: Data
    to: Out
    store: Stores = None
    part: opt.UnseenPart = None
    encoder_folder: Folders = None
    as_json: AsJson = False


@final
@dataclass(frozen=True, eq=False)
class OpenedStudy:
    """The inputs of a study of recipes.

    Attributes:
        dataset: Scored answers.
        recipes: The recipes, by name.
        split: The split.
        states: What the recipes' features read.
        bar: Shows the progress.
        facts: Facts for the reader of the page.
        router: The router, where a folder of one was given.
    """

    dataset: "RoutingDataset"
    recipes: "Mapping[str, Recipe]"
    split: "Split"
    states: "Sequence[Activations]"
    bar: BarProgress
    facts: Mapping[str, str]
    router: "Router | None" = None


def begin(
    name: str,
    inputs: RecipeInputs,
    options: StudyOptions,
    check: Callable[["RoutingDataset", "Split"], object] | None = None,
    **words: str | None,
) -> OpenedStudy:
    """Check the folder, read the inputs, and gather the states.

    Args:
        name: The study's name.
        inputs: Its inputs.
        options: Its options, which are kept in its folder.
        check: Raises an error, before any long work, if the data don't suit the study.
        words: Options of the command alone, which are kept beside the others.

    Raises:
        PrefillRouterError: Something can't be read, or the folder holds something else.
    """
    from prefill_router.data import read_dataset
    from prefill_router.fitting import gather
    from prefill_router.reporting import check_place, mark

    check_place(inputs.to, name)
    recipes, router = _read_recipes(inputs.config)
    dataset = read_dataset(inputs.data)
    split = _choose_split(dataset, recipes, router, inputs.split_file, options.seed)
    if check is not None:
        check(dataset, split)
    bar = BarProgress(console=err)
    stores, sources = opt.open_stores(inputs.store), opt.sources(inputs.encoder_folder)
    plain = {name: recipe.to_dict() for name, recipe in recipes.items()}
    own = {option.name: getattr(options, option.name) for option in list_options(type(options))}
    settings = {"seed": options.seed, **words, **own}
    mark(inputs.to, name, {**settings, "recipes": plain, "split": split.to_dict()})
    needs = tuple(need for recipe in recipes.values() for need in recipe.needs)
    states = gather(needs, dataset, stores, sources=sources, progress=bar)
    facts = list_facts(inputs.data, split, options.seed)
    return OpenedStudy(dataset, recipes, split, states, bar, facts, router)


def begin_judged(name: str, inputs: RouterInputs) -> JudgedQueries:
    """Check the folder, and read the router and the queries that it is judged on.

    Raises:
        PrefillRouterError: Something can't be read, or the folder holds something else.
    """
    from prefill_router.data import read_dataset
    from prefill_router.reporting import check_place

    check_part_name(inputs.part)
    check_place(inputs.to, name)
    router = opt.load_router(inputs.folder, inputs.encoder_folder)
    return JudgedQueries.of(router, read_dataset(inputs.data), inputs.part)


def require_some(fits: Sized, failures: "Sequence[RecipeFailure]") -> None:
    """Check that at least one router could be fitted.

    Raises:
        FitError: No router could be fitted.
    """
    if failures and not len(fits):
        raise FitError(f"no router could be fitted; {failures[0].name}: {failures[0].why}")


def list_facts(data: PathOrUrl, split: "Split", seed: int) -> dict[str, str]:
    """The facts that every study's page states."""
    sizes = ", ".join(f"{len(ids):,} {part}" for part, ids in split.parts.items())
    return {
        "dataset": str(data),
        "queries": sizes,
        "split": f"seed {split.seed}; fitted on train alone"
        + (", calibrated on calibration" if "calibration" in split.parts else ""),
        "seed": str(seed),
    }


def finish(report: "Report", inputs: RecipeInputs | RouterInputs) -> None:
    """Write a study's report to its folder, and print its numbers as JSON or its summary."""
    write_and_print(report, inputs.to, as_json=inputs.as_json)


def write_and_print(report: "Report", to: Path, *, as_json: bool) -> None:
    """Write a study's report.

    Args:
        report: What the study says.
        to: Its folder.
        as_json: Whether the numbers are printed instead of the table and the summary.
    """
    from prefill_router.reporting import PAGE, write_report_files

    write_report_files(report, to)
    for warning in report.warnings:
        err.say(warning)
    if as_json:
        print_json(dict(report.numbers))
        return
    if report.short is not None:
        out.print(report.short.for_terminal())
    for line in report.summary:
        out.say(line)
    out.say(f"report: {to / PAGE}")


def _read_recipes(config: str) -> "tuple[Mapping[str, Recipe], Router | None]":
    from prefill_router.comparison import recipes_of
    from prefill_router.fitting import recipe_from_dict
    from prefill_router.router import Router

    folder = location(config)
    if isinstance(folder, Path) and not folder.is_dir():
        return recipes_of(config).recipes, None
    router = Router.load(folder)
    options = router.record.options.get("recipe")
    if not isinstance(options, dict):
        raise ConfigError(f"{config} has no record of its recipe; fit it again, or give a recipe")
    return {
        folder.resolve().name: recipe_from_dict({"shrinkage": False, "cost": "median", **options})
    }, router


def _choose_split(
    dataset: "RoutingDataset",
    recipes: "Mapping[str, Recipe]",
    router: "Router | None",
    file: Path | None,
    seed: int,
) -> "Split":
    from prefill_router.comparison import draw_for
    from prefill_router.data import load_split

    if file is not None:
        return load_split(file)
    return draw_for(recipes, dataset, seed=seed) if router is None else router.split


FITS = "fits"
"""The subfolder of a study that keeps the predictions of each fit."""


@study.command()
@with_engine
@with_options
def learning(
    *,
    shares: Annotated[
        str | None, typer.Option(help="Shares of the labelled queries, such as 0.1,0.3,1.")
    ] = None,
    measured: Annotated[
        str | None, typer.Option(help="Labelled targets per query, such as 1,2,4.")
    ] = None,
    options: LearningOptions,
    inputs: RecipeInputs,
    engine: "Engine | None" = None,
) -> None:
    """Fit each router on fewer labels, and say whether more labels would help, and which.

    Fewer labels are fewer queries, or all queries with fewer labelled targets each. By default,
    sizes are chosen so that both ways have the same numbers of labels.

    Example: prefill-router study learning routers.yaml --data answers --out learning
    """
    from prefill_router_lab.learning_curves import NAME, study_learning

    options = replace(options, sizes=_read_sizes(shares, measured))
    open_study = begin(NAME, inputs, options, shares=shares, measured=measured)
    result = study_learning(
        open_study.dataset,
        open_study.recipes,
        open_study.states,
        open_study.split,
        options,
        folder=_make_fits_folder(inputs.to),
        engine=engine,
        progress=open_study.bar,
    )
    report = result.report(title=f"Learning curves on {inputs.data.name}", facts=open_study.facts)
    finish(report, inputs)


def _make_fits_folder(to: Path) -> Path:
    folder = to / FITS
    folder.mkdir(exist_ok=True)
    return folder


def _read_sizes(shares: str | None, measured: str | None) -> "tuple[Size, ...]":
    from prefill_router_lab.learning_curves import Size

    sizes = [Size(number) for number in _read_numbers("--shares", shares)]
    for number in _read_numbers("--measured", measured):
        if number != int(number):
            raise UsageError(f"--measured has {number:g}; it must be whole numbers")
        sizes.append(Size(measured=int(number)))
    return tuple(sizes)


def _read_numbers(option: str, text: str | None) -> list[float]:
    try:
        return [float(part) for part in (text or "").split(",") if part.strip()]
    except ValueError:
        raise UsageError(f"{option} is {text!r}; it must be numbers separated by commas") from None


@dataclass(frozen=True, kw_only=True)
class RobustnessOptions(StudyOptions):
    """The options of `study robustness`."""

    given_lam: opt.OwnLam = None
    paraphrases: opt.Paraphrases = None
    typos: Annotated[
        float,
        SHARE_ABOVE_ZERO,
        typer.Option(help="The share of words of four or more letters that have a typo."),
    ] = 0.05
    sample: Annotated[
        int | None,
        AT_LEAST_ONE,
        typer.Option(help="How many queries, drawn at random; by default all."),
    ] = None
    resamples: Resamples = 1000


@study.command()
@with_options
def robustness(options: RobustnessOptions, inputs: RouterInputs) -> None:
    """Count the decisions that change if prompts get typos, other words or reordered options.

    The router decides on original and changed prompts at the same lam. The share of equal decisions
    is RouterArena's robustness. The labels of the original prompts say what the changed decisions
    cost.

    Example: prefill-router study robustness router --data answers --out robustness
    """
    from prefill_router.reporting import mark
    from prefill_router.robustness import NAME, report_of, robustness_study, sample_queries

    queries = begin_judged(NAME, inputs)
    router, folder, seed = queries.router, str(inputs.folder), options.seed
    lam = opt.own_lam(router, options.given_lam)
    sample = sample_queries(queries.judged, options.sample, seed=seed)
    others = None if options.paraphrases is None else opt.read_questions(options.paraphrases)
    versions = _change_prompts(sample.queries, others, options.typos, seed)
    settings = {"router": folder, "part": queries.part, "lam": lam, "typos": options.typos}
    settings |= {
        "seed": seed,
        "queries": len(sample),
        "paraphrases": str(options.paraphrases or ""),
    }
    mark(inputs.to, NAME, settings)
    result = robustness_study(
        router,
        sample,
        versions,
        lam=lam,
        stores=opt.open_stores(inputs.store),
        cache=default_cache(),
        resamples=options.resamples,
        seed=seed,
        progress=BarProgress(console=err),
    )
    judged_on = f"{len(sample):,} queries, {queries.part} part"
    facts = list_facts(inputs.data, router.split, seed) | {"router": folder, "judged on": judged_on}
    finish(report_of(result, title=f"Robustness on {inputs.data.name}", facts=facts), inputs)


def _change_prompts(
    queries: "Sequence[Query]", others: "Sequence[Query] | None", typos: float, seed: int
) -> "dict[Kind, Sequence[Query]]":
    from prefill_router.robustness import CHANGES, pair_paraphrases, perturb

    versions: dict[Kind, Sequence[Query]] = {
        kind: perturb(queries, kind, seed=seed, typos=typos) for kind in CHANGES
    }
    return (
        versions
        if others is None
        else {**versions, "paraphrases": pair_paraphrases(queries, others)}
    )
