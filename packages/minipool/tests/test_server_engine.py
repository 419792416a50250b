"""Real models: what is generated in a batch is what is generated alone, and it is all counted."""

import asyncio
import random
import shutil
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import openai
import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from packages.minipool.tests.tiny_causal import save_tiny_causal
from packages.minipool.tests.wire import body, post, read_stream, text_of
from packages.router.tests.commands import truncate
from prefill_router.errors import ConfigError
from prefill_router_minipool.server import Job, Sampling, serve
from prefill_router_minipool.server.engine import LocalModel, TokenSampler
from prefill_router_minipool.server.protocol import ApiError

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_tiny_causal(tmp_path_factory.mktemp("models") / "tiny")


@pytest.fixture(scope="module")
def model(folder: Path) -> LocalModel:
    return LocalModel(folder)


def questions(count: int) -> list[str]:
    drawn = random.Random(4)
    return ["".join(drawn.choices("abcdef 123é😀", k=drawn.randint(0, 60))) for _ in range(count)]


def write_answers(model: LocalModel, jobs: list[Job]) -> list[str]:
    texts = dict.fromkeys(jobs, "")
    for step in model.generate(jobs):
        for job, piece, ended in step:
            texts[job] += job.add(piece, ended=ended)[0]
    return list(texts.values())


def job(model: LocalModel, text: str, *, tokens: int = 20, **sampling: Any) -> Job:
    prompt = model.read_chat([("user", text)])
    return Job(prompt=prompt, max_tokens=tokens, sampling=Sampling(**sampling))


@pytest.fixture(scope="module")
def alone(folder: Path) -> dict[str, tuple[str, int]]:
    """The answers and their numbers of tokens by the ordinary `generate`, one by one."""
    network = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    tokenizer = AutoTokenizer.from_pretrained(folder)
    answers = {}
    for text in questions(40):
        tokens = tokenizer.apply_chat_template(
            [{"role": "user", "content": text}], add_generation_prompt=True, return_tensors="pt"
        )
        new = network.generate(**tokens, max_new_tokens=20, do_sample=False)[0]
        new = new[tokens["input_ids"].shape[1] :]
        answers[text] = tokenizer.decode(new, skip_special_tokens=True), len(new)
    return answers


@pytest.mark.parametrize("batch", [1, 7, 40])
def test_answers_are_those_of_generate_whatever_is_beside_them(
    model: LocalModel, alone: dict[str, tuple[str, int]], batch: int
) -> None:
    texts = list(alone)
    random.Random(batch).shuffle(texts)
    answers_by_text = {}
    for at in range(0, len(texts), batch):
        jobs = [job(model, text) for text in texts[at : at + batch]]
        answers = write_answers(model, jobs)
        for text, answer, each in zip(texts[at : at + batch], answers, jobs, strict=True):
            answers_by_text[text] = answer, each.generated
    assert answers_by_text == alone
    lengths = Counter(count for _, count in alone.values())
    assert len(lengths) > 3  # rows end at different times
    assert len({answer for answer, _ in alone.values()}) > 20


