"""The benchmarks of a GPU run on a processor, encoding with torch and transformers alone."""

import json
import os
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch

from benchmarks import gpu_encoder, gpu_fit
from benchmarks.__main__ import SKIPPED
from prefill_router.accelerator import accelerator
from prefill_router.neighbours import NeighbourIndex

pytestmark = pytest.mark.slow
ROOT = Path(__file__).parents[1]
TINY = ["--tiny", "--device", "cpu", "--prompts", "20", "--rounds", "1"]


ABSENT = {"beartype", "jaxtyping", "lazy_loader", "polars", "pydantic", "pydantic_core"}


def without_our_dependencies(folder: Path) -> Path:
    """The installed packages but those that neither torch nor transformers needs."""
    folder.mkdir()
    for path in Path(torch.__file__).parents[1].iterdir():
        is_path_file = path.suffix == ".pth"  # it would add the packages of the workspace
        if path.name.split("-")[0].lower() not in ABSENT and not is_path_file:
            (folder / path.name).symlink_to(path)
    return folder


def test_tiny_networks_are_measured_from_a_checkout(tmp_path: Path) -> None:
    out = tmp_path / "out.json"
    environment = os.environ | {"PYTHONPATH": str(without_our_dependencies(tmp_path / "site"))}
    words = [*TINY, "--families", "qwen3", "bert", "--out", str(out)]
    process = subprocess.run(
        [sys.executable, "-S", "-m", "benchmarks.gpu_encoder", *words],
        cwd=ROOT,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert process.returncode == 0, process.stderr
    figures = json.loads(out.read_text())
    assert set(figures["exactness"]) == {"qwen3", "bert"}
    tiny = figures["sizes"]["tiny"]
    assert set(tiny["times_as_fast_as_transformers"]) == {"ours", "ours_one_layer"}
    assert set(tiny["decision_ms"]["128"]) == {"recorded", "not_recorded"}
    share = tiny["tflops"]["ours"] / figures["card_tflops"]
    assert tiny["share_of_card"] == pytest.approx(share, abs=1e-3)


def test_states_that_are_not_exact_end_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpu_encoder, "LARGEST_ERROR", 1e-12)
    with pytest.raises(SystemExit, match=r"gpt2 isn't exact on cpu: \{'float32': "):
        gpu_encoder.check_exactness("gpt2", torch.device("cpu"), gpu_encoder.families())


def test_fits_are_measured_and_their_results_compared(monkeypatch: pytest.MonkeyPatch) -> None:
    device = torch.device("cpu")
    pairs = [
        gpu_fit.compare_trunk(1000, 6, device),
        gpu_fit.compare_search(1000, 6, device),
        gpu_fit.compare_aucs(1000, device),
    ]
    assert all(pair["device"] > 0 and pair["numpy, scaled"] > 0 for pair in pairs)
    monkeypatch.setattr(gpu_fit, "NEIGHBOURS", 3)
    search = NeighbourIndex.search

    def search_badly(index: NeighbourIndex, *arguments: Any) -> Any:
        distances, rows = search(index, *arguments)
        return distances, rows + (accelerator(1) is not None)

    monkeypatch.setattr(NeighbourIndex, "search", search_badly)
    with pytest.raises(SystemExit, match="the neighbours differ"):
        gpu_fit.compare_search(1000, 6, device)


@pytest.mark.parametrize("benchmark", [gpu_encoder, gpu_fit])
def test_without_a_gpu_it_ends_at_once_and_says_so(
    benchmark: ModuleType, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", [benchmark.__name__])
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(SystemExit) as ended:
        benchmark.main()
    assert ended.value.code == SKIPPED
    assert "needs a GPU" in capsys.readouterr().out
