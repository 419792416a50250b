"""A causal language model's signals: exact, whatever the batch; every case defined."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers as tf

import prefill_router.encoders.signals as signals
from packages.router.tests.commands import check_refused, run_ok
from packages.router.tests.encoders.families import VOCABULARY, save_tokenizer
from packages.router.tests.fakes.tiny_encoder import save_tiny_encoder
from prefill_router.activations import ActivationStore
from prefill_router.data import Query, write_dataset
from prefill_router.encoders import OWN, Encoder, load_encoder, load_encoder_for
from prefill_router.errors import ConfigError, PromptError, ProvenanceError
from prefill_router.testing import make_routing_dataset

pytestmark = pytest.mark.slow

LENGTHS = (1, 2, 3, 9, 9, 17, 40, 64)
QUERIES = [Query(f"q{n}", f"{chr(97 + n)}{'xyz ' * 20}"[:size]) for n, size in enumerate(LENGTHS)]
SIZES: dict[str, Any] = {
    "vocab_size": VOCABULARY,
    "hidden_size": 32,
    "num_attention_heads": 4,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "max_position_embeddings": 128,
    "initializer_range": 0.5,
}
GPT2 = tf.GPT2Config(
    vocab_size=VOCABULARY, n_embd=32, n_head=4, n_layer=2, n_positions=128, initializer_range=0.3
)
CONFIGS: dict[str, Any] = {
    "gpt2": GPT2,
    "llama": tf.LlamaConfig(**SIZES),
    "qwen3": tf.Qwen3Config(**SIZES, num_key_value_heads=2, head_dim=8),
    "gemma2": tf.Gemma2Config(
        **SIZES, num_key_value_heads=2, head_dim=8, final_logit_softcapping=2.0
    ),
}


def save(folder: Path, config: Any, *, start: bool = True) -> Path:
    with torch.random.fork_rng():
        torch.manual_seed(3)
        tf.AutoModelForCausalLM.from_config(config).save_pretrained(folder)
    save_tokenizer(folder, chat=False)
    if not start:
        path = folder / "tokenizer_config.json"
        settings = json.loads(path.read_text())
        path.write_text(json.dumps({**settings, "bos_token": None, "eos_token": None}))
    return folder


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    root = tmp_path_factory.mktemp("models")
    folders = {name: save(root / name, config) for name, config in CONFIGS.items()}
    return {**folders, "without": save(root / "without", GPT2, start=False)}


def load(folder: Path, **options: Any) -> Encoder:
    return load_encoder(f"signals:{folder}", device="cpu", **options)


def rows_of(encoder: Encoder, queries: list[Query] = QUERIES) -> np.ndarray:
    states = encoder.encode(queries, [OWN], rounding="float32")
    return states.read(OWN, states.keys)


def read_plainly(folder: Path, query: Query) -> list[float]:
    """The signals of one prompt, from all logits, in float64."""
    model = tf.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float64)
    tokenizer = tf.AutoTokenizer.from_pretrained(folder)
    text = tokenizer(query.prompt, add_special_tokens=False)["input_ids"]
    ids = torch.tensor([[tokenizer.bos_token_id, *text]])
    with torch.inference_mode():
        logs = model(ids).logits[0, :-1].log_softmax(-1)
    mean = float(logs[torch.arange(len(text)), ids[0, 1:]].mean())
    entropy = float(-(logs.exp() * logs).sum(-1).mean())
    return [mean, float(np.exp(-mean)), entropy]


@pytest.mark.parametrize("name", CONFIGS)
def test_signals_are_those_of_the_whole_network(folders: dict[str, Path], name: str) -> None:
    expected = np.array([read_plainly(folders[name], query) for query in QUERIES])
    np.testing.assert_allclose(rows_of(load(folders[name])), expected, rtol=1e-4)
    assert expected[:, 2].std() > 1e-3  # control: prompts differ


@pytest.mark.parametrize("name", CONFIGS)
def test_batches_padding_and_chunks_change_nothing(
    folders: dict[str, Path], name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    encoder = load(folders[name])
    expected = rows_of(encoder)
    alone = np.concatenate([rows_of(encoder, [query]) for query in QUERIES])
    np.testing.assert_allclose(alone, expected, rtol=1e-5)
    np.testing.assert_allclose(rows_of(encoder, QUERIES[::-1])[::-1], expected, rtol=1e-5)
    np.testing.assert_allclose(rows_of(load(folders[name], batch_tokens=50)), expected, rtol=1e-5)
    monkeypatch.setattr(signals, "_CHUNK_NUMBERS", 3 * VOCABULARY)
    np.testing.assert_allclose(rows_of(encoder), expected, rtol=1e-5)


def test_no_more_logits_than_the_bound_are_held(
    folders: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    encoder = load(folders["gpt2"])
    sizes: list[int] = []

    head = encoder.model.get_output_embeddings()
    head.register_forward_hook(lambda *called: sizes.append(called[-1].numel()))
    monkeypatch.setattr(signals, "_CHUNK_NUMBERS", 5 * VOCABULARY)
    rows_of(encoder)
    assert max(sizes) == 5 * VOCABULARY
    assert sum(sizes) == sum(LENGTHS) * VOCABULARY


def test_without_a_token_that_begins_documents(folders: dict[str, Path]) -> None:
    encoder = load(folders["without"])
    assert encoder.start is None
    rows = rows_of(encoder)
    unknown = np.log(VOCABULARY)
    np.testing.assert_allclose(rows[0], [-unknown, VOCABULARY, unknown], rtol=1e-5)
    assert np.abs(rows[1] - rows[0]).min() > 1e-3
    assert encoder.provenance.max_tokens == 128
    assert load(folders["gpt2"]).provenance.max_tokens == 127


def test_long_prompts_lose_their_middle(folders: dict[str, Path]) -> None:
    encoder = load(folders["gpt2"], max_tokens=10)
    assert encoder.provenance.max_tokens == 10
    long, cut = Query("l", "abcde" + "?" * 300 + "vwxyz"), Query("c", "abcdevwxyz")
    rows = rows_of(encoder, [long, cut])
    np.testing.assert_allclose(rows[0], rows[1], rtol=1e-6)
    [prompt] = encoder.tokenize([long])
    assert (prompt.count, len(prompt.ids)) == (310, 10)
    rows_of(load(folders["gpt2"]), [long])  # at the limit of positions


def test_what_can_be_any_text(folders: dict[str, Path]) -> None:
    encoder = load(folders["gpt2"])
    odd = [Query("a", "\x00\x01"), Query("b", "日本語 🦜"), Query("c", "<s></s>")]
    assert np.isfinite(rows_of(encoder, odd)).all()
    with pytest.raises(PromptError, match="no token"):
        encoder.encode([Query("e", "")], [OWN])
    with pytest.raises(PromptError, match="lone surrogate"):
        encoder.encode([Query("s", "\ud800")], [OWN])
    assert encoder.encode([], [OWN]).states[OWN].shape == (0, 3)


def test_a_perplexity_never_overflows(folders: dict[str, Path]) -> None:
    encoder = load(folders["llama"])
    encoder.model.get_output_embeddings().weight.mul_(1000)
    rows = rows_of(encoder)
    assert np.isfinite(rows).all()
    assert rows[:, 0].min() == -80


def test_a_chat_is_read_as_its_text(folders: dict[str, Path]) -> None:
    encoder = load(folders["gpt2"])
    with pytest.raises(ConfigError, match="without a chat template"):
        load(folders["gpt2"], template="chat")
    assert encoder.provenance.template == "plain"


def test_a_store_is_made_and_the_encoder_found_again(
    folders: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    dataset = make_routing_dataset(queries=6)
    write_dataset(dataset, tmp_path / "data")
    name, out = f"signals:{folders['gpt2']}", tmp_path / "store"
    command = ["encode", tmp_path / "data", "--encoder", name, "--out", out, "--device", "cpu"]
    summary = json.loads(run_ok(*command, "--store-dtype", "float32", "--json"))
    assert summary["provenance"]["encoder"] == "signals:gpt2"
    assert summary["sites"] == ["own.1"]
    assert summary["billed_tokens"] is None
    store = ActivationStore.open(out)
    with pytest.raises(ConfigError, match="no file or folder of that name"):
        load_encoder_for(store.provenance)
    again = load_encoder_for(store.provenance, source=folders["gpt2"], device="cpu", layers=[1])
    fresh = again.encode(dataset.queries, [OWN], rounding="float32")
    keys = dataset.prompt_keys
    np.testing.assert_allclose(fresh.read(OWN, keys), store.read(OWN, keys), rtol=1e-5)
    monkeypatch.chdir(folders["gpt2"].parent)
    assert load_encoder_for(store.provenance, device="cpu").provenance == store.provenance
    with pytest.raises(ProvenanceError, match="revision"):
        load_encoder_for(store.provenance, source=folders["llama"])
    check_refused("no layers to choose", *command, "--layers", "2")


def test_what_is_no_causal_language_model_is_refused(tmp_path: Path) -> None:
    folder = save_tiny_encoder(tmp_path / "bert")
    with pytest.raises(ConfigError, match="aren't a complete causal language model"):
        load(folder)
    with pytest.raises(ConfigError, match="isn't a folder"):
        load(tmp_path / "nowhere")


def test_a_head_that_is_more_than_a_head_is_refused(tmp_path: Path) -> None:
    config = tf.GraniteConfig(**SIZES, logits_scaling=4.0)
    with pytest.raises(ConfigError, match="can't be computed in chunks"):
        load(save(tmp_path / "granite", config))


def test_a_real_small_model_tells_its_language_from_noise() -> None:
    encoder = load_encoder("signals:minipool", device="cpu")
    sums = ["3 + 4 =", "What is 12 + 7?", "17 - 9 ="]
    noise = ["}}~q0 \\x", "Ωж≠ §§", "kzq vvv jx"]
    rows = rows_of(encoder, [Query(text, text) for text in [*sums, *noise]])
    assert rows[:3, 0].mean() > rows[3:, 0].mean()
