"""Embeddings of sentence-transformers models: exactly theirs, recorded by what makes them."""

import json
import shutil
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from sentence_transformers import SentenceTransformer
from sentence_transformers.sentence_transformer.modules import (
    Dense,
    Normalize,
    Pooling,
    StaticEmbedding,
    Transformer,
)
from tokenizers import Tokenizer, models, pre_tokenizers

from packages.router.tests.commands import check_refused, run_ok
from packages.router.tests.fakes.tiny_encoder import save_tiny_encoder
from prefill_router.activations import ActivationStore, Site
from prefill_router.data import Message, Query, write_dataset
from prefill_router.encoders import OWN, Encoder, load_encoder, load_encoder_for
from prefill_router.errors import (
    ConfigError,
    MissingExtraError,
    PromptError,
    ProvenanceError,
)
from prefill_router.testing import make_routing_dataset

pytestmark = pytest.mark.slow

TEXTS = ["a", "what is a noble gas?", "why " * 9, "zz " * 200, "Ünïcode 🦜", "b c"]
QUERIES = [Query(f"q{i}", text) for i, text in enumerate(TEXTS)]
PROMPTS = {"query": "find: ", "passage": "kept: "}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A BERT, a mean, a layer, a normalisation; as sentence-transformers saves them."""
    root = tmp_path_factory.mktemp("sentence")
    base = Transformer(str(save_tiny_encoder(root / "bert")), max_seq_length=64)
    with torch.random.fork_rng():
        torch.manual_seed(0)
        dense = Dense(16, 12)
    model = SentenceTransformer(
        modules=[base, Pooling(16), dense, Normalize()], device="cpu", prompts=PROMPTS
    )
    model.save(str(root / "tiny"), create_model_card=False)
    return root / "tiny"


def load(folder: Path, prompt: str = "", **options: Any) -> Encoder:
    return load_encoder(f"sentence:{folder}{prompt}", device="cpu", **options)


def rows_of(encoder: Encoder, queries: list[Query] = QUERIES) -> np.ndarray:
    states = encoder.encode(queries, [OWN], rounding="float32")
    return states.read(OWN, states.keys)


@pytest.mark.parametrize("batch_tokens", [None, 1, 150])
def test_rows_are_those_of_the_library(folder: Path, batch_tokens: int | None) -> None:
    theirs = SentenceTransformer(str(folder), device="cpu").encode(TEXTS)
    mine = rows_of(load(folder, batch_tokens=batch_tokens))
    np.testing.assert_allclose(mine, theirs, atol=1e-6)
    np.testing.assert_allclose(np.linalg.norm(mine, axis=1), 1, atol=1e-5)
    assert np.abs(mine - mine[0]).max(axis=1)[1:].min() > 1e-3  # control: texts differ


@pytest.mark.parametrize("name", PROMPTS)
def test_the_models_own_prompts(folder: Path, name: str) -> None:
    theirs = SentenceTransformer(str(folder), device="cpu").encode(TEXTS, prompt_name=name)
    encoder = load(folder, f"#{name}")
    np.testing.assert_allclose(rows_of(encoder), theirs, atol=1e-6)
    assert encoder.provenance.encoder == f"sentence:tiny#{name}"
    plain = load(folder).provenance
    assert encoder.provenance.template_hash != plain.template_hash
    assert encoder.tokenize(QUERIES[:1])[0].count == load(folder).tokenize(QUERIES[:1])[0].count + 6


def test_a_default_prompt_is_put_before_texts(folder: Path, tmp_path: Path) -> None:
    changed = shutil.copytree(folder, tmp_path / "with")
    path = changed / "config_sentence_transformers.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "default_prompt_name": "query"}))
    theirs = SentenceTransformer(str(changed), device="cpu").encode(TEXTS)
    np.testing.assert_allclose(rows_of(load(changed)), theirs, atol=1e-6)
    assert load(changed).provenance.template_hash != load(folder).provenance.template_hash


def test_provenance_and_tokens(folder: Path) -> None:
    encoder = load(folder)
    made_by = encoder.provenance
    assert (made_by.encoder, made_by.template) == ("sentence:tiny", "plain")
    assert (made_by.max_tokens, made_by.num_layers, made_by.hidden_size) == (64, 1, 12)
    assert made_by.dtype == "float32"
    short, long = encoder.tokenize([QUERIES[0], QUERIES[3]])
    assert (short.count, short.truncated) == (len(short.ids), False)
    assert (len(long.ids), long.truncated) == (64, True)
    assert long.count == 600


def test_a_smaller_limit_of_tokens(folder: Path) -> None:
    encoder = load(folder, max_tokens=8)
    assert encoder.provenance.max_tokens == 8
    rows = rows_of(encoder, [Query("l", "abcdefgh and more"), Query("s", "abcdefgh")])
    np.testing.assert_allclose(rows[0], rows[1], atol=1e-6)
    for wrong in (0, 65):
        with pytest.raises(ConfigError, match="supports 1 to 64 tokens"):
            load(folder, max_tokens=wrong)


def test_a_revision_follows_from_every_part(folder: Path, tmp_path: Path) -> None:
    mine = load(folder).provenance
    changed = shutil.copytree(folder, tmp_path / "tiny")
    assert load(changed).provenance == mine
    (changed / "README.md").write_text("words")
    (changed / ".hidden.json").write_text("{}")
    assert load(changed).provenance == mine
    pooling = next(changed.glob("1_*")) / "config.json"
    pooling.write_text(pooling.read_text() + "\n")
    assert load(changed).provenance.revision != mine.revision
    with pytest.raises(ProvenanceError, match="revision"):
        load_encoder_for(mine, source=changed, device="cpu")


def test_another_type_is_computed_in(folder: Path) -> None:
    exact, coarse = load(folder), load(folder, dtype="bfloat16")
    assert coarse.provenance.dtype == "bfloat16"
    difference = np.abs(rows_of(exact) - rows_of(coarse)).max()
    assert 1e-5 < difference < 0.1
    again = load_encoder_for(coarse.provenance, source=folder, device="cpu", layers=[1])
    np.testing.assert_array_equal(rows_of(again), rows_of(coarse))


def test_a_store_is_made_and_the_encoder_found_again(folder: Path, tmp_path: Path) -> None:
    dataset = make_routing_dataset(queries=8)
    write_dataset(dataset, tmp_path / "data")
    command = ["encode", tmp_path / "data", "--encoder", f"sentence:{folder}", "--device", "cpu"]
    out = tmp_path / "store"
    summary = json.loads(run_ok(*command, "--out", out, "--json"))
    assert summary["sites"] == ["own.1"]
    store = ActivationStore.open(out)
    again = load_encoder_for(store.provenance, source=folder, device="cpu")
    fresh = again.encode(dataset.queries, [OWN])
    keys = dataset.prompt_keys
    np.testing.assert_allclose(fresh.read(OWN, keys), store.read(OWN, keys), atol=4e-3)
    check_refused("no layers to choose", *command, "--out", out, "--layers", "3")
    check_refused("without a chat template", *command, "--out", out, "--template", "chat")


def test_chats_are_read_as_their_text(folder: Path) -> None:
    chat = (Message("system", "be brief"), Message("user", "why"))
    rows = rows_of(load(folder), [Query("c", chat), Query("t", "be brief\n\nwhy")])
    np.testing.assert_allclose(rows[0], rows[1], atol=1e-6)


def test_what_cannot_be_read_is_told(folder: Path, tmp_path: Path) -> None:
    encoder = load(folder)
    with pytest.raises(PromptError, match="no token"):
        encoder.encode([Query("e", "")], [OWN])
    with pytest.raises(PromptError, match="lone surrogate"):
        encoder.encode([Query("s", "\ud800")], [OWN])
    with pytest.raises(ConfigError, match=r"poolings \['own'\]"):
        encoder.encode(QUERIES, [Site(1, "mean")])
    with pytest.raises(ConfigError, match=r"the prompt 'other'; the model has .*'query'"):
        load(folder, "#other")
    with pytest.raises(ConfigError, match="leave the revision out"):
        load(folder, revision="main")
    (tmp_path / "empty").mkdir()
    with pytest.raises(ConfigError, match=r"no modules\.json or config\.json"):
        load(tmp_path / "empty")
    with pytest.raises(ConfigError, match="can't be loaded"):
        load_encoder("sentence:nobody/nothing")


def test_code_of_a_folder_does_not_run(folder: Path, tmp_path: Path) -> None:
    changed = shutil.copytree(folder, tmp_path / "tiny")
    modules = json.loads((changed / "modules.json").read_text())
    modules[-1]["type"] = "custom.Ran"
    (changed / "modules.json").write_text(json.dumps(modules))
    ran = tmp_path / "ran"
    (changed / "custom.py").write_text(f"open({str(ran)!r}, 'w')\nclass Ran: pass\n")
    with pytest.raises(ConfigError, match="can't be loaded"):
        load(changed)
    assert not ran.exists()


def test_a_model_without_a_transformer(tmp_path: Path) -> None:
    words = {"[UNK]": 0, "a": 1, "noble": 2, "gas": 3}
    tokenizer = Tokenizer(models.WordLevel(words, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    weights = np.random.default_rng(0).normal(size=(4, 5)).astype(np.float32)
    static = StaticEmbedding(tokenizer, embedding_weights=weights)
    model = SentenceTransformer(modules=[static], device="cpu")
    model.save(str(tmp_path / "static"), create_model_card=False)
    encoder = load(tmp_path / "static")
    np.testing.assert_allclose(rows_of(encoder), model.encode(TEXTS), atol=1e-6)
    assert encoder.tokenize([Query("q", "a noble gas")])[0].count == 3


def test_without_its_package(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "sentence_transformers", None)
    with pytest.raises(MissingExtraError, match=r"prefill-router\[sentence\]"):
        load_encoder("sentence:minilm")


def test_the_packaged_minilm_is_its_last_layers_mean() -> None:
    texts = [Query("1", "Which of these is a noble gas?"), Query("2", "Prove it.")]
    own = rows_of(load_encoder("sentence:minilm", device="cpu"), texts)
    reader = load_encoder("minilm", device="cpu", dtype="float32", layers=[6])
    states = reader.encode(texts, [Site(6, "mean")], rounding="float32")
    means = states.read(Site(6, "mean"), states.keys)
    means /= np.linalg.norm(means, axis=1, keepdims=True)
    np.testing.assert_allclose(own, means, atol=1e-5)
