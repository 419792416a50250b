"""Parts that other distributions add: how they are found, loaded and reported."""

import tomllib
from collections.abc import Callable, Iterator
from importlib.metadata import EntryPoint, EntryPoints
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from packages.router.tests.commands import check_malformed, check_refused, run
from prefill_router import plugins
from prefill_router.cli import CommandEntry
from prefill_router.cli.commands import all_commands
from prefill_router.errors import ConfigError, CorruptError, PluginError
from prefill_router.plugins import (
    GROUPS,
    Registry,
    find_every_plugin,
    load_plugin,
    suggest_distribution,
)
from prefill_router.serialization import Kinds

PACKAGES = Path(__file__).parents[2]
GROUP: plugins.Group = "prefill_router.importers"
COMMANDS: plugins.Group = "prefill_router.commands"
OTHERS = ("gateway", "lab", "minipool")
Install = Callable[..., None]


@pytest.fixture
def install(monkeypatch: pytest.MonkeyPatch) -> Iterator[Install]:
    """Replaces the entry points: `install("distribution", group, name="module:ATTRIBUTE")`."""
    points: list[EntryPoint] = []

    def add(distribution: str, group: str, **parts: str) -> None:
        for name, value in parts.items():
            point = EntryPoint(name, value, group)
            points.append(point._for(SimpleNamespace(name=distribution)))  # type: ignore[attr-defined]
        find_every_plugin.cache_clear()

    monkeypatch.setattr(plugins, "entry_points", lambda: EntryPoints(points))
    find_every_plugin.cache_clear()
    yield add
    find_every_plugin.cache_clear()


