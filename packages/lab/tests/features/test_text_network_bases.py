"""Networks of other architectures, and only up to a layer, tuned to the text."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers as tf

from packages.lab.tests.features.text_networks import (
    SIZES,
    fit,
    gpt2,
    modernbert,
    none_of,
    quick,
    read,
    save_tiny,
    texts,
)
from prefill_router.encoders import load_encoder
from prefill_router.encoders.hub import HubEncoder
from prefill_router.errors import ConfigError
from prefill_router.features.base import load_family
from prefill_router_lab.features.text_network import TextNetwork


@pytest.mark.slow
@pytest.mark.parametrize(
    ("config", "names"),
    [
        (tf.BertConfig(**SIZES), {"query", "value"}),
        (tf.Qwen3Config(**SIZES, num_key_value_heads=2, head_dim=8), {"q_proj", "v_proj"}),
        (modernbert(), {"Wqkv"}),
        (gpt2(), {"c_attn"}),
    ],
)
def test_other_architectures(config: Any, names: set[str], tmp_path: Path) -> None:
    folder = save_tiny(tmp_path / "base", config)
    train = texts(12, seed=4)
    tuned = fit(quick(folder, epochs=1, pool="last", batch_size=4), train)
    assert {name.rpartition(".")[2] for name, _, _ in tuned.adaption.layers} == names
    assert any(tuned.arrays[f"lora_b.{i}"].any() for i in range(len(tuned.adaption.layers)))
    again = load_family(tuned.to_dict(), tuned.tensors())
    assert isinstance(again, TextNetwork)
    assert np.array_equal(read(again.at(folder), train), read(tuned, train))


@pytest.mark.slow
def test_blocks_after_a_layer_are_neither_computed_nor_adapted(tmp_path: Path) -> None:
    sizes = {**SIZES, "num_hidden_layers": 3}
    config = tf.Qwen3Config(**sizes, num_key_value_heads=2, head_dim=8)
    folder, train = save_tiny(tmp_path / "base", config), texts(12, seed=4)
    tuned = fit(quick(folder, layer=2, epochs=1, batch_size=4), train)
    assert {name.split(".")[1] for name, _, _ in tuned.adaption.layers} == {"0", "1"}
    again = load_family(tuned.to_dict(), tuned.tensors())
    assert isinstance(again, TextNetwork)
    assert np.array_equal(read(again.at(folder), train), read(tuned, train))
    assert "layer" not in fit(quick(folder, epochs=1), train).to_dict()

    encoder = load_encoder(folder, dtype="float32")
    assert isinstance(encoder, HubEncoder)
    network: Any = encoder.network
    prompt = encoder.tokenize(train.queries[:1])[0]
    with torch.no_grad():
        row = torch.from_numpy(prompt.ids).long()[None]
        inner = network(input_ids=row, output_hidden_states=True).hidden_states[2]
        pooled = network.norm(inner)[0].mean(dim=0).numpy()
    plain = none_of(tuned.arrays)
    plain |= {name: tuned.arrays[name] for name in ("head.weight", "head.bias")}
    expected = pooled @ plain["head.weight"][0].T + plain["head.bias"][0]
    untuned = replace(tuned, arrays=plain)
    np.testing.assert_allclose(read(untuned, train)[0], expected, atol=1e-5)

    with pytest.raises(ConfigError, match="this encoder has the layers 0 to 3"):
        fit(quick(folder, layer=4), train)