def test_padding_that_is_seen_would_be_noticed(
    model: LocalModel, alone: dict[str, tuple[str, int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.Tensor, "__ge__", lambda a, b: torch.ones(len(b), a.shape[1]) > 0)
    answers = write_answers(model, [job(model, text) for text in alone])
    assert answers != [answer for answer, _ in alone.values()]


def test_seeds_and_not_neighbours_decide_what_is_drawn(model: LocalModel) -> None:
    def draw_texts(seeds: list[int], **more: Any) -> list[str]:
        return write_answers(
            model, [job(model, "abc", temperature=1.0, seed=s, **more) for s in seeds]
        )

    together = draw_texts([0, 1, 2, 3, -1])
    assert together == [draw_texts([seed])[0] for seed in (0, 1, 2, 3, -1)]
    assert len(set(together)) == 5
    greedy = write_answers(model, [job(model, "abc")])
    assert draw_texts([5, 6], top_p=1e-9) == greedy * 2
    assert write_answers(model, [job(model, "abc", temperature=1e-300)]) == greedy


def test_tokens_are_drawn_by_their_probabilities() -> None:
    logits = np.log([0.5, 0.2, 0.2, 0.1])
    counts = Counter(
        TokenSampler(Sampling(temperature=1.0, seed=seed)).choose(logits) for seed in range(2000)
    )
    assert np.allclose([counts[i] / 2000 for i in range(4)], [0.5, 0.2, 0.2, 0.1], atol=0.04)
    cut = {
        TokenSampler(Sampling(temperature=1.0, top_p=0.65, seed=seed)).choose(logits)
        for seed in range(500)
    }
    assert cut == {0, 1}
    cold = [
        TokenSampler(Sampling(temperature=0.5, seed=seed)).choose(logits) == 0
        for seed in range(2000)
    ]
    assert abs(np.mean(cold) - 0.25 / 0.34) < 0.04


def test_rows_that_are_left_take_no_more_steps(model: LocalModel) -> None:
    stay, leave = job(model, "abc", tokens=12), job(model, "xyz" * 9, tokens=12)
    steps = []
    for step in model.generate([stay, leave]):
        steps.append([one for one, _, _ in step])
        for one, piece, ended in step:
            one.add(piece, ended=ended)
        if len(steps) == 2:
            leave.leave()
    assert [leave in step for step in steps] == [True, True] + [False] * (len(steps) - 2)
    assert stay.generated == len(steps) > 2
    gone = job(model, "abc")
    gone.leave()
    assert [step for step in model.generate([gone]) if step] == []


def test_long_prompts_are_read_apart_from_short_ones(model: LocalModel) -> None:
    texts = ["a" * (150 + i % 40) for i in range(56)] + ["b" * i for i in range(10)]
    together = write_answers(model, [job(model, text, tokens=4) for text in texts])
    assert together == [write_answers(model, [job(model, text, tokens=4)])[0] for text in texts]


def test_over_the_wire(folder: Path, alone: dict[str, tuple[str, int]]) -> None:
    models = [LocalModel(folder), LocalModel(folder, name="twin")]

    async def ask_all(base_url: str) -> list[Any]:
        async with openai.AsyncOpenAI(base_url=base_url, api_key="x", max_retries=0) as client:
            asking = [
                client.chat.completions.create(
                    model=("tiny", "twin")[i % 2],
                    messages=[{"role": "user", "content": text}],
                    max_tokens=20,
                )
                for i, text in enumerate(alone)
            ]
            return await asyncio.gather(*asking)

    with serve(models, max_batch=16) as server:
        replies = asyncio.run(ask_all(server.base_url))
        for reply, (text, (answer, count)) in zip(replies, alone.items(), strict=True):
            assert reply.choices[0].message.content == answer
            assert reply.usage.completion_tokens == count
            assert reply.usage.prompt_tokens == len(text.encode()) + 2
            if count < 20:
                assert reply.choices[0].finish_reason == "stop"
        for text, (answer, count) in list(alone.items())[:10]:
            events = read_stream(server, text, model="tiny", max_tokens=20)
            assert text_of(events) == answer
            assert events[-1]["usage"]["completion_tokens"] == count
        again = [read_stream(server, "abc", model="tiny", temperature=1, seed=3) for _ in range(2)]
        assert text_of(again[0]) == text_of(again[1])
        assert post(server, body("tiny", "x" * 300)).json()["error"]["code"] == (
            "context_length_exceeded"
        )
        tool = {"model": "tiny", "messages": [{"role": "tool", "content": "x"}]}
        assert "no tools here" in post(server, tool).json()["error"]["message"]
        lone = b'{"model": "tiny", "messages": [{"role": "user", "content": "\\ud800"}]}'
        assert post(server, lone).status_code == 400
        assert post(server, {"model": "tiny", "prompt": ""}, path="/completions").status_code == 400
        reply = post(
            server, {"model": "tiny", "prompt": "ab", "max_tokens": 2}, path="/completions"
        )
        assert reply.json()["usage"]["total_tokens"] == 4
        assert server.stats().generated_tokens == sum(r.completion_tokens for r in server.log)


def test_folders_that_hold_no_model(tmp_path: Path, folder: Path, model: LocalModel) -> None:
    damaged = Path(shutil.copytree(folder, tmp_path / "damaged"))
    for name in ("model.safetensors", "config.json", "tokenizer.json"):
        truncate(damaged / name)
        with pytest.raises(ConfigError, match="can't be served"):
            LocalModel(damaged)
        shutil.copy(folder / name, damaged / name)
    assert LocalModel(damaged).context == 256
    with pytest.raises(ConfigError, match="can't be served"):
        LocalModel(tmp_path)
    with pytest.raises(ConfigError, match="can't be served"):
        LocalModel(tmp_path / "nothing")
    with pytest.raises(ApiError):
        model.read_text("")