@pytest.fixture
def parts(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """A module `some_parts` with the parts one, two and three."""
    module = ModuleType("some_parts")
    module.ONE, module.TWO, module.THREE = 1, 2, "three"  # type: ignore[attr-defined]
    monkeypatch.setitem(__import__("sys").modules, "some_parts", module)
    return module


def read_project(name: str) -> dict[str, Any]:
    """The project table of a distribution of this workspace."""
    text = (PACKAGES / name / "pyproject.toml").read_text(encoding="utf-8")
    project: dict[str, Any] = tomllib.loads(text)["project"]
    return project


def read_commands(name: str) -> set[str]:
    value = read_project(name)["entry-points"][COMMANDS][name]
    return set(EntryPoint(name, value, COMMANDS).load())


def test_entries_of_the_package_come_first_and_win(install: Install, parts: ModuleType) -> None:
    del parts
    install("some-parts", GROUP, own="some_parts:ONE", other="some_parts:TWO")
    registry = Registry[object]({"own": "mine", "last": "mine too"}, GROUP)
    assert list(registry) == ["own", "last", "other"]
    assert len(registry) == 3
    assert registry["own"] == "mine"
    assert registry["other"] == 2
    assert "other" in registry
    assert "nothing" not in registry
    with pytest.raises(KeyError):
        registry["nothing"]


def test_of_two_distributions_the_first_in_alphabetical_order_counts(
    install: Install, parts: ModuleType
) -> None:
    del parts
    install("b-parts", GROUP, same="some_parts:TWO")
    install("a-parts", GROUP, same="some_parts:ONE")
    assert load_plugin(GROUP, "same") == 1
    assert plugins.names_of("a-parts", GROUP) == ("same",)
    assert plugins.names_of("b-parts", GROUP) == ()


def test_nothing_is_loaded_before_it_is_used(install: Install) -> None:
    install("some-parts", GROUP, broken="no_such_module:X")
    assert list(Registry[object]({}, GROUP)) == ["broken"]
    assert Kinds[object]("part", "nowhere", {}, GROUP).names == ("broken",)


def test_a_broken_part_is_named_and_the_rest_is_loaded(install: Install, parts: ModuleType) -> None:
    del parts
    install("some-parts", GROUP, whole="some_parts:ONE", odd="some_parts:THREE")
    install("broken-parts", GROUP, broken="no_such_module:X", lacking="some_parts:FOUR")
    registry = Registry[object]({"own": 0}, GROUP, expects=int)
    entries, errors = registry.load_all()
    assert entries == {"own": 0, "whole": 1}
    assert errors.keys() == {"broken", "lacking", "odd"}
    assert "'broken' of the distribution 'broken-parts'" in str(errors["broken"])
    assert "ModuleNotFoundError: No module named 'no_such_module'" in str(errors["broken"])
    assert "AttributeError" in str(errors["lacking"])
    assert "it is a str, and must be a int" in str(errors["odd"])
    assert "fix or uninstall that distribution" in str(errors["odd"])


def test_kinds_of_other_distributions_are_found_and_checked(
    install: Install, parts: ModuleType
) -> None:
    del parts
    install("some-parts", GROUP, one="some_parts:ONE", odd="some_parts:THREE")
    kinds = Kinds[object]("part", "nowhere", {"mine": "module:ENTRY"}, GROUP, expects=int)
    assert kinds.names == ("mine", "one", "odd")
    assert kinds.own == ("mine",)
    assert kinds.find("one") == kinds.of_saved({"kind": "one"}) == 1
    with pytest.raises(PluginError, match="'odd' of the distribution 'some-parts'"):
        kinds.find("odd")
    with pytest.raises(CorruptError, match="the distribution that adds the kind"):
        kinds.of_saved({"kind": "removed"})


@pytest.mark.parametrize("group", GROUPS)
def test_errors_know_the_parts_of_the_other_distributions(group: plugins.Group) -> None:
    """As their pyproject.toml files declare them; a table of commands by the commands in it."""
    names = {}
    for folder in OTHERS:
        points = read_project(folder)["entry-points"].get(group, {})
        parts = read_commands(folder) if group == COMMANDS else set(points)
        names |= dict.fromkeys(parts, f"prefill-router-{folder}")
    table = {
        name: distribution
        for distribution, parts in plugins._OTHERS.items()
        for name in parts.get(group, "").split()
    }
    assert table == names, f"correct _OTHERS in plugins.py for {group}"
    for name, distribution in names.items():
        assert f"it is in {distribution}: " in suggest_distribution(group, name)
    assert suggest_distribution(group, "nonsense") == ""


def test_groups_in_the_pyproject_files_exist() -> None:
    for folder in OTHERS:
        assert read_project(folder)["entry-points"].keys() <= set(GROUPS)


@pytest.mark.parametrize("folder", OTHERS)
def test_the_folders_to_install_are_the_distribution_and_its_requirements(folder: str) -> None:
    table = plugins._FOLDERS[f"prefill-router-{folder}"].split()
    folders = {folder}
    for _ in OTHERS:
        folders |= {name for item in folders for name in list_requirements(item)}
    assert set(table) == folders
    assert len(table) == len(folders)


def list_requirements(folder: str) -> list[str]:
    """The folders of this workspace that a distribution requires."""
    lines = [line.partition("[")[0] for line in read_project(folder)["dependencies"]]
    names = {"prefill-router": "router"} | {f"prefill-router-{name}": name for name in OTHERS}
    return [names[line] for line in lines if line in names]


def test_a_part_that_is_nowhere_is_an_error(install: Install) -> None:
    del install
    with pytest.raises(ConfigError, match="there is no 'nonsense' among"):
        load_plugin(GROUP, "nonsense")
    with pytest.raises(ConfigError, match="packages/lab"):
        load_plugin("prefill_router.questions", "tasks")


@pytest.mark.parametrize(
    ("command", "distribution"),
    [("serve", "gateway"), ("key", "gateway"), ("study", "lab"), ("demo", "minipool")],
)
def test_a_command_of_a_distribution_that_is_not_installed_says_what_to_install(
    install: Install, command: str, distribution: str
) -> None:
    del install
    line = check_malformed(f"there is no command '{command}' here", command, "router", "--port", 80)
    assert f"it is in prefill-router-{distribution}: install it from a checkout" in line
    assert f"./packages/{distribution}" in line


def test_other_mistyped_commands_get_a_suggestion(install: Install) -> None:
    del install
    assert "describe" in check_malformed("there is no command", "descrbe", "data")


def test_a_table_of_something_else_is_named_in_the_help(
    install: Install, parts: ModuleType
) -> None:
    parts.GOOD = {"good": CommandEntry("A good command.", "no_such_home")}  # type: ignore[attr-defined]
    parts.BAD = {"bad": "a text"}  # type: ignore[attr-defined]
    install("good-parts", COMMANDS, good="some_parts:GOOD")
    install("bad-parts", COMMANDS, bad="some_parts:BAD", worse="some_parts:THREE")
    commands, errors = all_commands()
    assert "good" in commands
    assert "bad" not in commands
    assert errors.keys() == {"bad", "worse"}
    text = " ".join(run("--help").out.split())
    assert "A good command." in text
    assert text.count("bad-parts") == 2


def test_a_command_of_the_package_wins(install: Install, parts: ModuleType) -> None:
    parts.TABLE = {"fit": CommandEntry("Another.", "elsewhere")}  # type: ignore[attr-defined]
    install("some-parts", COMMANDS, table="some_parts:TABLE")
    commands, _ = all_commands()
    assert commands["fit"].home == "prefill_router.cli.fit"
    assert next(iter(commands)) == "quickstart"


def test_a_command_whose_module_is_broken_is_one_line(install: Install, parts: ModuleType) -> None:
    parts.TABLE = {  # type: ignore[attr-defined]
        "lost": CommandEntry("Lost.", "no_such_home"),
        "empty": CommandEntry("Empty.", "some_parts"),
    }
    install("some-parts", COMMANDS, table="some_parts:TABLE")
    check_refused(
        "the command 'lost' can't be loaded from no_such_home: ModuleNotFoundError", "lost"
    )
    check_refused("some_parts has no command 'empty'", "empty")
