"""Encoders by hub id: what is recorded is the commit, and by it the same one is found again."""

import shutil
from pathlib import Path

import pytest
from huggingface_hub import constants
from sentence_transformers import SentenceTransformer
from sentence_transformers.sentence_transformer.modules import Pooling, Transformer

import prefill_router_minipool
from packages.router.tests.fakes.tiny_encoder import save_tiny_encoder
from prefill_router.encoders import default_sites, load_encoder, load_encoder_for
from prefill_router.encoders.encoder_names import EncoderName

pytestmark = pytest.mark.slow

COMMIT = "c0ffee" + 34 * "0"


def keep(cache: Path, name: str, folder: Path) -> None:
    """Put a folder into a cache as if it had been downloaded."""
    place = cache / f"models--{name.replace('/', '--')}"
    shutil.copytree(folder, place / "snapshots" / COMMIT)
    (place / "refs").mkdir()
    (place / "refs" / "main").write_text(COMMIT)


def test_encoders_by_hub_id(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cache, tiny = tmp_path / "cache", save_tiny_encoder(tmp_path / "tiny")
    model = SentenceTransformer(modules=[Transformer(str(tiny)), Pooling(16)], device="cpu")
    model.save(str(tmp_path / "sentence"), create_model_card=False)
    keep(cache, "lab/tiny", tiny)
    keep(cache, "lab/sentence", tmp_path / "sentence")
    keep(
        cache, "lab/language", Path(prefill_router_minipool.__file__).parent / "weights" / "sprout"
    )
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(cache))
    for name in ("lab/tiny", "sentence:lab/sentence", "sentence:lab/tiny", "signals:lab/language"):
        made_by = load_encoder(name, device="cpu", dtype="float32").provenance
        assert (made_by.encoder, made_by.revision) == (name, COMMIT)
        assert load_encoder_for(made_by, device="cpu").provenance == made_by
        own = EncoderName.parse(name).scheme is not None
        sites = ["own.1"] if own else ["last.1", "mean.1", "last.2", "mean.2"]
        assert [site.name for site in default_sites(made_by)] == sites
