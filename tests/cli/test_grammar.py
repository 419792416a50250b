"""One grammar in all commands, checked over the table of them."""

import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest

import prefill_router
from packages.router.tests.commands import Job, check_malformed, check_refused, run, run_ok
from prefill_router.cli.application import Command, ExitCode, load
from prefill_router.cli.commands import CommandEntry, all_commands
from prefill_router.cli.ranges import describe_range, find_ranges

pytestmark = pytest.mark.slow

GUIDE = Path(__file__).parents[2] / "docs" / "guides" / "commands.md"
SUBJECTS = {
    "ROUTER": "route show reprice export serve evaluate doctor guarantee calibration "
    "study:effort study:end-to-end study:peers study:robustness",
    "CONFIG OTHER": "compare",
    "ROUTER PROMPTS": "assign",
    "BATCHES RESULT": "check-assignment",
    "ROUTER NAME": "add-target remove-target",
    "CONFIG": "study:seeds study:ratio study:shift study:learning import-litellm",
    "DATA": "describe split encode layers sweep fit reproduce study:dimensions",
    "DATA...": "merge study:layers",
    "RUN": "grade",
    "RECEIPTS": "replay canary export-receipts purge savings",
    "FORMAT SOURCE": "import",
    "SOURCE": "quickstart",
    "SPACE": "search",
    "REQUEST.json": "read",
    "VERSIONS": "versions:list",
    "VERSIONS ROUTER": "versions:add",
    "VERSIONS VERSION": "versions:promote versions:rollback",
    "SPEC": "tasks",
    "ID": "explain",
    "NAME": "key:new key:revoke",
    "": "prices collect learn key:list demo minipool:serve minipool:tasks",
}
"""What stands first, by itself; `route` has the prompt behind its router."""
SERVERS = ("minipool serve",)
"""They run until they are ended, and say where they listen in a file."""


def walk(table: dict[str, CommandEntry], before: str = "") -> Iterator[tuple[str, CommandEntry]]:
    for name, entry in table.items():
        yield before + name, entry
        yield from walk(entry.commands, f"{before}{name} ")


LISTED = {name: entry for name, entry in walk(all_commands()[0]) if entry.home}
NAMES = sorted(LISTED)


@cache
def command(name: str) -> Command:
    return load(LISTED[name].home, name.rpartition(" ")[2])


def options(name: str) -> dict[str, Any]:
    return {opt: p for p in command(name).params if p.param_type_name == "option" for opt in p.opts}


def annotation(param: Any) -> Any:
    return param.type_descriptor.annotation


@pytest.mark.parametrize("name", NAMES)
def test_the_list_begins_as_the_help_does(name: str) -> None:
    first = " ".join((command(name).help or "").split("\n\n")[0].split())
    assert first == LISTED[name].summary
    assert f"Example: prefill-router {name}" in (command(name).help or "")


@pytest.mark.parametrize("name", NAMES)
def test_the_subject_comes_first(name: str) -> None:
    arguments = [
        p.metavar or p.name for p in command(name).params if p.param_type_name == "argument"
    ]
    if name == "route":
        assert arguments.pop() == "PROMPT"
    assert name.replace(" ", ":") in SUBJECTS[" ".join(arguments)].split()


@pytest.mark.parametrize("name", NAMES)
def test_options_are_spelt_alike(name: str) -> None:
    by_name = options(name)
    if "--split" in by_name:
        assert by_name["--split"].metavar == "FILE"
        assert annotation(by_name["--split"]) is Path
    if "--part" in by_name:
        assert by_name["--part"].metavar == "NAME"
        assert annotation(by_name["--part"]) is str
    assert "--json" in by_name or name in SERVERS
    for unwanted in ("--limit", "--force", "--output", "--dataset", "--stores"):
        assert unwanted not in by_name
    for opt in by_name:
        assert re.fullmatch(r"--[a-z][a-z-]*|-h", opt)


def test_what_reads_a_split_and_what_judges_a_part_says_so() -> None:
    files = {name for name in NAMES if "--split" in options(name)}
    parts = {name for name in NAMES if "--part" in options(name)}
    fitted = {"fit", "layers", "sweep", "search", "compare"}
    judging = {"study effort", "study end-to-end", "study peers", "study robustness"}
    studies = {n for n in NAMES if n.startswith("study")} - {"study layers", *judging}
    assert files == fitted | studies
    assert parts == {"evaluate", "doctor", "guarantee", *judging}


