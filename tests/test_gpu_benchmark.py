"""The benchmark of encoding on a GPU runs: on a processor, with torch and transformers alone."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from benchmarks import gpu_encoder
from benchmarks.__main__ import SKIPPED

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
    done = subprocess.run(
        [sys.executable, "-S", "-m", "benchmarks.gpu_encoder", *words],
        cwd=ROOT,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    found = json.loads(out.read_text())
    assert set(found["exactness"]) == {"qwen3", "bert"}
    tiny = found["sizes"]["tiny"]
    assert set(tiny["times_as_fast_as_transformers"]) == {"ours", "ours_one_layer"}
    assert set(tiny["decision_ms"]["128"]) == {"recorded", "not_recorded"}
    share = tiny["tflops"]["ours"] / found["card_tflops"]
    assert tiny["share_of_card"] == pytest.approx(share, abs=1e-3)


def test_states_that_are_not_exact_end_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpu_encoder, "LARGEST_ERROR", 1e-12)
    with pytest.raises(SystemExit, match=r"gpt2 isn't exact on cpu: \{'float32': "):
        gpu_encoder.check_exactness("gpt2", torch.device("cpu"), gpu_encoder.families())


def test_without_a_gpu_it_ends_at_once_and_says_so(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["gpu_encoder"])
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(SystemExit) as ended:
        gpu_encoder.main()
    assert ended.value.code == SKIPPED
    assert "needs a GPU" in capsys.readouterr().out
