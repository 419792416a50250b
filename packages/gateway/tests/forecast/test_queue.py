"""The pieces between the gateway and the encoder's process."""

import asyncio
import io
import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, strategies as st

from prefill_router.data import Message
from prefill_router.errors import ConfigError
from prefill_router.router import EncoderSources, Forecast
from prefill_router.testing import FakeEncoder
from prefill_router_gateway.forecast.encoder_process import (
    MOST_FRAME_BYTES,
    EncoderHello,
    FrameError,
    pack_frame,
    plain_options,
    plain_prompt,
    plain_result,
    read_frame,
    read_prompt,
    read_results,
    receive_frame,
    sources_of,
)
from prefill_router_gateway.forecast.forecaster import (
    BatchTimeModel,
    ForecastCache,
    ForecastJob,
    ForecastQueue,
)

FINITE_FLOATS = st.floats(allow_nan=False, allow_infinity=False)


def receive(content: bytes) -> Any:
    async def feed() -> Any:
        reader = asyncio.StreamReader()
        reader.feed_data(content)
        reader.feed_eof()
        return await receive_frame(reader)

    return asyncio.run(feed())


@pytest.mark.slow
@given(st.lists(st.text(st.characters()) | FINITE_FLOATS | st.none(), max_size=5))
def test_frame_comes_through_as_it_was(value: list[Any]) -> None:
    assert read_frame(io.BytesIO(pack_frame(value))) == value


def test_lone_surrogate_comes_through() -> None:
    assert receive(pack_frame(["\ud800 \N{GRINNING FACE}"])) == ["\ud800 \N{GRINNING FACE}"]


def test_frames_follow_each_other() -> None:
    file = io.BytesIO(pack_frame(1) + pack_frame("two"))
    assert [read_frame(file), read_frame(file), read_frame(file)] == [1, "two", None]


@pytest.mark.parametrize(
    "content",
    [
        b"\0\0",
        pack_frame("cut off")[:-1],
        struct.pack(">I", MOST_FRAME_BYTES + 1) + b"{}",
        struct.pack(">I", 4) + b"{no}",
        struct.pack(">I", 2) + b"\xff\xfe",
        struct.pack(">I", 9000) + b"[" * 9000,
    ],
)
def test_what_is_no_frame_is_refused(content: bytes) -> None:
    with pytest.raises(FrameError):
        read_frame(io.BytesIO(content))
    with pytest.raises(FrameError):
        receive(content)


def test_end_of_a_stream_is_no_frame() -> None:
    with pytest.raises(FrameError, match="ended"):
        receive(b"")


@pytest.mark.slow
@given(
    st.lists(FINITE_FLOATS, min_size=2, max_size=2),
    st.none() | FINITE_FLOATS,
    st.lists(st.integers(0, 9)),
)
def test_forecast_comes_through_exactly(
    correctness: list[float], novelty: float | None, bins: list[int]
) -> None:
    output, high = np.array([np.nan, 3.5]), np.array([np.nan, 1e6 / 3])
    forecast = Forecast(np.array(correctness), 7, True, novelty, tuple(bins), output, high)
    [result] = read_results(
        [read_frame(io.BytesIO(pack_frame(plain_result(forecast))))], count=1, targets=2
    )
    assert isinstance(result, Forecast)
    assert result.correctness.tolist() == correctness
    assert (result.tokens, result.truncated, result.novelty, result.bins) == (
        7,
        True,
        novelty,
        tuple(bins),
    )
    assert not result.correctness.flags.writeable
    np.testing.assert_array_equal(result.output, output)
    np.testing.assert_array_equal(result.output_high, high)


def test_reasons_come_through() -> None:
    assert read_results(["unreadable", "encoder_down"], count=2, targets=2) == [
        "unreadable",
        "encoder_down",
    ]


VALID_RESULT = plain_result(Forecast(np.array([0.5, 0.5]), 7, False))


@pytest.mark.parametrize(
    "values",
    [
        [],
        [VALID_RESULT, VALID_RESULT],
        ["because"],
        [None],
        None,
        7,
        [VALID_RESULT | {"correctness": [0.5]}],
        [VALID_RESULT | {"correctness": "half"}],
        [{"correctness": [0.5, 0.5]}],
        [VALID_RESULT | {"output": [1.0]}],
        [VALID_RESULT | {"output": [1.0, -1.0]}],
        [VALID_RESULT | {"output_high": "long"}],
    ],
)
def test_what_is_no_forecast_is_refused(values: Any) -> None:
    with pytest.raises(FrameError):
        read_results(values, count=1, targets=2)


