"""`prefill-router study`: the options of all studies, and how they begin and end."""

from collections.abc import Callable, Mapping, Sequence, Sized
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, final

import typer

from prefill_router.cli import options as opt
from prefill_router.cli.application import err, out, print_json
from prefill_router.errors import ConfigError, FitError
from prefill_router.progress import BarProgress
from prefill_router.remote import PathOrUrl, location

if TYPE_CHECKING:
    from prefill_router.activations import Activations
    from prefill_router.data import RoutingDataset, Split
    from prefill_router.fitting import Recipe
    from prefill_router.reporting import Report
    from prefill_router.router import Router
    from prefill_router.studies import RecipeFailure


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
Resamples = opt.Resamples
Out = Annotated[Path, typer.Option("--out", help="The study's folder.")]
Seed = Annotated[int, typer.Option("--seed", help="Seed of everything that is random.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print every number as JSON.")]


@final
@dataclass(frozen=True, eq=False)
class OpenedStudy:
    """The inputs of a study.

    Attributes:
        dataset: Scored answers.
        recipes: The recipes, by name.
        drawn: The split.
        states: What the recipes' features read.
        folder: The study's folder.
        bar: Shows the progress.
        known: Facts for the reader of the page.
        router: The router, where a folder of one was given.
    """

    dataset: "RoutingDataset"
    recipes: "Mapping[str, Recipe]"
    drawn: "Split"
    states: "Sequence[Activations]"
    folder: Path
    bar: BarProgress
    known: Mapping[str, str]
    router: "Router | None" = None


@final
@dataclass(frozen=True)
class StudyRequest:
    """The options that the studies of recipes share.

    Attributes:
        config: See `Config`.
        data: The dataset's folder.
        to: The study's folder.
        store: Stores of states; what they lack is encoded now.
        split_file: The split; by default a router's own, or one drawn with the seed.
        seed: The seed of the split.
        encoder_folder: Folders of local encoders.
    """

    config: str
    data: PathOrUrl
    to: Path
    store: Sequence[PathOrUrl] | None
    split_file: Path | None
    seed: int
    encoder_folder: Sequence[Path] | None


def begin(
    name: str,
    given: StudyRequest,
    asked: Mapping[str, Any],
    check: Callable[["RoutingDataset", "Split"], object] | None = None,
) -> OpenedStudy:
    """Check the folder, read the inputs, and gather the states.

    Args:
        name: The study's name.
        given: The options that the studies share.
        asked: The study's own options, for the mark in its folder.
        check: Raises an error, before any long work, if the data don't suit the study.

    Raises:
        PrefillRouterError: Something can't be read, or the folder holds something else.
    """
    from prefill_router.data import read_dataset
    from prefill_router.fitting import gather
    from prefill_router.reporting import check_place, mark

    check_place(given.to, name)
    recipes, router = _recipes(given.config)
    dataset = read_dataset(given.data)
    drawn = _drawn(dataset, recipes, router, given.split_file, given.seed)
    if check is not None:
        check(dataset, drawn)
    bar = BarProgress(console=err)
    stores = opt.open_stores(given.store)
    plain = {name: recipe.to_dict() for name, recipe in recipes.items()}
    mark(given.to, name, {"seed": given.seed, **asked, "recipes": plain, "split": drawn.to_dict()})
    needs = tuple(need for recipe in recipes.values() for need in recipe.needs)
    states = gather(needs, dataset, stores, sources=opt.sources(given.encoder_folder), progress=bar)
    known = facts(given.data, drawn, given.seed)
    return OpenedStudy(dataset, recipes, drawn, states, given.to, bar, known, router)


def require_some(fitted: Sized, failed: "Sequence[RecipeFailure]") -> None:
    """Check that at least one router could be fitted.

    Raises:
        FitError: No router could be fitted.
    """
    if failed and not len(fitted):
        raise FitError(f"no router could be fitted; {failed[0].name}: {failed[0].why}")


def facts(data: PathOrUrl, drawn: "Split", seed: int) -> dict[str, str]:
    """The facts that every study's page states."""
    sizes = ", ".join(f"{len(ids):,} {part}" for part, ids in drawn.parts.items())
    return {
        "dataset": str(data),
        "queries": sizes,
        "split": f"seed {drawn.seed}; fitted on train alone"
        + (", calibrated on calibration" if "calibration" in drawn.parts else ""),
        "seed": str(seed),
    }


def finish(report: "Report", to: Path, *, as_json: bool = False) -> None:
    """Write a study's report and print its summary.

    Args:
        report: What the study says.
        to: Its folder.
        as_json: Whether the numbers are printed instead of the table.
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


def _recipes(config: str) -> "tuple[Mapping[str, Recipe], Router | None]":
    from prefill_router.fitting import recipe_from_dict
    from prefill_router.router import Router
    from prefill_router.studies.comparison import recipes_of

    folder = location(config)
    if isinstance(folder, Path) and not folder.is_dir():
        return recipes_of(config), None
    router = Router.load(folder)
    made = router.record.options.get("recipe")
    if not isinstance(made, dict):
        raise ConfigError(f"{config} has no record of its recipe; fit it again, or give a recipe")
    return {
        folder.resolve().name: recipe_from_dict({"shrinkage": False, "cost": "median", **made})
    }, router


def _drawn(
    dataset: "RoutingDataset",
    recipes: "Mapping[str, Recipe]",
    router: "Router | None",
    file: Path | None,
    seed: int,
) -> "Split":
    from prefill_router.data import load_split
    from prefill_router.studies.comparison import draw_for

    if file is not None:
        return load_split(file)
    return draw_for(recipes, dataset, seed=seed) if router is None else router.split
