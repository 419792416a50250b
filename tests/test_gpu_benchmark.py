"""The benchmark of encoding on a GPU runs, with tiny networks and without one."""

import json
import sys
from pathlib import Path

import pytest
import torch

from benchmarks import gpu_encoder
from benchmarks.__main__ import SKIPPED

pytestmark = pytest.mark.slow


def test_tiny_networks_are_measured_on_a_processor(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "out.json"
    words = ["--tiny", "--device", "cpu", "--prompts", "20", "--rounds", "1", "--out", str(out)]
    monkeypatch.setattr(sys, "argv", ["gpu_encoder", *words])
    gpu_encoder.main()
    found = json.loads(out.read_text())["sizes"]["tiny"]
    assert set(found["times_as_fast_as_transformers"]) == {"ours", "ours_one_layer"}


def test_without_a_gpu_it_ends_at_once_and_says_so(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["gpu_encoder"])
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(SystemExit) as ended:
        gpu_encoder.main()
    assert ended.value.code == SKIPPED
    assert "needs a GPU" in capsys.readouterr().out
