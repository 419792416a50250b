"""Encoders by hub id: what is recorded is the commit, and by it the same one is found again."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from sentence_transformers import SentenceTransformer
from sentence_transformers.sentence_transformer.modules import Pooling, Transformer

import prefill_router_minipool
from packages.router.tests.fakes.tiny_encoder import save_tiny_encoder
from prefill_router.encoders.base import EncoderName

pytestmark = pytest.mark.slow

COMMIT = "c0ffee" + 34 * "0"
JOB = Path(__file__).with_name("hub_cache_job.py")


def keep(cache: Path, name: str, folder: Path) -> None:
    """Put a folder into a cache as if it had been downloaded."""
    place = cache / f"models--{name.replace('/', '--')}"
    shutil.copytree(folder, place / "snapshots" / COMMIT)
    (place / "refs").mkdir()
    (place / "refs" / "main").write_text(COMMIT)


def test_encoders_by_hub_id(tmp_path: Path) -> None:
    cache, tiny = tmp_path / "cache", save_tiny_encoder(tmp_path / "tiny")
    model = SentenceTransformer(modules=[Transformer(str(tiny)), Pooling(16)], device="cpu")
    model.save(str(tmp_path / "sentence"), create_model_card=False)
    keep(cache, "lab/tiny", tiny)
    keep(cache, "lab/sentence", tmp_path / "sentence")
    keep(
        cache, "lab/language", Path(prefill_router_minipool.__file__).parent / "weights" / "sprout"
    )
    names = ["lab/tiny", "sentence:lab/sentence", "sentence:lab/tiny", "signals:lab/language"]
    done = subprocess.run(
        [sys.executable, JOB, *names],
        env={**os.environ, "HF_HUB_CACHE": str(cache), "HF_HUB_OFFLINE": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    for name in names:
        own = EncoderName.parse(name).scheme is not None
        sites = ["own.1"] if own else ["last.1", "mean.1", "last.2", "mean.2"]
        assert found[name] == [name, COMMIT, True, sites]