def numeric(name: str) -> list[str]:
    return [
        p.opts[0]
        for p in command(name).params
        if p.param_type_name == "option" and annotation(p) in (int, float, list[float], list[int])
    ]


def required_arguments(name: str) -> list[str]:
    """What a command must be given; none of it is there."""
    words: list[str] = []
    for param in command(name).params:
        if param.required and param.param_type_name == "argument":
            words.append("gone")
        elif param.required:
            choices = param.type_descriptor.choices
            words += [param.opts[0], choices[0] if choices else "gone"]
    return words


@pytest.mark.parametrize("name", NAMES)
def test_every_number_is_bounded_and_told_alike(name: str) -> None:
    for option in numeric(name):
        bounds = find_ranges(command(name).callback)[options(name)[option].name]
        below = int(min(bounds.values())) - 1
        message = check_malformed(
            f"{option} is", *name.split(), *required_arguments(name), f"{option}={below}"
        )
        assert message == f"error: {option} is {below}; it must be {describe_range(bounds)}"
        if annotation(options(name)[option]) is float:
            assert "is nan" in check_malformed(
                "", *name.split(), *required_arguments(name), f"{option}=nan"
            )


PLACES = {
    "add-target": ["gone", "new", "--data", "gone", "--out", "new", "--answers", "gone"],
    "assign": ["gone", "gone.jsonl", "--budget", "1", "--out", "new"],
    "compare": ["gone", "--data", "gone", "--out", "new"],
    "export": ["gone", "--switchyard", "new.pt"],
    "export-receipts": ["gone", "--out", "new"],
    "fit": ["gone", "--out", "new", "--store", "gone"],
    "import": ["long", "gone", "--out", "new"],
    "learn": [f"--{x}=gone" for x in ("receipts", "pool", "judge", "versions")] + ["--per-day=1"],
    "import-litellm": ["gone.yaml", "--out", "new.yaml"],
    "prices": ["--pool", "gone.yaml"],
    "purge": ["gone", "--older-than", "30d"],
    "study shift": ["gone", "--data", "gone", "--out", "new", "--hold-out", "a"],
    "tasks": ["gone.jsonl", "--out", "new.jsonl"],
}
"""Command lines that are well formed, of what isn't there; elsewhere what is required will do."""
LOOKED_UP = {
    "add-target": "--tasks",
    "collect": "--tasks --only",
    "compare": "--reference --device",
    "encode": "--encoder --revision --device",
    "evaluate": "--device",
    "explain": "--receipts --baseline --versions",
    "import": "--encoder --prompt-column --query-column --target-column --target-columns "
    "--effort-column --correct-column --benchmark-column --domain-column --input-tokens-column "
    "--output-tokens-column --cost-column",
    "fit": "--device",
    "guarantee": "--best",
    "key new": "--target",
    "learn": "--receipts --versions --encoder --pattern",
    "prices": "--from --provider",
    "purge": "--key",
    "quickstart": "--encoder --price-list --prompt-column --target-column --target-columns "
    "--correct-column --cost-column",
    "reproduce": "--encoder --embedding --text-network",
    "route": "--only",
    "savings": "--baseline",
    "serve": "--versions --host --receipts --device --default",
    "study end-to-end": "--best",
    "study ratio": "--strong",
    "study shift": "--hold-out",
    "tasks": "--revision",
}
"""Words that are only found wrong when data are read: names of targets, models, columns."""


