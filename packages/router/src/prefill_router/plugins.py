"""Parts that other distributions add: predictors, features, importers, commands and more.

A distribution names its parts as entry points, one group per kind of part. A part is loaded when it
is first used, so a distribution that is broken doesn't stop the rest; the error names it.

    [project.entry-points."prefill_router.predictors"]
    nearest_mean = "my_router_parts.nearest_mean:ENTRY"

| group | an entry point is |
| --- | --- |
| `prefill_router.predictors` | a `predictors.PredictorEntry` |
| `prefill_router.features` | a `features.FamilyEntry` |
| `prefill_router.policies` | a class of `policy.Policy` |
| `prefill_router.importers` | an `importers.Format` |
| `prefill_router.graders` | a `grading.GraderKind` |
| `prefill_router.encoders` | the path of an encoder's folder or file |
| `prefill_router.routers` | the path of a router's folder |
| `prefill_router.questions` | a function that asks a target questions, for `add-target` |
| `prefill_router.commands` | a table of commands, `dict[str, cli.CommandEntry]` |
"""

from collections.abc import Iterable, Iterator, Mapping
from functools import cache
from importlib.metadata import entry_points
from typing import Any, Generic, Literal, Protocol, TypeVar, final, get_args, runtime_checkable

from prefill_router.errors import ConfigError, PluginError

Group = Literal[
    "prefill_router.predictors",
    "prefill_router.features",
    "prefill_router.policies",
    "prefill_router.importers",
    "prefill_router.graders",
    "prefill_router.encoders",
    "prefill_router.routers",
    "prefill_router.questions",
    "prefill_router.commands",
]
GROUPS: tuple[Group, ...] = get_args(Group)

_OTHERS: Mapping[str, Mapping[Group, str]] = {
    "prefill-router-gateway": {
        "prefill_router.commands": "serve import-litellm key explain read replay savings canary "
        "export-receipts purge learn",
    },
    "prefill-router-lab": {
        "prefill_router.predictors": "clusters graph irt matrix_factorisation mlp multitask "
        "pairwise_factorisation xgboost",
        "prefill_router.features": "text_network",
        "prefill_router.questions": "tasks",
        "prefill_router.commands": "tasks collect layers sweep search reproduce study",
    },
    "prefill-router-minipool": {
        "prefill_router.encoders": "minipool",
        "prefill_router.routers": "minipool",
        "prefill_router.commands": "demo minipool",
    },
}
"""The parts of this project's other distributions, so that an error can say what to install."""
_FOLDERS: Mapping[str, str] = {
    "prefill-router-gateway": "router gateway",
    "prefill-router-lab": "router lab",
    "prefill-router-minipool": "router gateway lab minipool",
}
"""The folders in `packages` that hold each of them and what it requires."""


@runtime_checkable
class EntryPoint(Protocol):
    """An entry point of `importlib.metadata`, or of the backport, which replaces it if imported."""

    name: str
    value: str
    group: str
    dist: Any

    def load(self) -> Any:
        """Import the part."""


def find_plugins(group: Group) -> Mapping[str, EntryPoint]:
    """The entry points of a group by name; nothing is loaded.

    Of two distributions with the same name for a part, the first in alphabetical order counts.
    """
    return find_every_plugin()[group]


@cache
def find_every_plugin() -> Mapping[Group, Mapping[str, EntryPoint]]:
    """The entry points of all groups, read once: each reading takes a tenth of a second."""
    every = entry_points()
    return {group: _by_name(every.select(group=group)) for group in GROUPS}


def _by_name(points: Iterable[Any]) -> dict[str, EntryPoint]:
    return {point.name: point for point in sorted(points, key=_name_distribution, reverse=True)}


def _name_distribution(point: EntryPoint) -> str:
    return point.dist.name if point.dist is not None else ""


def load_plugin(group: Group, name: str, *, expects: type = object) -> Any:
    """Load a part that another distribution adds.

    Args:
        group: The group of its entry point.
        name: The name of its entry point.
        expects: The class that it must be an instance of.

    Raises:
        ConfigError: No installed distribution has it; the message says which one would.
        PluginError: Its distribution can't be loaded, or it is of another class.
    """
    point = find_plugins(group).get(name)
    if point is None:
        raise ConfigError(f"there is no {name!r} among {group}{suggest_distribution(group, name)}")
    try:
        part = point.load()
    except Exception as error:  # whatever the other distribution raises
        raise describe_fault(point, f"{type(error).__name__}: {error}") from error
    if not isinstance(part, expects):
        fault = f"it is a {type(part).__name__}, and must be a {expects.__name__}"
        raise describe_fault(point, fault)
    return part


def describe_fault(point: EntryPoint, reason: str) -> PluginError:
    """The error for a part that can't be used, with its distribution."""
    return PluginError(
        f"{point.name!r} of the distribution {_name_distribution(point)!r} can't be loaded from "
        f"{point.value!r}: {reason}; fix or uninstall that distribution"
    )


def suggest_distribution(group: Group, name: str) -> str:
    """The end of an error about a part that isn't there: which distribution has it, if one does."""
    for distribution, parts in _OTHERS.items():
        if name in parts.get(group, "").split():
            folders = _list_folders(distribution)
            return (
                f"; it is in {distribution}: install it from a checkout with pip install {folders}"
            )
    return ""


def _list_folders(distribution: str) -> str:
    """The folders of a checkout that `pip install` takes for one of this project's."""
    return " ".join(f"./packages/{name}" for name in _FOLDERS[distribution].split())


def names_elsewhere(group: Group) -> dict[str, str]:
    """The parts of this project's distributions that aren't installed.

    Returns:
        The folders of a checkout that add each of them, as `pip install` takes them.
    """
    return {
        name: _list_folders(distribution)
        for distribution, parts in _OTHERS.items()
        for name in parts.get(group, "").split()
        if name not in find_plugins(group)
    }


def names_of(distribution: str, group: Group) -> tuple[str, ...]:
    """The names of the parts that one installed distribution adds to a group."""
    points = find_plugins(group).items()
    return tuple(name for name, point in points if _name_distribution(point) == distribution)


Entry = TypeVar("Entry")


@final
class Registry(Mapping[str, Entry], Generic[Entry]):
    """Entries by name: those of this package first, then those that other distributions add.

    Args:
        own: The entries of this package.
        group: The group of entry points of the others.
        expects: The class of the entries.

    Attributes:
        own: The entries of this package.
    """

    def __init__(self, own: Mapping[str, Entry], group: Group, *, expects: type = object) -> None:
        self.own, self._group, self._expects = own, group, expects

    def __getitem__(self, name: str) -> Entry:
        """The entry of this name.

        Raises:
            KeyError: No entry has this name.
            PluginError: Its distribution can't be loaded.
        """
        if name in self.own:
            return self.own[name]
        if name not in find_plugins(self._group):
            raise KeyError(name)
        entry: Entry = load_plugin(self._group, name, expects=self._expects)
        return entry

    def __iter__(self) -> Iterator[str]:
        yield from self.own
        yield from (name for name in find_plugins(self._group) if name not in self.own)

    def __len__(self) -> int:
        return len(self.own.keys() | find_plugins(self._group).keys())

    def __contains__(self, name: object) -> bool:
        return name in self.own or name in find_plugins(self._group)

    def load_all(self) -> tuple[dict[str, Entry], dict[str, PluginError]]:
        """The entries that can be loaded, by name, and why the others can't."""
        entries: dict[str, Entry] = {}
        errors: dict[str, PluginError] = {}
        for name in self:
            try:
                entries[name] = self[name]
            except PluginError as error:
                errors[name] = error
        return entries, errors
