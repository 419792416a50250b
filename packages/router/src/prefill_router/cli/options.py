"""Options that several commands share, with the same names and the same help.

`--engine`, and what belongs to it, is for commands whose work an engine can run.
"""

import filecmp
import inspect
import re
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext, redirect_stdout, suppress
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import typer

from prefill_router import files
from prefill_router.cli.application import err, out
from prefill_router.cli.commands import UsageError, parse_choice, usage_errors
from prefill_router.errors import ConfigError, DataError, StoreError, refer
from prefill_router.options import AT_LEAST_ONE, NOT_NEGATIVE, SHARE
from prefill_router.plugins import Registry
from prefill_router.progress import BarProgress
from prefill_router.remote import PathOrUrl, RemotePath, location

if TYPE_CHECKING:
    from prefill_router.activations import Activations, ActivationStore, Pooling
    from prefill_router.data import Origin, Query, RoutingDataset, Split
    from prefill_router.engines import RayEngine
    from prefill_router.policy import Predictions
    from prefill_router.progress import Progress
    from prefill_router.router import EncoderSources, Router


def path_or_url(text: str) -> Path | RemotePath:
    """The place that an argument names; transfers to and from a URL show their progress."""
    return location(text, progress=BarProgress(console=err))


def list_entries(registry: Registry[Any]) -> list[str]:
    """A line for each entry of a registry: its name and summary, or why it can't be loaded."""
    entries, errors = registry.load_all()
    return [
        *(f"{name}: {entry.summary}" for name, entry in entries.items()),
        *(f"{name}: {error}" for name, error in errors.items()),
    ]


