"""Checkpoints of hubs: with a vocabulary head, or inside a network for images."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers as tf
from safetensors.torch import load_file, save_file

from packages.router.tests.encoders.families import FAMILIES, save, save_tokenizer
from prefill_router.activations import Site
from prefill_router.data import Query
from prefill_router.encoders import load_encoder
from prefill_router.encoders.hub import HubEncoder
from prefill_router.errors import ConfigError

pytestmark = pytest.mark.slow

QUERIES = [Query("a", "hello"), Query("b", "a longer text than that")]
SITE = Site(3, "last")


def states_equal(folder: Path, network: Any) -> None:
    encoder = load_encoder(folder, dtype="float32", layers=[3])
    assert isinstance(encoder, HubEncoder)
    prompts = encoder.tokenize(QUERIES)
    states = encoder.states(prompts, [SITE])[SITE]
    for row, prompt in zip(states, prompts, strict=True):
        with torch.no_grad():
            ids = torch.from_numpy(prompt.ids).long()[None]
            truth = network(input_ids=ids, output_hidden_states=True).hidden_states[3][0, -1]
        np.testing.assert_allclose(row, truth.numpy(), rtol=0, atol=2e-5 * float(truth.abs().max()))


@pytest.mark.parametrize(
    "family",
    ["qwen3", "qwen3_5", "qwen3_5_moe", "gpt_oss", "nemotron_h", "llama", "gemma3", "gpt2"],
)
def test_a_causal_lm_is_read_without_its_vocabulary_head(family: str, tmp_path: Path) -> None:
    torch.manual_seed(0)
    network = tf.AutoModelForCausalLM.from_config(FAMILIES[family]()).eval()
    network.save_pretrained(tmp_path)
    save_tokenizer(tmp_path, chat=False)
    states_equal(tmp_path, network)
    encoder = load_encoder(tmp_path)
    assert isinstance(encoder, HubEncoder)
    assert not any("lm_head" in name for name, _ in encoder.network.named_parameters())


VISION = {"hidden_size": 32, "intermediate_size": 32, "patch_size": 4}
QWEN_VISION = {"depth": 1, "num_heads": 4, "out_hidden_size": 32, "num_position_embeddings": 16}
GEMMA_VISION = {"num_hidden_layers": 1, "num_attention_heads": 4, "image_size": 16}


def build_vision(family: str) -> Any:
    text = FAMILIES[family]().to_dict()
    if family == "gemma3":
        config = tf.Gemma3Config(text_config=text, vision_config={**VISION, **GEMMA_VISION})
        return tf.Gemma3ForConditionalGeneration(config).eval()
    config = tf.Qwen3_5Config(text_config=text, vision_config={**VISION, **QWEN_VISION})
    return tf.Qwen3_5ForConditionalGeneration(config).eval()


@pytest.mark.parametrize("family", ["qwen3_5", "gemma3"])
def test_the_text_part_of_a_network_that_sees_is_read(family: str, tmp_path: Path) -> None:
    torch.manual_seed(0)
    network = build_vision(family)
    network.save_pretrained(tmp_path)
    save_tokenizer(tmp_path, chat=True)
    states_equal(tmp_path, network)


def test_weights_that_lack_a_block_are_refused(tmp_path: Path) -> None:
    from safetensors.torch import load_file, save_file

    save("qwen3", tmp_path)
    path = tmp_path / "model.safetensors"
    weights = {k: v for k, v in load_file(path).items() if "layers.2.mlp" not in k}
    save_file(weights, path, metadata={"format": "pt"})
    with pytest.raises(ConfigError, match=r"missing.*layers\.2\.mlp"):
        load_encoder(tmp_path)
    assert load_encoder(tmp_path, layers=[2])


def test_an_encoder_decoder_is_refused(tmp_path: Path) -> None:
    config = tf.T5Config(vocab_size=300, d_model=16, num_layers=1, num_heads=2, d_ff=16, d_kv=8)
    config.save_pretrained(tmp_path)
    save_tokenizer(tmp_path, chat=False)
    with pytest.raises(ConfigError, match="encoder-decoder"):
        load_encoder(tmp_path)


FP8 = {"quant_method": "fp8", "weight_block_size": [16, 16], "modules_to_not_convert": ["lm_head"]}


def quantise(folder: Path) -> None:
    """Quantise the linear layers of a checkpoint in blocks of 16 x 16, eight bits each."""
    file = folder / "model.safetensors"
    weights: dict[str, torch.Tensor] = {}
    for name, weight in load_file(file).items():
        if not name.endswith("proj.weight"):
            weights[name] = weight
            continue
        blocks = weight.unflatten(1, (-1, 16)).unflatten(0, (-1, 16))
        scale = blocks.abs().amax((1, 3)) / 448
        rows = (blocks / scale[:, None, :, None]).flatten(0, 1).flatten(1)
        weights[name] = rows.to(torch.float8_e4m3fn)
        weights[f"{name}_scale_inv"] = scale
    save_file(weights, file, {"format": "pt"})
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "quantization_config": FP8}))


def test_quantised_weights_are_read_and_recorded(tmp_path: Path) -> None:
    exact = load_encoder(save("llama", tmp_path / "llama"), dtype="float32", device="cpu")
    quantise(tmp_path / "llama")
    quantised = load_encoder(tmp_path / "llama", dtype="float32", device="cpu")
    assert exact.provenance.quantisation is None
    assert quantised.provenance.quantisation == "fp8"
    prompts = exact.tokenize(QUERIES)
    expected, actual = (encoder.states(prompts, [SITE])[SITE] for encoder in (exact, quantised))
    error = np.linalg.norm(actual - expected) / np.linalg.norm(expected)
    assert 1e-4 < error < 0.1  # eight bits, and no other network
