"""Forecasts by the real process, on a loop that all tests of this file share."""

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import numpy as np
import pytest
import uvloop

from packages.gateway.tests.forecast.routers import probabilities, save_router
from packages.gateway.tests.world import router_folder
from prefill_router.data import Message
from prefill_router.errors import ConfigError
from prefill_router.router import EncoderSources, Forecast, Router
from prefill_router.router.storage import fingerprint
from prefill_router_gateway.forecast import Forecaster, NoForecastError

pytestmark = pytest.mark.slow

RouterFiles = tuple[Path, EncoderSources]
MOST_QUEUED = 8


@pytest.fixture(scope="module")
def router_files(tmp_path_factory: pytest.TempPathFactory) -> RouterFiles:
    return save_router(tmp_path_factory.mktemp("forecasting"))


@pytest.fixture(scope="module")
def router(router_files: RouterFiles) -> Router:
    return Router.load(router_files[0], sources=router_files[1])


@pytest.fixture(scope="module")
def runner() -> Iterator[asyncio.Runner]:
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        yield runner


def new_forecaster(router_files: RouterFiles) -> Forecaster:
    folder, sources = router_files
    return Forecaster(
        folder,
        sources=sources,
        max_queue=MOST_QUEUED,
        max_batch=4,
        threads=1,
        reuse_bytes=1 << 20,  # this encoder can't reuse prefixes, and works without
        pause_seconds=0.01,
    )


@pytest.fixture(scope="module")
def forecaster(router_files: RouterFiles, runner: asyncio.Runner) -> Iterator[Forecaster]:
    """A forecaster for all tests. Their order isn't known, so each leaves it ready."""
    shared_forecaster = new_forecaster(router_files)
    runner.run(shared_forecaster.start())
    yield shared_forecaster
    runner.run(shared_forecaster.close())


@pytest.fixture
def quick_router() -> RouterFiles:
    """A router without a network, whose process begins at once."""
    return router_folder(), EncoderSources()


@contextmanager
def stop_process(forecaster: Forecaster) -> Iterator[None]:
    """Stop the process until the block ends."""
    pid = forecaster.pid
    assert pid is not None
    os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGCONT)


async def wait_until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(120):
        while not condition():
            await asyncio.sleep(0.002)


def start_forecast(forecaster: Forecaster, prompt: str) -> asyncio.Task[Forecast]:
    return asyncio.create_task(forecaster.forecast(prompt, seconds=120))


async def occupy_process(forecaster: Forecaster, prompt: str) -> asyncio.Task[Forecast]:
    """Send the process a batch of this prompt alone."""
    task = start_forecast(forecaster, prompt)
    await wait_until(lambda: forecaster.stats().under_way == 1)
    return task


async def reason(awaited: Awaitable[Forecast]) -> str:
    with pytest.raises(NoForecastError) as caught:
        await awaited
    return caught.value.reason


def test_forecast_is_exactly_what_the_router_says(
    forecaster: Forecaster, router: Router, runner: asyncio.Runner
) -> None:
    chat = (Message("system", "Be brief."), Message("user", "Warum ist der Himmel blau? \u2026"))
    for prompt in ("How are you?", chat, "long " * 100, "\N{GRINNING FACE}"):
        forecast = runner.run(forecaster.forecast(prompt, seconds=120))
        assert forecast.correctness.tolist() == probabilities(router, prompt)
        decision = router.route(prompt)
        assert (forecast.tokens, forecast.truncated) == (decision.input_tokens, decision.truncated)


def test_greeting_tells_the_router(
    forecaster: Forecaster, router_files: RouterFiles, router: Router
) -> None:
    assert forecaster.hello.fingerprint == fingerprint(router_files[0])
    assert forecaster.hello.targets == router.pool.names
    assert forecaster.hello.encoders == ("tiny",)


def test_what_comes_during_a_batch_goes_as_the_next(
    forecaster: Forecaster, router: Router, runner: asyncio.Runner
) -> None:
    async def scenario() -> list[Forecast]:
        before = forecaster.stats()
        with stop_process(forecaster):
            tasks = [await occupy_process(forecaster, "batch 0")]
            tasks += [start_forecast(forecaster, f"batch {i}") for i in range(1, 7)]
            await wait_until(lambda: forecaster.stats().waiting == 6)
        forecasts = list(await asyncio.gather(*tasks))
        after = forecaster.stats()
        assert after.batches - before.batches == 3  # of 1, 4 and 2
        assert after.encoded - before.encoded == 7
        assert after.busy_seconds > before.busy_seconds
        return forecasts

    for number, forecast in enumerate(runner.run(scenario())):
        expected = probabilities(router, f"batch {number}")
        np.testing.assert_allclose(forecast.correctness, expected, rtol=1e-4)


def test_equal_prompts_are_read_once_and_remembered(
    forecaster: Forecaster, runner: asyncio.Runner
) -> None:
    async def scenario() -> None:
        before = forecaster.stats()
        with stop_process(forecaster):
            first = await occupy_process(forecaster, "the same")
            second = start_forecast(forecaster, "the same")
            third, fourth = start_forecast(forecaster, "other"), start_forecast(forecaster, "other")
            await wait_until(lambda: forecaster.stats().shared == before.shared + 2)
        forecasts = await asyncio.gather(first, second, third, fourth)
        assert forecasts[0] is forecasts[1]
        assert forecasts[2] is forecasts[3]
        assert await forecaster.forecast("the same", seconds=0) is forecasts[0]
        after = forecaster.stats()
        assert after.encoded - before.encoded == 2
        assert after.cache_hits - before.cache_hits == 1

    runner.run(scenario())