EncoderFolders = Annotated[
    list[Path] | None,
    typer.Option("--encoder-folder", help="The folder of a local encoder; repeatable."),
]
Device = Annotated[
    str | None,
    typer.Option(
        help="Where encoders run, and large array work: cpu, cuda or cuda:1. By default a GPU, if "
        "there is one."
    ),
]
RouterFolder = Annotated[
    PathOrUrl, typer.Argument(metavar="ROUTER", help="The router's folder.", parser=path_or_url)
]
OtherRouter = Annotated[
    PathOrUrl | None,
    typer.Argument(metavar="OTHER", help="Another router's folder.", parser=path_or_url),
]
RouterOut = Annotated[
    PathOrUrl, typer.Option("--out", help="The router's folder.", parser=path_or_url)
]
Stores = Annotated[
    list[PathOrUrl] | None,
    typer.Option("--store", help="A finished store of states; repeatable.", parser=path_or_url),
]
NeededStores = Annotated[
    list[PathOrUrl],
    typer.Option("--store", help="A finished store of states; repeatable.", parser=path_or_url),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print everything as JSON.")]
Poolings = Annotated[
    str,
    typer.Option(
        "--pooling",
        help="last, mean, rest (the mean without the first token), or several: last,mean.",
    ),
]
Data = Annotated[
    PathOrUrl, typer.Option("--data", help="The dataset's folder.", parser=path_or_url)
]
AsDocument = Annotated[bool, typer.Option("--json", help="Print one JSON document.")]
DataFolder = Annotated[
    PathOrUrl, typer.Argument(metavar="DATA", help="The dataset's folder.", parser=path_or_url)
]
DataFolders = Annotated[
    list[PathOrUrl],
    typer.Argument(metavar="DATA...", help="Datasets' folders.", parser=path_or_url),
]
Resamples = Annotated[
    int, NOT_NEGATIVE, typer.Option("--resamples", help="Bootstrap resamples; 0 for none.")
]
ResampleSeed = Annotated[int, NOT_NEGATIVE, typer.Option("--seed", help="Seed of the resampling.")]
StudySeed = Annotated[
    int,
    NOT_NEGATIVE,
    typer.Option("--seed", help="The seed of the split, the training and the resampling."),
]
DatasetOut = Annotated[
    PathOrUrl, typer.Option("--out", help="The dataset folder to write.", parser=path_or_url)
]
ReportOut = Annotated[Path, typer.Option("--out", help="The report's folder.")]
SplitFile = Annotated[
    Path | None,
    typer.Option("--split", metavar="FILE", help="A split from `split`; without it, one is drawn."),
]
OwnLam = Annotated[
    float | None,
    SHARE,
    typer.Option(
        "--lam",
        help="From 0, cheapest, to 1, most probably correct; the router's setting if not given.",
    ),
]
Paraphrases = Annotated[
    PathOrUrl | None,
    typer.Option(
        help="Other wordings of the questions, under the same ids: a dataset's folder, or "
        "JSON like RouterArena's router_robustness.json.",
        parser=path_or_url,
    ),
]
Lam = Annotated[
    float, SHARE, typer.Option("--lam", help="From 0, cheapest, to 1, most probably correct.")
]
UnseenPart = Annotated[
    str | None,
    typer.Option(
        "--part",
        metavar="NAME",
        help="The queries to judge on. cross-fit: all that it was fitted on, by routers that "
        "didn't see them; test or calibration: that part of its split; unseen: all "
        "others. By default test; without a test part cross-fit; without that unseen.",
    ),
]


Overwrite = Annotated[
    bool,
    typer.Option(
        "--overwrite", help="Replace what --out holds, even the result of other data or options."
    ),
]
"""The option that lets a result of another origin be replaced."""


def check_origin(folder: Path, origin: "Origin", *, overwrite: bool) -> None:
    """Check that a report's folder is empty, or of a run on the same router and data.

    Raises:
        ConfigError: It holds a report of something else.
    """
    from prefill_router.data import Origin

    if overwrite or not folder.is_dir() or not any(folder.iterdir()):
        return
    there = Origin.read(folder)
    if there != origin:
        origin_text = "of an unknown origin" if there is None else str(there)
        raise ConfigError(
            f"{folder} has a report {origin_text}, and this command would replace it; name another "
            "folder, or pass --overwrite"
        )


def check_same(place: Path, written: Path, *, overwrite: bool) -> None:
    """Check that a file is absent, or equal to the one that would replace it.

    Raises:
        ConfigError: It holds something else.
    """
    if not overwrite and place.exists() and not filecmp.cmp(written, place, shallow=False):
        raise ConfigError(
            f"{place} has another content, and this command would replace it; name another "
            "file, or pass --overwrite"
        )


@contextmanager
def replacing(place: Path, *, overwrite: bool) -> Iterator[Path]:
    """Yield a temporary path; the file written there becomes `place` if that is free or equal.

    Raises:
        ConfigError: It holds something else, and `overwrite` isn't set.
    """
    if place.is_dir():
        raise ConfigError(f"{place} is a folder; name a file in it, such as {place / 'new'}")
    with files.replacing_file(place) as temporary:
        yield temporary
        check_same(place, temporary, overwrite=overwrite)
    files.refresh_checksum(place)  # it may be the pool of a dataset


def parse_poolings(text: str) -> list["Pooling"]:
    """The poolings of an option such as `last,mean`, for which `both` stands too.

    Raises:
        UsageError: It names something else.
    """
    from prefill_router.activations import DEFAULT_POOLINGS, POOLINGS

    names = list(DEFAULT_POOLINGS) if text == "both" else [name.strip() for name in text.split(",")]
    if not set(names) <= set(POOLINGS):
        raise UsageError(
            f"--pooling is {text!r}; give last, mean, rest, or several such as last,mean"
        )
    return [pooling for pooling in POOLINGS if pooling in names]


def read_efforts(text: str | None, choices: Sequence[str] | None = None) -> list[str]:
    """The efforts in an option, separated by commas; empty where it isn't given.

    Args:
        text: The option's text.
        choices: The efforts that may be named; None for all that a target may have.

    Raises:
        UsageError: One isn't known.
    """
    from prefill_router.targets import check_effort

    efforts = [part.strip() for part in (text or "").split(",") if part.strip()]
    for effort in efforts:
        if choices is not None and effort not in choices:
            raise UsageError(f"--efforts has {effort!r}; use {', '.join(choices)}")
        with usage_errors():
            check_effort(effort, "--efforts")
    return list(dict.fromkeys(efforts))


def sources(folders: Sequence[Path] | None) -> "EncoderSources":
    """The local encoders in these folders, each under its folder's name."""
    from prefill_router.router import EncoderSources

    return EncoderSources(folders={path.resolve().name: path for path in folders or ()})


def open_stores(folders: Sequence[PathOrUrl] | None) -> "list[ActivationStore]":
    """The stores of states in these folders."""
    from prefill_router.activations import ActivationStore

    return [ActivationStore.open(path) for path in folders or ()]


def load_router(folder: PathOrUrl, encoder_folders: Sequence[Path] | None) -> "Router":
    """The router in a folder, with the local encoders in these folders."""
    from prefill_router.router import Router

    return Router.load(folder, sources=sources(encoder_folders))


def save_router(router: "Router", to: PathOrUrl) -> None:
    """Save a router; where its place can't be written, elsewhere, so that its fit isn't lost.

    Raises:
        StoreError: Its place can't be written; the message says where it was kept.
    """
    try:
        router.save(to)
    except OSError as error:
        place = _keep_elsewhere(router, error)
        raise StoreError(
            f"{to} can't be written: {error.strerror}; the router was kept in {place}: copy it to "
            f"{to} once there is space, or {refer('the-disk-is-full')}"
        ) from None


def _keep_elsewhere(router: "Router", error: OSError) -> Path:
    """Save a router in the first place of the system that takes it; raises the error if none."""
    for place in (Path(tempfile.gettempdir()), files.default_cache(), Path.home()):
        with suppress(OSError):
            place.mkdir(parents=True, exist_ok=True)
            folder = Path(tempfile.mkdtemp(prefix="prefill-router-", dir=place)) / "router"
            router.save(folder)
            return folder
    raise error


def own_lam(router: "Router", given: float | None) -> float:
    """The lam that was given, or else the router's setting."""
    return router.setting if given is None else given


def read_questions(place: PathOrUrl) -> "Sequence[Query]":
    """The queries of a dataset's folder, or of a JSON file as RouterArena has them."""
    from prefill_router.data import read_dataset
    from prefill_router.importers import read_questions

    if isinstance(place, Path) and place.is_file():
        return read_questions(place)
    return read_dataset(place).queries


def predict(
    router: "Router",
    dataset: "RoutingDataset",
    stores: "Sequence[Activations]",
    progress: "Progress",
) -> "Predictions":
    """A router's predictions; states that no store holds are encoded now and kept in the cache."""
    return router.predict(dataset, stores=stores, cache=files.default_cache(), progress=progress)


def load_or_draw_split(dataset: "RoutingDataset", file: Path | None, seed: int) -> "Split":
    """The split in a file, or one that is drawn now."""
    from prefill_router.data import load_split, split

    return split(dataset, seed=seed) if file is None else load_split(file)


def check_part(dataset: "RoutingDataset", ids: Sequence[str], part: str, *, fix: str) -> None:
    """Check that a dataset has every query in a part of a router's split.

    Args:
        dataset: The dataset.
        ids: The queries of the part.
        part: Its name.
        fix: What to do if some are lacking, for the error.

    Raises:
        DataError: Some are lacking.
    """
    lacking = len(set(ids) - set(dataset.query_ids))
    if lacking:
        raise DataError(
            f"the dataset lacks {lacking:,} of the {len(ids):,} queries in the {part} part of "
            "the router's split. It is another dataset than the router was fitted on, or a "
            f"part of it; {fix}"
        )


_Function = TypeVar("_Function", bound=Callable[..., None])
ENGINES = ("local", "ray")
_RANGE = re.compile(r"([0-9]{1,5})(?:-([0-9]{1,5}))?")


def with_engine(command: _Function) -> _Function:
    """Give a command the options of engines; it gets the engine as `engine`, None for local."""
    own_signature, engine_signature = inspect.signature(command), inspect.signature(_make_engine)

    @wraps(command, assigned=("__module__", "__name__", "__qualname__", "__doc__"))
    def _run_with_engine(**options: Any) -> None:
        engine = _make_engine(**{name: options.pop(name) for name in engine_signature.parameters})
        with nullcontext() if engine is None else _results_apart():
            command(**options, engine=engine)

    parameters = [
        parameter for parameter in own_signature.parameters.values() if parameter.name != "engine"
    ]
    parameters += engine_signature.parameters.values()
    parameters = [
        parameter.replace(kind=inspect.Parameter.KEYWORD_ONLY) for parameter in parameters
    ]
    _run_with_engine.__signature__ = own_signature.replace(parameters=parameters)  # type: ignore[attr-defined]
    _run_with_engine.__annotations__ = {
        parameter.name: parameter.annotation for parameter in parameters
    }
    return _run_with_engine  # type: ignore[return-value]


@contextmanager
def _results_apart() -> Iterator[None]:
    """A context in which what an engine prints goes to standard error, and results don't."""
    out.file = sys.stdout
    try:
        with redirect_stdout(sys.stderr):
            yield
    finally:
        out.file = None  # type: ignore[assignment]  # whatever standard output is


def worker_range(option: str, text: str | None) -> tuple[int, int] | None:
    """The least and the most workers of an option such as `4` or `1-8`.

    Raises:
        UsageError: It says something else.
    """
    if text is None:
        return None
    match = _RANGE.fullmatch(text)
    low, high = (int(match[1]), int(match[2] or match[1])) if match else (1, 0)
    if not low <= high or not high:
        raise UsageError(f"{option} is {text!r}; write a number such as 4, or a range such as 1-8")
    return low, high


def _make_engine(
    engine: Annotated[
        str, typer.Option(help="local, this machine without any engine, or ray.")
    ] = "local",
    address: Annotated[
        str | None,
        typer.Option(help="A running Ray cluster, HOST:PORT or auto; by default one starts here."),
    ] = None,
    workers: Annotated[
        str | None,
        typer.Option(help="Workers of --engine ray, such as 4, or 1-8 where they come and go."),
    ] = None,
    worker_cpus: Annotated[
        int | None,
        AT_LEAST_ONE,
        typer.Option(help="Processors and threads of each worker, by default 1."),
    ] = None,
) -> "RayEngine | None":
    from prefill_router.engines import RayEngine

    parse_choice("--engine", engine, ENGINES)
    size = worker_range("--workers", workers)
    if engine == "ray":
        return RayEngine(address=address, workers=size, cpus=worker_cpus or 1)
    others = {"--address": address, "--workers": workers, "--worker-cpus": worker_cpus}
    if given := [option for option, value in others.items() if value is not None]:
        raise UsageError(f"{given[0]} is an option of --engine ray; add that, or leave it out")
    return None
