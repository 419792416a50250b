"""States from vLLM's files: matched by tokens, checked, pooled into an ordinary store."""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from click.testing import Result
from safetensors.torch import load_file, save_file
from typer.testing import CliRunner

from packages.router.tests.encoders.families import save
from packages.router.tests.encoders.vllm_stand_in import LLM, SamplingParams, streams, write_file
from prefill_router.activations import ActivationStore, Site
from prefill_router.cli import app
from prefill_router.data import write_dataset
from prefill_router.encoders import (
    Encoder,
    encode_dataset,
    load_encoder,
    load_encoder_for,
    plan_encoding,
    pretrained,
)
from prefill_router.errors import ConfigError, CorruptError, ProvenanceError, StoreError
from prefill_router.features.base import SavedProvenance
from prefill_router.testing import make_routing_dataset

pytestmark = pytest.mark.slow

LAYERS = [2, 4]
SITES = [Site(2, "mean"), Site(4, "last")]
DATASET = make_routing_dataset(queries=24)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save("qwen3", tmp_path_factory.mktemp("encoders") / "model")


@pytest.fixture(scope="module")
def ordinary(model: Path) -> Encoder:
    return load_encoder(model, dtype="float32", device="cpu", max_tokens=40, batch_tokens=1)


@pytest.fixture(scope="module")
def states(model: Path, ordinary: Encoder) -> dict[str, tuple[list[int], torch.Tensor]]:
    """The tokens and the tensor that vLLM would write, by the prompt's key."""
    network = pretrained.AutoModel.from_pretrained(model, dtype=torch.float32).eval()
    states = {}
    for prompt in ordinary.tokenize(DATASET.queries):
        ids = prompt.ids.tolist()
        by_layer = streams(network, ids)
        states[prompt.key] = ids, torch.stack([by_layer[layer] for layer in LAYERS], dim=1)
    return states


@pytest.fixture
def states_folder(states: dict, tmp_path: Path) -> Path:
    folder = tmp_path / "hidden"
    folder.mkdir()
    for number, (ids, tensor) in enumerate(states.values()):
        write_file(folder / f"{number}.safetensors", ids, tensor)
    return folder


def load(model: Path, states_folder: Path, **options: object):  # noqa: ANN201
    return load_encoder(model, vllm_folder=states_folder, layers=LAYERS, max_tokens=40, **options)  # type: ignore[arg-type]


def test_a_store_is_that_of_the_encoder_itself_but_for_its_origin(
    model: Path,
    states_folder: Path,
    ordinary: Encoder,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(pretrained, "load_network", None)  # no weights are needed
    mine = encode_dataset(DATASET, load(model, states_folder), tmp_path / "mine", sites=SITES)
    theirs = encode_dataset(DATASET, ordinary, tmp_path / "theirs", sites=SITES)
    shards = {path.name: path.read_bytes() for path in (tmp_path / "theirs/shards").iterdir()}
    assert {path.name: path.read_bytes() for path in (tmp_path / "mine/shards").iterdir()} == shards
    assert mine.truncated(DATASET.prompt_keys) == theirs.truncated(DATASET.prompt_keys) > 0
    assert mine.provenance == theirs.provenance
    assert (mine.provenance.computed_by, theirs.provenance.computed_by) == ("vllm", None)


def test_the_encoder_itself_serves_what_was_fitted_on_them_and_another_one_does_not(
    model: Path, states_folder: Path
) -> None:
    provenance = SavedProvenance(**load(model, states_folder).provenance.to_dict()).provenance()
    assert provenance.computed_by == "vllm"
    assert load_encoder_for(provenance, source=model, device="cpu").provenance == provenance
    with pytest.raises(ProvenanceError, match="dtype is 'bfloat16', not 'float32'"):
        provenance.require(replace(provenance, dtype="bfloat16"), what="it")


def test_a_store_holds_states_of_one_program(
    model: Path, states_folder: Path, ordinary: Encoder, tmp_path: Path
) -> None:
    encode_dataset(DATASET.queries[:4], load(model, states_folder), tmp_path / "s", sites=SITES)
    with pytest.raises(ProvenanceError, match="computed by vllm, not by this package"):
        encode_dataset(DATASET, ordinary, tmp_path / "s", sites=SITES)


def of_layers(tensor: torch.Tensor) -> torch.Tensor:
    return tensor[:, :1]


def with_zeros(tensor: torch.Tensor) -> torch.Tensor:
    return torch.cat([torch.zeros_like(tensor[:3]), tensor[3:]])


def with_nan(tensor: torch.Tensor) -> torch.Tensor:
    return torch.where(tensor == tensor.max(), torch.nan, tensor)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (with_zeros, "the states of 3 of 40 tokens are only zeros; turn off prefix caching"),
        (with_nan, "aren't all finite"),
        (lambda tensor: tensor[8:], "the states of 32 of 40 tokens; turn off prefix caching"),
        (of_layers, "has 1 layers, and --layers names 2"),
        (lambda tensor: tensor[..., :16], "are 16 wide, and those of model are 32"),
        (lambda tensor: tensor.bfloat16(), "are bfloat16, and float32 is expected"),
        (lambda tensor: tensor[:, 0], "2 axes instead of"),
    ],
)
def test_states_that_vllm_did_not_compute_are_refused(
    change: Callable[[torch.Tensor], torch.Tensor],
    reason: str,
    model: Path,
    states_folder: Path,
    tmp_path: Path,
) -> None:
    path = next(
        p for p in states_folder.glob("*.safetensors") if len(load_file(p)["token_ids"]) == 40
    )
    encoder = load(model, states_folder)
    tensors = load_file(path)
    save_file({**tensors, "hidden_states": change(tensors["hidden_states"]).contiguous()}, path)
    with pytest.raises(CorruptError, match=reason) as error:
        encode_dataset(DATASET, encoder, tmp_path / "s", sites=SITES)
    assert str(path) in str(error.value)
    assert not any(query.prompt in str(error.value) for query in DATASET.queries)


