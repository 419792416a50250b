"""A small language model: `fit --for switchyard`, `export --switchyard`, `import switchyard`."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from transformers import AutoModel, AutoTokenizer

from packages.router.tests.commands import check_malformed, check_refused, run_ok
from packages.router.tests.encoders import families
from packages.router.tests.router.test_switchyard import theirs, write_checkpoint
from prefill_router.data import write_dataset
from prefill_router.router import EncoderSources, Router
from prefill_router.testing import make_routing_dataset

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A dataset, states of it, a router that the format holds, and its checkpoint."""
    folder = tmp_path_factory.mktemp("switchyard")
    families.save("qwen3", folder / "qwen3")
    write_dataset(make_routing_dataset(queries=120), folder / "answers")
    encode_options = ("--encoder", folder / "qwen3", "--dtype", "float32", "--layers", "3-5")
    run_ok("encode", folder / "answers", *encode_options, "--out", folder / "states")
    options = ("--store", folder / "states", "--for", "switchyard")
    run_ok("fit", "--no-verdict", folder / "answers", *options, "--out", folder / "router")
    run_ok("export", folder / "router", "--switchyard", folder / "router.pt")
    return folder


def load_router(folder: Path, name: str) -> Router:
    return Router.load(
        folder / name, sources=EncoderSources(folders={"qwen3": folder / "qwen3"}, device="cpu")
    )


def test_imported_again_it_decides_the_same(folder: Path, tmp_path: Path) -> None:
    out = ("--encoder", folder / "qwen3", "--out", folder / "again")
    for _ in range(2):
        output = run_ok("import", "switchyard", folder / "router.pt", *out)
        assert "it has no prices" in output
    texts = [str(query.prompt) for query in make_routing_dataset(queries=60, seed=3).queries]
    first, again = (load_router(folder, name) for name in ("router", "again"))
    assert [d.target for d in first.route_many(texts)] == [
        d.target for d in again.route_many(texts)
    ]
    # only the first rounds its states, to bfloat16
    np.testing.assert_allclose(
        first.predict_proba(texts).to_numpy(), again.predict_proba(texts).to_numpy(), atol=0.02
    )
    other = theirs() | {"encoder": {**theirs()["encoder"], "n_layers": 5, "hidden_dim": 32}}
    pipeline = other["feature_pipeline"]
    for name in ("layer_mean", "layer_std"):
        pipeline[name] = {k: torch.cat([v, v]) for k, v in pipeline[name].items()}
    for name in ("scaler_mean", "scaler_scale", "pca_mean", "pca_components"):
        pipeline[name] = torch.cat([pipeline[name], pipeline[name]], dim=-1)
    check_refused(
        "pass --overwrite", "import", "switchyard", write_checkpoint(other, tmp_path), *out
    )


def test_from_text_on_it_is_what_their_description_says(folder: Path) -> None:
    """transformers computes the chat template and the last token of each layer's output."""
    checkpoint = torch.load(folder / "router.pt", weights_only=True)
    tokenizer = AutoTokenizer.from_pretrained(folder / "qwen3")
    network = AutoModel.from_pretrained(folder / "qwen3", dtype=torch.float32).eval()
    assert network.config.num_hidden_layers == checkpoint["encoder"]["n_layers"]
    text = str(make_routing_dataset(queries=1, seed=9).queries[0].prompt)
    chat = [{"role": "user", "content": text}]
    rendered = tokenizer.apply_chat_template(chat, tokenize=False, add_generation_prompt=True)
    with torch.no_grad():
        read = network(**tokenizer(rendered, return_tensors="pt"), output_hidden_states=True)
    pipeline, state = checkpoint["feature_pipeline"], checkpoint["model_state_dicts"]
    rows = [
        (read.hidden_states[k][0, -1] - pipeline["layer_mean"][str(k)])
        / pipeline["layer_std"][str(k)]
        for k in pipeline["selected_layers"]
    ]
    features = pipeline["pca_components"] @ torch.stack(rows).mean(0)
    chances = []
    for net in state:
        hidden = torch.relu(net["adapters.0.weight"] @ features + net["adapters.0.bias"])
        hidden = torch.relu(net["trunk.0.weight"] @ hidden + net["trunk.0.bias"])
        chances.append(torch.sigmoid(net["heads.0.weight"] @ hidden + net["heads.0.bias"]))
    out = folder / "plain"
    args = ("--encoder", folder / "qwen3", "--out", out)
    run_ok("import", "switchyard", folder / "router.pt", *args)
    mine = load_router(folder, "plain").predict_proba([text]).to_numpy()[0, 0]
    assert mine == pytest.approx(float(torch.stack(chances).mean()), abs=1e-5)


def test_files_are_written_once_and_told_as_json(folder: Path, tmp_path: Path) -> None:
    to = tmp_path / "router.pt"
    for _ in range(2):
        output = run_ok("export", folder / "router", "--switchyard", to, "--json")
        assert json.loads(output)["targets"] == ["target-0", "target-1", "target-2"]
    to.write_bytes(b"mine")
    check_refused("pass --overwrite", "export", folder / "router", "--switchyard", to)
    assert to.read_bytes() == b"mine"


def test_a_router_that_it_does_not_hold_writes_nothing(folder: Path, tmp_path: Path) -> None:
    options = ("--store", folder / "states", "--recipe", "paper", "--out", tmp_path / "paper")
    run_ok("fit", "--no-verdict", folder / "answers", *options)
    output = check_refused(
        "shrunk", "export", tmp_path / "paper", "--switchyard", tmp_path / "router.pt"
    )
    assert not (tmp_path / "router.pt").exists()
    assert "--for switchyard" in output


def test_words_that_exclude_each_other() -> None:
    check_malformed("--switchyard is missing", "export", "gone")
    check_malformed(
        "leave out --recipe", "fit", "d", "--out", "r", "--for=switchyard", "--effort=quick"
    )
    check_malformed("leave out --recipe", "fit", "d", "--out", "r", "--for=switchyard", "--dim=3")
    check_malformed("--for is 'theirs'", "fit", "d", "--out", "r", "--for=theirs")
    check_malformed("with --encoder", "import", "switchyard", "a.pt", "--out", "r")