@pytest.mark.parametrize("value", [{}, [], "hello?", {"fingerprint": "0", "targets": 7}])
def test_what_is_no_greeting_is_refused(value: Any) -> None:
    with pytest.raises(FrameError, match="not a valid first message"):
        EncoderHello.from_dict(value)


def test_prompts_and_sources_come_through(tmp_path: Path) -> None:
    for prompt in ("text", (Message("system", "be brief"), Message("user", "why?"))):
        assert read_prompt(read_frame(io.BytesIO(pack_frame(plain_prompt(prompt))))) == prompt
    sources = EncoderSources(folders={"tiny": tmp_path}, device="cpu", trust_remote_code=True)
    result = sources_of(plain_options(tmp_path, sources, threads=2, reuse_bytes=0))
    assert result == EncoderSources(
        folders={"tiny": str(tmp_path)}, device="cpu", trust_remote_code=True
    )


def test_encoder_of_this_process_can_not_be_given_to_another(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="give its folder"):
        plain_options(
            tmp_path, EncoderSources(loaded=(FakeEncoder(),)), threads=None, reuse_bytes=0
        )


def build_jobs(*sizes: int, until: float = 10.0) -> list[ForecastJob]:
    loop = asyncio.new_event_loop()
    jobs = [
        ForecastJob(str(i), "?" * size, size, loop.create_future(), waiters=1, until=until)
        for i, size in enumerate(sizes)
    ]
    loop.close()
    return jobs


def fill_queue(
    *sizes: int, batch: int = 3, characters: int = 100
) -> tuple[ForecastQueue, list[ForecastJob]]:
    queue = ForecastQueue(most=4, batch=batch, characters=characters, pace=BatchTimeModel())
    jobs = build_jobs(*sizes)
    for job in jobs:
        queue.add(job)
    return queue, jobs


def test_oldest_are_taken_first_and_so_many_at_most() -> None:
    queue, jobs = fill_queue(1, 1, 1, 1)
    assert not queue.admits(1, now=0.0, seconds=60.0)
    assert queue.take(0.0) == jobs[:3]
    assert len(queue) == 1
    assert queue.admits(1, now=0.0, seconds=60.0)
    assert queue.take(0.0) == jobs[3:]
    assert queue.take(0.0) == []


def test_batch_ends_before_it_has_too_many_characters() -> None:
    queue, jobs = fill_queue(60, 40, 1, 500)
    assert queue.take(0.0) == jobs[:2]
    assert queue.take(0.0) == jobs[2:3]
    assert queue.take(0.0) == jobs[3:]  # a longer prompt is a batch alone


def test_what_is_too_late_is_not_taken() -> None:
    queue, jobs = fill_queue(1, 1)
    jobs[0].until = 5.0
    assert queue.take(5.0) == jobs[1:]
    assert queue.get(jobs[0].key) is None


def test_what_nobody_waits_for_leaves_the_queue() -> None:
    queue, [first, second] = fill_queue(1, 1)
    first.waiters = 2
    queue.leave(first)
    assert queue.get(first.key) is first
    queue.leave(first)
    assert queue.get(first.key) is None
    assert queue.take(0.0) == [second]


def test_leaving_a_batch_takes_nobody_else_out() -> None:
    queue, [job] = fill_queue(1)
    assert queue.take(0.0) == [job]
    [next_job] = build_jobs(1)
    queue.add(next_job)
    queue.leave(job)
    assert queue.get(job.key) is next_job


def test_memory_forgets_what_was_used_longest_ago() -> None:
    memory = ForecastCache(2)
    forecasts = [Forecast(np.zeros(1), i, False) for i in range(3)]
    memory.put("a", forecasts[0])
    memory.put("b", forecasts[1])
    assert memory.get("a") is forecasts[0]
    memory.put("c", forecasts[2])
    assert memory.get("b") is None
    assert memory.get("a") is forecasts[0]
    assert memory.get("c") is forecasts[2]
    assert memory.hits == 3


def test_memory_of_no_entries_keeps_nothing() -> None:
    memory = ForecastCache(0)
    memory.put("a", Forecast(np.zeros(1), 1, False))
    assert memory.get("a") is None
