"""The tiny pool's models: they load as any others do, their skills differ, training repeats."""

import csv
import json
from functools import cache
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from transformers import AutoModelForCausalLM, AutoTokenizer

from prefill_router.activations import Site
from prefill_router.data import Query
from prefill_router.encoders import encode_dataset, load_encoder
from prefill_router.errors import ConfigError
from prefill_router.progress import SilentProgress
from prefill_router_minipool import ENCODER, NAMES, folder_of, make_tasks, pool
from prefill_router_minipool.tasks import FAMILIES, is_held_out
from prefill_router_minipool.training.loop import (
    check_answers,
    draw_batches,
    make_batches,
    orthogonal,
    summarise,
    train_models,
)
from prefill_router_minipool.training.network import PROFILES, make_tokenizer

pytestmark = pytest.mark.slow

EVERY = (*NAMES, ENCODER)
MOST_BYTES = 12_000_000
TASKS = make_tasks(300, seed=21)
TEXTS = (
    "What is 47+58?",
    "  two  spaces,\ttabs\n and lines\r\n",
    "Grüße, 日本語, עברית, 😀👩‍🚀, \u200b\ufeff, ٣ and ½",
    "<|user|> in the middle <|end|>",
    "{}[]() \\ \x00 \x7f",
    "",
)


@cache
def tokenizer_of(name: str) -> Any:
    return AutoTokenizer.from_pretrained(folder_of(name), local_files_only=True)


@cache
def network_of(name: str) -> Any:
    return AutoModelForCausalLM.from_pretrained(
        folder_of(name), dtype=torch.float32, local_files_only=True
    ).eval()


@cache
def correct() -> NDArray[np.bool_]:
    columns = [check_answers(network_of(n), tokenizer_of(n), TASKS) for n in NAMES]
    return np.array(columns).T


def generate_texts(name: str, prompts: list[str]) -> list[str]:
    tokenizer = tokenizer_of(name)
    chats = [
        tokenizer.apply_chat_template(
            [{"role": "user", "content": prompt}], tokenize=False, add_generation_prompt=True
        )
        for prompt in prompts
    ]
    batch = tokenizer(chats, return_tensors="pt", padding=True)
    out = network_of(name).generate(**batch)
    return list(
        tokenizer.batch_decode(out[:, batch["input_ids"].shape[1] :], skip_special_tokens=True)
    )


def test_sizes_and_prices_grow_together() -> None:
    sizes = [sum(p.numel() for p in network_of(name).parameters()) for name in NAMES]
    assert sizes == sorted(sizes)
    prices = [(t.input_price, t.output_price) for t in pool()]
    assert prices == sorted(prices)
    assert sizes[-1] > 10 * sizes[0]


def test_the_weights_are_small_together() -> None:
    weights = folder_of(NAMES[0]).parent
    assert sum(path.stat().st_size for path in weights.rglob("*")) < MOST_BYTES
    assert {path.name for path in weights.iterdir() if path.is_dir()} == set(EVERY)


def test_the_pool() -> None:
    targets = pool("http://127.0.0.1:8123/v1")
    assert targets.names == NAMES
    assert {target.base_url for target in targets} == {"http://127.0.0.1:8123/v1"}
    assert ENCODER not in targets.names
    with pytest.raises(ConfigError, match="oracle"):
        folder_of("oracle")


@pytest.mark.parametrize("name", EVERY)
def test_any_text_has_tokens_and_comes_back(name: str) -> None:
    tokenizer = tokenizer_of(name)
    random = Random(0)
    drawn = ["".join(chr(random.randrange(0x20, 0xD7FF)) for _ in range(20)) for _ in range(50)]
    for text in (*TEXTS, *drawn, *(task.prompt for task in TASKS)):
        ids = tokenizer(text)["input_ids"]
        assert tokenizer.decode(ids) == text
    assert tokenizer.model_max_length == network_of(name).config.max_position_embeddings


def test_digits_and_made_up_words_fall_into_characters() -> None:
    tokenizer = tokenizer_of(ENCODER)
    ids = tokenizer("Reverse qzxv. Add 307 and 9.")["input_ids"]
    words = ["Reverse", "Ġ", *"qzxv", ".", "Ġ", *"Add", "Ġ", *"307", "Ġand", "Ġ", "9", "."]
    assert tokenizer.convert_ids_to_tokens(ids) == words


def test_all_have_the_tokenizer_that_training_makes(tmp_path: Path) -> None:
    make_tokenizer().save_pretrained(tmp_path)
    for file in ("tokenizer.json", "chat_template.jinja", "tokenizer_config.json"):
        contents = {(folder / file).read_bytes() for folder in (tmp_path, *map(folder_of, EVERY))}
        assert len(contents) == 1, file


def test_the_chat_template_takes_any_chat() -> None:
    chat = [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": [{"type": "text", "text": "Reverse "}, {"text": "abc."}]},
        {"role": "assistant", "content": "cba"},
        {"role": "tool", "content": None},
        {"role": "user", "content": "Add 1 and 2."},
    ]
    text = tokenizer_of(NAMES[0]).apply_chat_template(
        chat, tokenize=False, add_generation_prompt=True
    )
    assert text == (
        "<|user|>Be brief.<|user|>Reverse abc.<|assistant|>cba<|end|><|user|>"
        "<|user|>Add 1 and 2.<|assistant|>"
    )