def test_a_file_that_is_not_complete_or_of_something_else_is_named(
    model: Path, states_folder: Path
) -> None:
    path = states_folder / "5.safetensors"
    content = path.read_bytes()
    path.write_bytes(content[:-100])
    with pytest.raises(CorruptError, match=r"5\.safetensors isn't a complete file.* vLLM has end"):
        load(model, states_folder)
    save_file({"weight": torch.ones(3)}, path)
    with pytest.raises(CorruptError, match=r"5\.safetensors isn't a complete file"):
        load(model, states_folder)


def test_a_file_that_changes_after_it_was_listed_is_refused(
    model: Path, states_folder: Path, tmp_path: Path
) -> None:
    encoder = load(model, states_folder)
    tensors = load_file(states_folder / "5.safetensors")
    save_file({**tensors, "token_ids": tensors["token_ids"] + 1}, states_folder / "5.safetensors")
    with pytest.raises(CorruptError, match="changed since"):
        encode_dataset(DATASET, encoder, tmp_path / "s", sites=SITES)


def test_files_of_other_prompts_alone_are_an_error(
    model: Path, states_folder: Path, tmp_path: Path
) -> None:
    encoder = load(model, states_folder, template="plain")
    plan, lacking = encoder.split(plan_encoding(DATASET, encoder, tmp_path / "s", sites=SITES))
    assert (plan.left, lacking.left) == (0, 24)
    with pytest.raises(StoreError, match=r"none of its 24 files has the tokens .* --template"):
        encoder.require_files(lacking, with_file=0)


@pytest.mark.parametrize("name", ["minilm", "signals:gpt2", "smollm2", "a.gguf"])
def test_encoders_that_vllm_does_not_extract_are_refused(name: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="vLLM doesn't extract"):
        load_encoder(name, vllm_folder=tmp_path)


def test_options_of_computing_are_refused(model: Path, states_folder: Path) -> None:
    for options in ({"device": "cpu"}, {"batch_tokens": 100}):
        with pytest.raises(ConfigError, match="leave device and batch_tokens out"):
            load(model, states_folder, **options)


def command(data: Path, model: Path, states_folder: Path, *more: object) -> Result:
    words = [
        "--encoder",
        model,
        "--layers",
        "2,4",
        "--max-tokens",
        40,
        "--from-vllm",
        states_folder,
    ]
    return CliRunner().invoke(app, ["encode", *map(str, (data, *words, *more))])


