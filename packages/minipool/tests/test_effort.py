"""Reasoning effort of the tiny models: samples, their majority, and the tokens of all of them."""

from collections.abc import Iterator, Sequence

import pytest

from packages.minipool.tests.wire import body, post
from prefill_router_minipool.server import (
    SAMPLES,
    Job,
    Message,
    Prompt,
    Sampling,
    describe_pool,
    serve,
)
from prefill_router_minipool.server.effort import SampledAnswer


class SeededModel:
    """Answers with one of three texts, by the seed of the sampling."""

    name, context = "seeded", 1000

    def read_chat(self, messages: Sequence[Message]) -> Prompt:
        return self.read_text(messages[-1][1])

    def read_text(self, text: str) -> Prompt:
        return Prompt(text, 7)

    def generate(self, jobs: Sequence[Job]) -> Iterator[list[tuple[Job, str, bool]]]:
        assert all(job.sampling.temperature == 1 for job in jobs)
        yield [(job, "ab"[job.sampling.seed % 2], False) for job in jobs]
        yield [(job, "!", True) for job in jobs]


def sample_answer(
    samples: int, texts: Sequence[str]
) -> tuple[SampledAnswer, list[tuple[str, bool]]]:
    deliveries: list[tuple[str, bool]] = []
    answer = SampledAnswer(
        Prompt("p", 3),
        samples=samples,
        max_tokens=9,
        stop=(),
        sampling=Sampling(),
        deliver=lambda text, last: deliveries.append((text, last)),
    )
    for job, text in zip(answer.jobs, texts, strict=True):
        for letter in text:
            assert not deliveries
            job.deliver(*job.add(letter, ended=letter == text[-1]))
    return answer, deliveries


def test_the_most_frequent_text_is_the_answer() -> None:
    answer, given = sample_answer(5, ["41", "42", "7", "42", "9"])
    assert given == [("42", True)]
    assert answer.generated == 8
    assert answer.reasoning == 6
    assert answer.answer is answer.jobs[1]


def test_the_first_of_equally_frequent_texts_is_the_answer() -> None:
    assert sample_answer(3, ["b", "a", "c"])[1] == [("b", True)]


def test_samples_and_prompts_have_seeds_of_their_own() -> None:
    answers = [
        SampledAnswer(
            Prompt(text, 1),
            samples=4,
            max_tokens=1,
            stop=(),
            sampling=Sampling(seed=seed),
            deliver=print,
        )
        for text in "pq"
        for seed in (0, 1)
    ]
    seeds = {job.sampling.seed for answer in answers for job in answer.jobs}
    assert len(seeds) == 16


def test_all_samples_are_counted_over_the_wire() -> None:
    with serve([SeededModel()]) as server:
        for effort, samples in SAMPLES.items():
            asked = body("seeded", "hi", reasoning_effort=effort, max_tokens=60)
            answer = post(server, asked).json()
            assert answer["choices"][0]["message"]["content"] in ("a!", "b!")
            assert answer["choices"][0]["finish_reason"] == "stop"
            usage = answer["usage"]
            assert usage["completion_tokens"] == 2 * samples
            details = usage["completion_tokens_details"]
            assert details["reasoning_tokens"] == 2 * (samples - 1)
        limited = post(server, body("seeded", "hi", reasoning_effort="high", max_tokens=15)).json()
        assert limited["usage"]["completion_tokens"] == 15  # one token of each sample
        assert limited["choices"][0]["finish_reason"] == "length"
        pool = describe_pool(server, names=["sprout"], efforts=["low", "high"])
    assert pool.names == ("sprout:low", "sprout:high")
    assert {target.model for target in pool} == {"sprout"}


@pytest.mark.parametrize("effort", ["none", None])
def test_without_an_effort_nothing_is_sampled(effort: str | None) -> None:
    class Greedy(SeededModel):
        def generate(self, jobs: Sequence[Job]) -> Iterator[list[tuple[Job, str, bool]]]:
            assert [job.sampling.temperature for job in jobs] == [0.0]
            yield [(job, "x", True) for job in jobs]

    with serve([Greedy()]) as server:
        answer = post(server, body("seeded", "hi", reasoning_effort=effort)).json()
    assert answer["usage"]["completion_tokens"] == 1