@pytest.mark.parametrize("name", NAMES)
def test_answers_depend_on_no_batch_and_no_padding(name: str) -> None:
    tasks = sorted(TASKS[:24], key=lambda task: task.id)
    together = generate_texts(name, [task.prompt for task in tasks])
    alone = [generate_texts(name, [task.prompt])[0] for task in tasks]
    assert together == alone
    check = check_answers(network_of(name), tokenizer_of(name), tasks)
    graded = [text == task.answer for text, task in zip(alone, tasks, strict=True)]
    assert check == graded


def test_skills_overlap_but_differ() -> None:
    table = correct()
    single = table.mean(0)
    assert table.any(1).mean() > single.max() + 0.05
    best_at = set()
    for family in FAMILIES:
        rows = [row for row, task in enumerate(TASKS) if task.domain == family]
        best_at.add(NAMES[int(table[rows].mean(0).argmax())])
    assert len(best_at) >= 3
    assert (table.sum(1) >= 2).mean() > 0.2  # many tasks are answered by several


def test_difficulty_tells() -> None:
    easy, hard = (
        correct()[[task.difficulty in levels for task in TASKS]].mean()
        for levels in ((1, 2), (4, 5))
    )
    assert easy > hard + 0.1


def test_the_encoder_is_read_by_the_ordinary_code(tmp_path: Path) -> None:
    encoder = load_encoder(folder_of(ENCODER), dtype="float32")
    assert encoder.provenance.template == "chat"
    queries = [Query(task.id, task.prompt) for task in TASKS[:40]]
    sites = [Site(3, "last"), Site(4, "mean")]
    store = encode_dataset(queries, encoder, tmp_path / "states", sites=sites)
    assert store.provenance.encoder == ENCODER


def test_training_meets_no_held_out_prompt() -> None:
    tokenizer = make_tokenizer()
    batches = draw_batches(tokenizer, PROFILES[ENCODER].skills, size=64, random=Random(0))
    prompts = []
    for _ in range(10):
        for row in next(batches).ids.tolist():
            text = tokenizer.decode(row)
            prompts.append(text.removeprefix("<|user|>").split("<|assistant|>")[0])
    assert len(set(prompts)) > 500
    assert not any(is_held_out(prompt) for prompt in prompts)


def test_only_answers_and_their_ends_are_learned() -> None:
    tokenizer = make_tokenizer()
    tasks = make_tasks(50, seed=1)
    texts = {}
    for batch in make_batches(tokenizer, tasks, size=16):
        for row, ids, answers in zip(batch.rows, batch.ids, batch.answers, strict=True):
            texts[row] = tokenizer.decode(ids[1:][answers[:-1]])
    assert texts == {row: f"{task.answer}<|end|>" for row, task in enumerate(tasks)}


@pytest.mark.parametrize("shape", [(3, 8, 24), (2, 24, 8), (1, 16, 16)])
def test_orthogonalised_matrices_have_singular_values_near_one(shape: tuple[int, ...]) -> None:
    drawn = torch.randn(shape, generator=torch.Generator().manual_seed(0))
    values = torch.linalg.svdvals(orthogonal(drawn))
    assert values.min() > 0.4
    assert values.max() < 1.3


def test_training_repeats_bit_for_bit(tmp_path: Path) -> None:
    for name in ("one", "two"):
        train_models(tmp_path / name, ["sprout"], steps=3, progress=SilentProgress())
    one, two = (tmp_path / name / "sprout" for name in ("one", "two"))
    for file in ("model.safetensors", "tokenizer.json", "curves.csv", "config.json"):
        assert (one / file).read_bytes() == (two / file).read_bytes(), file
    summarise(tmp_path / "one")
    assert (tmp_path / "one" / "curves.png").stat().st_size > 1000
    with (tmp_path / "one" / "skills.csv").open() as file:
        assert {row["model"] for row in csv.DictReader(file)} == {"sprout"}


def test_training_refuses_what_makes_no_sense(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="baker"):
        train_models(tmp_path, ["baker"])
    with pytest.raises(ConfigError, match="at least one"):
        train_models(tmp_path, ["sprout"], steps=0)


@pytest.mark.parametrize("name", EVERY)
def test_the_weights_are_those_of_the_profiles(name: str) -> None:
    record = json.loads((folder_of(name) / "training.json").read_text())
    profile = {**vars(PROFILES[name])}
    profile["skills"] = {family: list(shares) for family, shares in profile["skills"].items()}
    assert record["profile"] == json.loads(json.dumps(profile))
    assert record["parameters"] == sum(p.numel() for p in network_of(name).parameters())
    assert name in record["command"]
    with (folder_of(name) / "curves.csv").open() as file:
        last = [*csv.DictReader(file)][-1]
    assert int(last["step"]) == record["profile"]["steps"]
    assert set(last) == {"step", "loss", *FAMILIES}


def test_training_took_less_than_forty_minutes_on_two_cores() -> None:
    records = [json.loads((folder_of(n) / "training.json").read_text()) for n in EVERY]
    assert {record["threads"] for record in records} == {1}
    assert sum(record["cpu_seconds"] for record in records) < 2 * 40 * 60
