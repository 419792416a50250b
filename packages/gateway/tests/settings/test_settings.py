"""The gateway's settings: files, the environment over them, options over both, errors at once."""

import re
from pathlib import Path

import pytest

from prefill_router.errors import ConfigError
from prefill_router_gateway.runtime.configuration import GatewayPaths
from prefill_router_gateway.settings import (
    SECTIONS,
    GatewaySettings,
    SettingsSection,
    read_settings,
)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "gateway.yaml"


def test_nothing_set_gives_the_defaults(file: Path) -> None:
    file.write_text("")
    assert read_settings(file) == read_settings() == GatewaySettings()


def test_options_come_before_the_environment_and_that_before_the_file(
    file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file.write_text("routing: {lam: 0.1, fallback: best, novelty: 0.9}\nbudgets: []\n")
    monkeypatch.setenv("PREFILL_ROUTER_ROUTING__LAM", "0.2")
    monkeypatch.setenv("PREFILL_ROUTER_ROUTING__FALLBACK", "cheapest")
    read = read_settings(file).routing
    assert (read.lam, read.fallback, read.novelty) == (0.2, "cheapest", 0.9)
    paths = GatewayPaths(router=tmp_path, config=file, overrides={"routing": {"lam": 0.3}})
    assert paths.settings().routing.lam == 0.3
    assert paths.settings().routing.fallback == "cheapest"


def test_every_error_is_told_at_once(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file.write_text(
        "rooting: {}\nrouting: {lam: 3, novelt: 1}\nreceipts: {url: 'mysql://x'}\n"
        "traffic: {share: 0.5}\nbudgets: [{dollars: -1, per: week}]\n"
    )
    monkeypatch.setenv("PREFILL_ROUTER_LIMITS__REQUESTS", "none")
    with pytest.raises(ConfigError) as caught:
        read_settings(file)
    for part in (
        "rooting: no such setting; the settings are listen",
        "routing.lam",
        "routing.novelt",
        "receipts.url",
        "traffic: .*otherwise",
        "budgets.0.dollars",
        "budgets.0.per",
        "LIMITS__REQUESTS",
    ):
        assert re.search(part, str(caught.value)), part
    assert len(caught.value.messages) == len(str(caught.value).splitlines()) == 8


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("- 1\n", "not settings"),
        ("routing: {lam: 0.1}\nrouting: {lam: 0.2}\n", "repeated"),
        ("routing: [", "not YAML"),
        ("routing: {lam: .nan}\n", "routing.lam"),
        ("routing: {lam: on}\n", "routing.lam: must be a number, not true or false"),
        ("budgets: [{dollars: yes, per: day}]\n", "dollars: must be a number, not true or false"),
        ("listen: {port: true}\n", "listen.port: must be a number, not true or false"),
        ("learning: {share: 0.1}\n", "learning: a share above 0 keeps the texts.*keep_texts: true"),
        ("learning: {keep_days: 0}\n", "learning.keep_days"),
    ],
)
def test_a_malformed_file_is_refused(file: Path, text: str, problem: str) -> None:
    file.write_text(text)
    with pytest.raises(ConfigError, match=problem):
        read_settings(file)


def test_a_malformed_variable_or_option_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    paths = GatewayPaths(router=tmp_path, overrides={"routing": {"lam": 7}})
    with pytest.raises(ConfigError, match=r"the options: routing\.lam: "):
        paths.settings()
    monkeypatch.setenv("PREFILL_ROUTER_BUDGETS", "[{")
    with pytest.raises(ConfigError, match="PREFILL_ROUTER_BUDGETS: isn't JSON"):
        read_settings()


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        (
            "routing: {lamb: 0.2}\n",
            r"routing\.lamb: no such setting; the settings are .*deadline_seconds",
        ),
        (
            "budgets: [{dollar: 1}]\n",
            r"budgets\.0\.dollar: no such setting; the settings are .*dollars",
        ),
    ],
)
def test_a_name_within_a_part_that_isnt_known_is_told_with_those_that_are(
    file: Path, text: str, problem: str
) -> None:
    file.write_text(text)
    with pytest.raises(ConfigError, match=problem):
        read_settings(file)


def test_a_section_is_added_by_registering_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class ColourSettings(SettingsSection):
        name: str = "red"
        depth: int = 8

    with pytest.raises(ConfigError, match="no section of the class ColourSettings"):
        read_settings(environment={}).section(ColourSettings)
    monkeypatch.setitem(SECTIONS, "colour", ColourSettings)
    path = tmp_path / "gateway.yaml"
    path.write_text("colour: {name: green}\nrouting: {lam: 0.7}\n")
    settings = read_settings(path, environment={"PREFILL_ROUTER_COLOUR__DEPTH": "16"})
    assert settings.section(ColourSettings) == ColourSettings(name="green", depth=16)
    assert settings.routing.lam == 0.7
    path.write_text("colour: {nam: green}\n")
    with pytest.raises(
        ConfigError, match="no such setting; the settings are name, depth; did you mean"
    ):
        read_settings(path, environment={})


def test_settings_of_an_agent_need_an_agent_that_is_known(file: Path) -> None:
    file.write_text("agents: {by_agent: {claude-cod: {main: {lam: 1}}}}\n")
    with pytest.raises(ConfigError, match=r"by_agent has 'claude-cod'.*did you mean 'claude-code'"):
        read_settings(file)
    own = "marks: {ours: {clients: [ours/]}}, by_agent: {ours: {main: {lam: 1}}}"
    file.write_text(f"agents: {{{own}}}\n")
    assert read_settings(file).agents.by_agent["ours"]["main"].lam == 1
