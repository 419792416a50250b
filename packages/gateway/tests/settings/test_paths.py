"""Where a wrong setting is set: a line of the file, a variable, an option; and what was meant."""

from pathlib import Path
from typing import Any

import pytest

from prefill_router.errors import ConfigError
from prefill_router.yaml_files import line_of
from prefill_router_gateway.settings import read_settings, stray_variables

FILE = """\
# of the gateway
routing:
  lam: 3
  fallbak: best
budgets:
  - {dollars: 5, per: day}
  - dollars: -1
    per: week
sesions: {}
"""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "gateway.yaml"
    path.write_text(FILE)
    return path


def read_errors(file: Path | None = None, *, options: Any = None, **variables: str) -> list[str]:
    environment = {f"PREFILL_ROUTER_{name}": text for name, text in variables.items()}
    with pytest.raises(ConfigError) as caught:
        read_settings(file, options=options, environment=environment)
    return list(caught.value.messages)


def test_a_setting_of_the_file_is_told_with_its_line(file: Path) -> None:
    error_by_line = {
        error.partition(": ")[0].rpartition(":")[2]: error for error in read_errors(file)
    }
    assert sorted(error_by_line) == ["3", "4", "7", "8", "9"]
    assert error_by_line["3"] == (
        f"{file}:3: routing.lam: Input should be less than or equal to 1, not 3"
    )
    assert error_by_line["4"].startswith(
        f"{file}:4: routing.fallbak: no such setting; the settings are lam, "
    )
    assert error_by_line["4"].endswith("; did you mean fallback?")
    assert "budgets.1.dollars" in error_by_line["7"]
    assert error_by_line["8"].endswith("Input should be 'hour' or 'day', not 'week'")
    assert error_by_line["9"].endswith("; did you mean sessions?")


def test_a_variable_is_told_by_its_name(file: Path) -> None:
    errors = read_errors(
        file,
        ROUTING__LAM="x",
        ROUTING__NOVELTI="1",
        RUOTING__LAM="0.7",
        BUDGETS='[{"dollars": 1}]',
        LISTEN='{"port": 70000}',
        SESSIONS__SECONDS="0",
    )
    assert "PREFILL_ROUTER_SESSIONS__SECONDS: Input should be greater than 0, not '0'" in errors
    assert [error.partition(": ")[0] for error in errors if error.startswith("PREFILL")] == [
        "PREFILL_ROUTER_LISTEN",
        "PREFILL_ROUTER_ROUTING__LAM",
        "PREFILL_ROUTER_ROUTING__NOVELTI",
        "PREFILL_ROUTER_SESSIONS__SECONDS",
        "PREFILL_ROUTER_BUDGETS",
        "PREFILL_ROUTER_RUOTING__LAM",
    ]
    for words in (
        "ROUTING__LAM: Input should be a valid number, unable to parse string as a number, not 'x'",
        "LISTEN: listen.port: ",
        "BUDGETS: budgets.0.per: Field required",
        "; did you mean routing?",
    ):
        assert any(words in error for error in errors), words


def test_what_several_set_together_names_them_all(tmp_path: Path) -> None:
    file = tmp_path / "gateway.yaml"
    file.write_text("limits: {}\n\ntraffic: {}\n")
    (error,) = read_errors(file, TRAFFIC__SHARE="0.5")
    assert error.startswith(f"PREFILL_ROUTER_TRAFFIC__SHARE and {file}:3: traffic: a share below 1")
    (error,) = read_errors(options={"listen": {"port": -1}}, LISTEN__PORT="80")
    assert error.startswith("the options: listen.port: ")


def test_what_isnt_json_hides_nothing_else(file: Path) -> None:
    errors = read_errors(file, BUDGETS="5 dollars", ROUTING__NAMES="{")
    assert errors[:2] == [
        "PREFILL_ROUTER_BUDGETS: isn't JSON; it has several values: [...] or {...}",
        "PREFILL_ROUTER_ROUTING__NAMES: isn't JSON; it has several values: [...] or {...}",
    ]
    assert len(errors) == 7


def test_variables_are_joined_the_longer_names_over_the_shorter() -> None:
    settings = read_settings(
        options={"routing": {"novelty": 0.5}},
        environment={
            "PREFILL_ROUTER_ROUTING": '{"lam": 0.1, "names": {"a": 0.1}}',
            "prefill_router_routing__lam": "0.2",
            "PREFILL_ROUTER_ROUTING__NAMES__CHEAP": "0.3",
            "PREFILL_ROUTER_BUDGETS": '[{"dollars": 5, "per": "day"}]',
            "PREFILL_ROUTER_FORWARD_HEADERS": '["x-team"]',
            "PREFILL_ROUTER_KEYS": "keys.yaml",
            "PREFILL_ROUTER_RECEIPTS__PROMPTS": "true",
            "PREFILL_ROUTER_STRAY": "{",
            "HOME": "/",
        },
    )
    assert (settings.routing.lam, settings.routing.novelty) == (0.2, 0.5)
    assert settings.routing.names == {"a": 0.1, "cheap": 0.3}
    assert settings.budgets[0].dollars == 5
    assert (settings.forward_headers, settings.keys) == (("x-team",), Path("keys.yaml"))
    assert settings.receipts.prompts


def test_variables_that_set_nothing_are_found() -> None:
    environment = {
        "PREFILL_ROUTER_BUDGET": "[]",
        "PREFILL_ROUTER_PORT": "tcp://10.0.0.1:8080",
        "PREFILL_ROUTER_XYZ": "1",
        "PREFILL_ROUTER_ROUTING__LAM": "0.7",
        "PREFILL_ROUTER_KEYS": "keys.yaml",
        "OTHER": "",
    }
    assert stray_variables(environment) == {
        "PREFILL_ROUTER_BUDGET": "; did you mean PREFILL_ROUTER_BUDGETS?",
        "PREFILL_ROUTER_PORT": "; did you mean PREFILL_ROUTER_LISTEN__PORT?",
        "PREFILL_ROUTER_XYZ": "",
    }


def test_an_address_with_a_password_isnt_quoted(tmp_path: Path) -> None:
    file = tmp_path / "gateway.yaml"
    file.write_text("receipts: {url: 'mysql://me:secret@x'}\ntraces: 'me:secret@x'\n")
    errors = read_errors(file)
    assert [error.partition(":")[2].partition(":")[0] for error in errors] == ["1", "2"]
    assert "secret" not in "".join(errors)


@pytest.mark.parametrize(
    ("place", "line"),
    [(("routing", "lam"), 3), (("budgets", 1, "per"), 8), (("budgets", 7), 5), (("gone", "x"), 1)],
)
def test_where_nothing_stands_the_line_is_that_of_what_it_would_stand_in(
    file: Path, place: tuple[Any, ...], line: int
) -> None:
    assert line_of(file, place) == line