def generate(model: Path, states_folder: Path, prompts: Path) -> None:
    draft = {"hf_config": {"eagle_aux_hidden_state_layer_ids": LAYERS}}
    speculative = {"method": "extract_hidden_states", "num_speculative_tokens": 1}
    vllm = LLM(
        model=str(model),
        dtype="float32",
        max_model_len=41,
        enable_prefix_caching=False,
        enable_chunked_prefill=False,
        speculative_config={**speculative, "draft_model_config": draft},
        kv_transfer_config={
            "kv_connector": "ExampleHiddenStatesConnector",
            "kv_role": "kv_producer",
            "kv_connector_extra_config": {"shared_storage_path": str(states_folder)},
        },
    )
    rows = [json.loads(line) for line in prompts.read_text().splitlines()]
    vllm.generate(rows, SamplingParams(max_tokens=1))


def test_vllm_runs_in_parts_and_the_store_is_that_of_one(
    model: Path, states_folder: Path, tmp_path: Path
) -> None:
    data, prompts, out = tmp_path / "data", tmp_path / "prompts.jsonl", tmp_path / "store"
    write_dataset(DATASET, data)
    store_at_once = encode_dataset(
        DATASET, load(model, states_folder), tmp_path / "whole", sites=SITES
    )
    for path in list(states_folder.glob("*.safetensors")):
        path.unlink()
    listing = command(data, model, states_folder, "--out", out, "--write-prompts", prompts)
    assert listing.exit_code == 0, listing.stderr
    assert "24 prompts have no file, the longest of 40 tokens" in listing.stderr
    assert not out.exists()
    nothing = command(data, model, states_folder, "--out", out)
    assert "24 prompts have no file" in str(nothing.exception)
    assert not out.exists()
    first = tmp_path / "first.jsonl"
    first.write_text("".join(prompts.read_text().splitlines(keepends=True)[:10]))
    generate(model, states_folder, first)
    write_file(states_folder / "other.safetensors", [1, 2, 3], torch.ones(3, 2, 32))
    part = command(data, model, states_folder, "--out", out, "--json")
    assert isinstance(part.exception, StoreError)
    assert "14 prompts have no file" in str(part.exception)
    assert json.loads(part.stdout)["encoded"] == 10
    assert f"11 files in {states_folder}, for 10 of the prompts that are left" in part.stderr
    for path in list(states_folder.glob("*.safetensors")):
        path.unlink()  # what is in the store needs no file
    assert (
        command(data, model, states_folder, "--out", out, "--write-prompts", prompts).exit_code == 0
    )
    assert len(prompts.read_text().splitlines()) == 14
    generate(model, states_folder, prompts)
    result = command(data, model, states_folder, "--out", out)
    assert result.exit_code == 0, result.stderr
    store = ActivationStore.open(out)
    for site in SITES:
        np.testing.assert_array_equal(
            store.read(site, DATASET.prompt_keys), store_at_once.read(site, DATASET.prompt_keys)
        )


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (["--write-prompts", "p.jsonl"], "--write-prompts needs --from-vllm"),
        (["--from-vllm", "."], "--from-vllm needs --layers"),
        (["--from-vllm", "nowhere", "--layers", "2"], "there is no such folder"),
        (
            ["--from-vllm", ".", "--layers", "2", "--device", "cpu"],
            "--device, --batch-tokens and --engine can't be used with --from-vllm",
        ),
    ],
)
def test_options_that_do_not_go_together_are_refused(words: list[str], reason: str) -> None:
    result = CliRunner().invoke(app, ["encode", "data", "--out", "s", *words])
    assert reason in str(result.exception)


def test_a_file_that_is_not_of_prompts_stays(
    model: Path, states_folder: Path, tmp_path: Path
) -> None:
    write_dataset(DATASET, tmp_path / "data")
    (tmp_path / "notes.txt").write_text("mine")
    words = ("--out", tmp_path / "s", "--write-prompts", tmp_path / "notes.txt")
    result = command(tmp_path / "data", model, states_folder, *words)
    assert "notes.txt isn't a file of prompts" in str(result.exception)
    assert (tmp_path / "notes.txt").read_text() == "mine"
