"""Layer l of vLLM's files is layer l here, for every family, to the last bit."""

from pathlib import Path

import numpy as np
import pytest

from packages.router.tests.encoders.families import save
from packages.router.tests.encoders.vllm_stand_in import LLM, SamplingParams
from prefill_router.activations import POOLINGS, Site
from prefill_router.data import Query
from prefill_router.encoders import load_encoder

pytestmark = pytest.mark.slow

FAMILIES = ["llama", "mistral", "qwen2", "qwen3", "qwen3_moe", "qwen3_5", "gemma3", "phi3"]
FAMILIES += ["gpt2", "gpt_oss", "nemotron_h", "olmo2"]
QUERIES = [Query("a", "Why is the sky blue?"), Query("b", "a"), Query("c", "b" * 19)]


def run_vllm(model: Path, folder: Path, prompts: list[list[int]], layers: list[int]) -> None:
    vllm = LLM(
        model=str(model),
        dtype="float32",
        max_model_len=257,
        enable_prefix_caching=False,
        enable_chunked_prefill=False,
        speculative_config={
            "method": "extract_hidden_states",
            "num_speculative_tokens": 1,
            "draft_model_config": {"hf_config": {"eagle_aux_hidden_state_layer_ids": layers}},
        },
        kv_transfer_config={
            "kv_connector": "ExampleHiddenStatesConnector",
            "kv_role": "kv_producer",
            "kv_connector_extra_config": {"shared_storage_path": str(folder)},
        },
    )
    rows = [{"prompt_token_ids": prompt} for prompt in prompts]
    vllm.generate(rows, SamplingParams(max_tokens=1))


@pytest.mark.parametrize("family", FAMILIES)
def test_every_layer_and_pooling_is_the_encoders_own(family: str, tmp_path: Path) -> None:
    model = save(family, tmp_path / "model")
    ours = load_encoder(model, dtype="float32", device="cpu", batch_tokens=1)
    layers = list(ours.layers)
    prompts = ours.tokenize(QUERIES)
    run_vllm(model, tmp_path / "hidden", [p.ids.tolist() for p in prompts], layers)
    theirs = load_encoder(model, vllm_folder=tmp_path / "hidden", layers=layers)
    sites = [Site(layer, pooling) for layer in layers for pooling in POOLINGS]
    states, expected = theirs.states(theirs.tokenize(QUERIES), sites), ours.states(prompts, sites)
    for site in sites:
        np.testing.assert_array_equal(states[site], expected[site], err_msg=site.name)
    assert theirs.provenance == ours.provenance
    assert theirs.provenance.computed_by == "vllm"