@pytest.mark.parametrize("name", sorted(set(NAMES) - {*SERVERS, "demo", "key new"}))
def test_what_the_command_line_tells_by_itself_is_told_before_anything_is_read(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    arguments = [*name.split(), *PLACES.get(name, required_arguments(name))]
    if name != "minipool tasks":
        assert run(*arguments).code == ExitCode.UNUSABLE
    words = [o for o in options(name) if annotation(options(name)[o]) in (str, list[str])]
    for option in set(words) - set(LOOKED_UP.get(name, "").split()):
        check_malformed("", *arguments, f"{option}=no such word")


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (("tasks", "gone", "--out", "new.txt"), "new.jsonl"),
        (("compare", "gone", "--data", "gone"), "compare needs --out"),
        (("compare", "gone", "gone", "--data", "gone", "--out", "new"), "--out is for a list"),
        (("import-litellm", "gone", "--out", "p.yaml", "--through", "here"), "write the address"),
        (("import-litellm", "gone", "--out", "pool"), "pool.yaml"),
        (
            ("import-litellm", "gone", "--out", "p.yaml", "--settings", "p.yaml"),
            "give two different files",
        ),
        (("prices", "--pool", "gone.csv"), "isn't a YAML file"),
        (("import", "lang", "gone", "--out", "new"), "the formats are"),
        (("key", "new", "me", "--expires", "soon"), "expires"),
        (("fit", "gone", "--out", "new", "--assign", "a=b", "--assign", "a=c"), "'a' more than"),
        (("fit", "gone", "--out", "new", "--pin", "last.3"), "TARGET=VALUE"),
        (("grade", "gone", "--out", "new", "--grader-function", "mine.py:1st"), "file.py:function"),
        (("replay", "gone", "--keep", "0.9"), "--keep needs --deadline-seconds or --dollars-per"),
    ],
)
def test_names_that_say_the_wrong_thing_are_the_command_lines(
    words: tuple[str, ...], reason: str
) -> None:
    check_malformed(reason, *words)


def test_one_error_has_one_spelling_and_one_code(job: Job) -> None:
    commands = (
        ("route", job.router, "Why?"),
        ("doctor", job.router, "--data", job.answers),
        ("serve", job.router),
        ("replay", "receipts.db"),
        ("study", "end-to-end", job.router, "--data", job.answers, "--out", "out"),
    )
    message = {check_malformed("lam", *words, "--lam", 2) for words in commands}
    assert message == {"error: --lam is 2; it must be from 0 to 1"}


def test_parts_that_there_are_none_of_are_refused_alike(job: Job) -> None:
    for words in (("evaluate", "--out", "out"), ("doctor",), ("guarantee",)):
        given = (words[0], job.router, "--data", job.answers, *words[1:], "--part", "exam")
        assert "--part is 'exam'; it must be one of " in check_malformed("", *given)


@pytest.mark.parametrize(
    ("given", "meant"),
    [("evalute", "evaluate"), ("studdy seeds", "study"), ("study ratoi", "ratio")],
)
def test_mistyped_commands_are_told_their_likely_name(given: str, meant: str) -> None:
    assert f"did you mean '{meant}'?" in check_malformed("there is no command", *given.split())


def test_mistyped_options_are_too() -> None:
    message = check_malformed("there is no option", "evaluate", "x", "--resample", 3)
    assert "did you mean --resamples?" in message


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("route", "ROUTER is missing: The router's folder"),
        ("compare all", "--data is missing: The dataset's folder"),
        ("route r q --lam x", "--lam is 'x'; it must be a number"),
        ("split d --seed 1.5 --out x", "--seed is '1.5'; it must be a whole number"),
        ("describe d e", "'e' is more than this command takes"),
        ("fit d --out", "--out needs a value"),
        ("describe d --json=3", "--json takes no value"),
    ],
)
def test_a_malformed_command_line_is_told_in_a_sentence_and_where_to_look(
    words: str, message: str
) -> None:
    assert re.search(
        f"^error: {message}.*; see: prefill-router", check_malformed("", *words.split())
    )


def test_an_empty_request_is_refused(job: Job) -> None:
    check_malformed("PROMPT is empty", "route", job.router, "")


def test_what_is_no_dataset_is_named(job: Job, tmp_path: Path) -> None:
    check_refused("is a router; show it with: prefill-router show", "describe", job.router)
    check_refused(f"{tmp_path}/nodata: no such folder", "fit", tmp_path / "nodata", "--out", "new")
    check_malformed(f"no store has the states of {job.answers}", "fit", job.answers, "--out", "new")


def test_the_version() -> None:
    assert run_ok("--version") == f"prefill-router {prefill_router.__version__}\n"


def test_without_a_command_there_is_the_help() -> None:
    result = run()
    assert result.code == ExitCode.MALFORMED
    assert "collect" in result.out
    assert result.err == ""


def test_exit_codes_are_those_of_the_guide() -> None:
    rows = re.findall(r"^\| (\d+) \| (.*) \|$", GUIDE.read_text(encoding="utf-8"), re.MULTILINE)
    assert [(int(number), meaning) for number, meaning in rows] == [
        (c, c.meaning) for c in ExitCode
    ]
