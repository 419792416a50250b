"""Adding a predictor, an importer and so on is one file and one registration, and no more.

A copy of the package gets one of each, as the table of ARCHITECTURE.md tells contributors to add
them; then its commands are run.
"""

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow

HERE = Path(__file__).parent
PACKAGE = HERE.parent / "src" / "prefill_router"
TABLE = (HERE.parent / "ARCHITECTURE.md").read_text(encoding="utf-8").split("## I want to ...")[1]


@dataclass(frozen=True)
class Addition:
    """Something that is added.

    Attributes:
        row: In the table, which has the folder of the file and the files of the registration.
        file: The added file, of tests/additions; empty where the registration is all of it.
        lines: What is inserted into each file of the registration, by the line it stands after.
        shown: What each command, or file that one writes, says of it.
    """

    row: str
    file: str
    lines: Mapping[str, str]
    shown: Mapping[str, str]


ADDITIONS = (
    Addition(
        "a predictor",
        "half.py",
        {'        "given": "constant:GIVEN",\n': '        "half": "half:ENTRY",\n'},
        {"README.md": "| predictor | half |"},
    ),
    Addition(
        "a family of features",
        "prompt_length.py",
        {
            '        "prefill": "prefill:PREFILL",\n': (
                '        "prompt_length": "prompt_length:ENTRY",\n'
            )
        },
        {"fit": "prompt_length: 1 columns"},
    ),
    Addition(
        "a calibrator",
        "rates.py",
        {'        "none": "calibrators:NoCalibration",\n': '        "rates": "rates:Rates",\n'},
        {"README.md": "| calibration | rates |"},
    ),
    Addition(
        "a policy",
        "first_target.py",
        {
            '        "lambda": "policies:Lambda",\n': (
                '        "first_target": "first_target:FirstTarget",\n'
            )
        },
        {"route": "by the policy first_target", "metrics.json": '"policy": "kind: first_target"'},
    ),
    Addition(
        "an importer",
        "bars.py",
        {
            "FORMATS: Final[Mapping[str, Format]] = {\n": (
                '    "bars": Format(summary="Lines with bars", reader="bars:read"),\n'
            ),
        },
        {
            "import --help": "Lines with bars",
            "import": "120 queries, 2 targets",
            "describe": "120 queries",
        },
    ),
    Addition(
        "a metric",
        "doubt_metrics.py",
        {'    "external_metrics",\n': '    "doubt_metrics",\n'},
        {
            "metrics.json": '"doubt": {',
            "index.html": "How near the probabilities are to one half.",
            "paired": "Doubt (nowhere)",
        },
    ),
    Addition(
        "a command",
        "hello.py",
        {'        "Try it out",\n': '        hello="Greet whoever asks.",\n'},
        {"hello": "Good morning.", "help": "Greet whoever asks."},
    ),
    Addition(
        "a provider's dialect",
        "",
        {
            'Dialect = Literal[\n    "openai", ': '"whispered", ',
            "TRAITS: dict[Dialect, DialectTraits] = {\n": (
                '    "whispered": DialectTraits(serves=("chat",), always={"volume": 0}),\n'
            ),
        },
        {"request": '"volume": 0', "serve": "all is well"},
    ),
    Addition(
        "a gateway setting",
        "",
        {'    host: str = "127.0.0.1"\n': '    greeting: str = ""\n'},
        {"serve": "all is well"},
    ),
    Addition(
        "a gauge",
        "",
        {
            "_GAUGES = (\n": '    Gauge("mornings", "Good ones.", lambda _: 1.0),\n',
        },
        {"gauges": "prefill_router_mornings 1.0"},
    ),
    Addition(
        "a table of a report",
        "unsure_table.py",
        {
            "from prefill_router.reporting.evaluation_tables import REPORT_TABLES, csv_tables\n": (
                "import prefill_router.reporting.unsure_table\n"
            )
        },
        {"index.html": "Every target by its name"},
    ),
    Addition(
        "a grader",
        "vowels.py",
        {
            "GRADERS: Final[Mapping[str, GraderKind]] = {\n": (
                '    "vowels": GraderKind(summary="as many vowels", opener="vowels:open_vowels"),\n'
            ),
        },
        {"grade --help": "vowels: as many vowels", "grade": "small 2 50.0 %"},
    ),
    Addition(
        "a benchmark",
        "riddles.py",
        {
            "BENCHMARKS: Final[Mapping[str, Benchmark]] = {\n": (
                '    "riddles": Benchmark(summary="Riddles", repository="ours/riddles",'
                ' reader="riddles:read", options=frozenset({"level"})),\n'
            ),
        },
        {
            "tasks --help": "riddles: Riddles",
            "tasks": "2 tasks of",
            "tasks.jsonl": '"benchmark": "riddles", "domain": "easy"',
        },
    ),
)
BY_ROW = {one.row: one for one in ADDITIONS}


def rows() -> dict[str, tuple[list[str], list[str]]]:
    """The table: for each row the folders or files of what is added, and of its registration."""
    lines = [line for line in TABLE.splitlines() if re.match(r"\| an? ", line)]
    cells = ([cell.strip() for cell in line.strip("|").split("|")] for line in lines)
    return {row: (paths(file), paths(registered)) for row, file, registered in cells}


def paths(cell: str) -> list[str]:
    return re.findall(r"`([a-z_]+/[a-z_/]*(?:\.\w+)?)`", cell)


def add(one: Addition, package: Path) -> None:
    """Do what the table says, in a copy of the package."""
    places, registered = rows()[one.row]
    if one.file:
        (folder,) = places
        assert not (package / folder / one.file).exists()
        shutil.copy(HERE / "additions" / one.file, package / folder / one.file)
    texts = {name: (package / name).read_text(encoding="utf-8") for name in registered}
    for anchor, line in one.lines.items():
        (name,) = (name for name, text in texts.items() if anchor in text)
        texts[name] = texts[name].replace(anchor, anchor + line, 1)
    for name, text in texts.items():
        assert text != (package / name).read_text(encoding="utf-8"), f"{name} needs no line"
        (package / name).write_text(text, encoding="utf-8")


@pytest.fixture(scope="module")
def said(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """What the commands say once one of each is added."""
    folder = tmp_path_factory.mktemp("additions")
    # With what was compiled of it, which is taken where the time of the source is the same.
    shutil.copytree(PACKAGE, folder / "source" / "prefill_router")
    for one in ADDITIONS:
        add(one, folder / "source" / "prefill_router")
    (folder / "work").mkdir()
    done = subprocess.run(
        [sys.executable, HERE / "additions" / "session.py", folder / "work"],
        env={
            **os.environ,
            "PYTHONPATH": os.pathsep.join([str(folder / "source"), str(HERE.parent)]),
            "PREFILL_ROUTER_CACHE": str(folder / "cache"),
            "COLUMNS": "200",
        },
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    told: dict[str, str] = json.loads(done.stdout)
    return told


def test_the_table_has_a_row_for_each_and_each_row_is_tried() -> None:
    assert rows().keys() == {one.row for one in ADDITIONS}


@pytest.mark.parametrize("row", [one.row for one in ADDITIONS])
def test_what_is_added_is_one_file_and_one_registration(row: str) -> None:
    assert len(rows()[row][1]) == 1


@pytest.mark.parametrize(
    ("row", "command", "words"),
    [(one.row, *shown) for one in ADDITIONS for shown in one.shown.items()],
)
def test_commands_show_what_was_added(
    said: dict[str, str], row: str, command: str, words: str
) -> None:
    assert words in said[command], row
