"""The notebooks run, cell after cell, and what is committed of them is whole."""

import json
import re
import shlex
from pathlib import Path
from typing import Any

import pytest
from typer.main import get_command

from prefill_router import training
from prefill_router.cli import app
from prefill_router.data import read_dataset, write_dataset

pytestmark = pytest.mark.slow

FOLDER = Path(__file__).parents[1] / "docs" / "notebooks"
NOTEBOOKS = sorted(FOLDER.glob("*.ipynb"))
QUERIES = {"own_logs": 120, "paper": 300}
"""How many of its queries a notebook's test has, where fewer will do."""
USUAL = training.train_epochs


def cells(notebook: Path, kind: str = "code") -> list[dict[str, Any]]:
    all_cells: list[dict[str, Any]] = json.loads(notebook.read_text(encoding="utf-8"))["cells"]
    return [cell for cell in all_cells if cell["cell_type"] == kind]


def few_epochs(trainer: Any, **options: Any) -> Any:
    """Trains a network that needn't learn much."""
    return USUAL(trainer, **options | {"max_epochs": 3})


@pytest.mark.parametrize("notebook", NOTEBOOKS, ids=lambda notebook: notebook.stem)
def test_it_runs(notebook: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    answers = read_dataset(FOLDER / "answers")
    queries = answers.query_ids[: QUERIES.get(notebook.stem)]
    write_dataset(answers.select(queries), tmp_path / "answers")
    monkeypatch.setattr(training, "train_epochs", few_epochs)
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {}
    for cell in cells(notebook):
        exec("".join(cell["source"]), names)


@pytest.mark.parametrize("notebook", NOTEBOOKS, ids=lambda notebook: notebook.stem)
def test_its_committed_outputs_are_those_of_a_whole_run(notebook: Path) -> None:
    found = cells(notebook)
    assert [cell["execution_count"] for cell in found] == list(range(1, len(found) + 1))
    outputs = [output for cell in found for output in cell["outputs"]]
    assert {output["output_type"] for output in outputs} <= {"execute_result", "stream"}
    assert any("image/png" in output.get("data", ()) for output in outputs) or (
        notebook.stem == "own_logs"
    )


def test_the_commands_in_their_texts_can_be_read() -> None:
    texts = ["".join(c["source"]) for notebook in NOTEBOOKS for c in cells(notebook, "markdown")]
    lines = [line for text in texts for line in re.findall(r"`prefill-router ([^`]+)`", text)]
    assert lines
    for line in lines:
        with get_command(app).make_context("prefill-router", shlex.split(line)) as context:
            name, command, words = context.command.resolve_command(  # type: ignore[attr-defined]
                context, [*context._protected_args, *context.args]
            )
            if words:
                command.make_context(name, words, parent=context)