def test_passed_deadline_is_told_and_the_prompt_is_not_read(
    forecaster: Forecaster, runner: asyncio.Runner
) -> None:
    async def scenario() -> None:
        assert await reason(forecaster.forecast("no time at all", seconds=0)) == "deadline"
        before = forecaster.stats()
        with stop_process(forecaster):
            first = await occupy_process(forecaster, "takes long")
            cause = await reason(forecaster.forecast("little time", seconds=0.01))
            assert cause in ("deadline", "queue_full")  # the earlier prompts' times decide which
            assert await reason(forecaster.forecast("takes long", seconds=0.01)) == "deadline"
            assert forecaster.stats().waiting == 0
        await first
        assert forecaster.stats().encoded - before.encoded == 1

    runner.run(scenario())


def test_client_that_leaves_takes_its_prompt_along(
    forecaster: Forecaster, runner: asyncio.Runner
) -> None:
    async def scenario() -> None:
        with stop_process(forecaster):
            first = await occupy_process(forecaster, "one who stays")
            second = start_forecast(forecaster, "one who leaves")
            await wait_until(lambda: forecaster.stats().waiting == 1)
            second.cancel()
            await wait_until(second.done)
            assert forecaster.stats().waiting == 0
        await first

    runner.run(scenario())


def test_full_queue_takes_nobody_else(forecaster: Forecaster, runner: asyncio.Runner) -> None:
    async def scenario() -> None:
        with stop_process(forecaster):
            tasks = [await occupy_process(forecaster, "full 0")]
            tasks += [start_forecast(forecaster, f"full {i}") for i in range(1, MOST_QUEUED + 1)]
            await wait_until(lambda: forecaster.stats().waiting == MOST_QUEUED)
            one_more = forecaster.forecast("full to the brim", seconds=120)
            assert await reason(one_more) == "queue_full"
            tasks.append(start_forecast(forecaster, "full 1"))  # it waits already
        await asyncio.gather(*tasks)

    runner.run(scenario())


def test_unreadable_prompts_spoil_no_batch(
    forecaster: Forecaster, router: Router, runner: asyncio.Runner
) -> None:
    async def scenario() -> Forecast:
        with stop_process(forecaster):
            first = await occupy_process(forecaster, "before the batch")
            tasks = [start_forecast(forecaster, text) for text in ("\ud800", "readable", "")]
            await wait_until(lambda: forecaster.stats().waiting == 3)
        await first
        assert await reason(tasks[0]) == "unreadable"
        assert await reason(tasks[2]) == "unreadable"
        assert await reason(forecaster.forecast("x" * 1_000_001, seconds=120)) == "unreadable"
        return await tasks[1]

    assert runner.run(scenario()).correctness.tolist() == probabilities(router, "readable")


def test_killed_process_is_replaced(quick_router: RouterFiles, runner: asyncio.Runner) -> None:
    forecaster = new_forecaster(quick_router)

    async def scenario() -> Forecast:
        await forecaster.start()
        pid, restarts = forecaster.pid, forecaster.stats().restarts
        assert pid is not None
        with stop_process(forecaster):
            tasks = [
                await occupy_process(forecaster, "killed 0"),
                start_forecast(forecaster, "killed 1"),
            ]
            await wait_until(lambda: forecaster.stats().waiting == 1)
            os.kill(pid, signal.SIGKILL)
            assert [await reason(task) for task in tasks] == ["encoder_down"] * 2
        assert await reason(forecaster.forecast("meanwhile", seconds=120)) == "encoder_down"
        await wait_until(lambda: forecaster.state == "ready")
        assert forecaster.stats().restarts == restarts + 1
        return await forecaster.forecast("killed 0", seconds=120)

    forecast = runner.run(scenario())
    runner.run(forecaster.close())
    assert forecast.correctness.tolist() == probabilities(Router.load(quick_router[0]), "killed 0")


def test_interrupt_of_the_terminal_does_not_reach_the_process(forecaster: Forecaster) -> None:
    assert forecaster.pid is not None
    assert os.getpgid(forecaster.pid) == forecaster.pid
    assert os.getsid(forecaster.pid) != os.getsid(0)


def test_closing_answers_what_waits(quick_router: RouterFiles, runner: asyncio.Runner) -> None:
    forecaster = new_forecaster(quick_router)

    async def scenario() -> None:
        await forecaster.start()
        pid = forecaster.pid
        assert pid is not None
        with stop_process(forecaster):
            tasks = [
                await occupy_process(forecaster, "closing 0"),
                start_forecast(forecaster, "closing 1"),
            ]
            await wait_until(lambda: forecaster.stats().waiting == 1)
            closing = asyncio.create_task(forecaster.close(seconds=120))
            await wait_until(lambda: forecaster.state == "closed")
            assert await reason(forecaster.forecast("too late", seconds=120)) == "encoder_down"
        assert all(forecast.tokens for forecast in await asyncio.gather(*tasks))
        await closing
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)

    runner.run(scenario())


def test_router_that_is_not_there_is_told(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="isn't a router's folder"):
        asyncio.run(Forecaster(tmp_path).start())


def test_process_ends_with_its_parent(tmp_path: Path) -> None:
    program = [sys.executable, "-m", "prefill_router_gateway.forecast.encoder_program"]
    process = subprocess.run(program, stdin=subprocess.DEVNULL, capture_output=True, cwd=tmp_path)
    assert (process.returncode, process.stdout) == (0, b"")


def test_asking_for_forecasts_loads_no_network() -> None:
    program = (
        "import sys, prefill_router_gateway.forecast; "
        "print([n for n in ('torch', 'transformers', 'fastapi') if n in sys.modules])"
    )
    process = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert (process.returncode, process.stdout.strip()) == (0, "[]"), process.stderr
