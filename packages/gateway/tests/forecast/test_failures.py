"""A process that misbehaves is ended and started again; callers don't wait for it."""

import asyncio
import logging
import os
import signal
from collections.abc import Awaitable, Callable
from pathlib import Path

import numpy as np
import pytest

from prefill_router.errors import ConfigError
from prefill_router_gateway.forecast import Forecaster, NoForecastError, encoder_process

pytestmark = pytest.mark.slow

Scenario = Callable[[Forecaster], Awaitable[None]]


@pytest.fixture(autouse=True)
def use_stub(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(encoder_process, "_MODULE", "packages.gateway.tests.forecast.stub_encoder")
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parents[4]))


def run_scenario(
    folder: Path, behaviour: str, scenario: Scenario, *, hang_seconds: float = 60.0
) -> None:
    """Run a scenario with a stub process of this behaviour."""

    async def run() -> None:
        router = folder / behaviour
        router.mkdir()
        forecaster = Forecaster(router, hang_seconds=hang_seconds, pause_seconds=0.01)
        await forecaster.start()
        try:
            await scenario(forecaster)
        finally:
            await forecaster.close()

    asyncio.run(run())


async def reason(forecaster: Forecaster, prompt: str) -> str:
    with pytest.raises(NoForecastError) as caught:
        await forecaster.forecast(prompt, seconds=60)
    return caught.value.reason


async def wait_until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(60):
        while not condition():
            await asyncio.sleep(0.005)


def test_well_mannered_stub_gives_forecasts(tmp_path: Path) -> None:
    async def scenario(forecaster: Forecaster) -> None:
        forecast = await forecaster.forecast("four", seconds=60)
        assert forecast.correctness.tolist() == [0.25, 0.5]
        assert (forecast.tokens, forecast.novelty, forecast.bins) == (4, 0.25, (3, 9))
        assert forecast.output is not None
        assert np.array_equal(forecast.output, [20.5, np.nan], equal_nan=True)
        assert forecast.output_high is None
        assert forecaster.hello.targets == ("a", "b")
        assert forecaster.stats().busy_seconds == 0.5

    run_scenario(tmp_path, "good", scenario)


@pytest.mark.parametrize("behaviour", ["babbles", "boasts", "miscounts", "misnames", "hangs"])
def test_process_that_misbehaves_is_replaced(tmp_path: Path, behaviour: str) -> None:
    async def scenario(forecaster: Forecaster) -> None:
        first = forecaster.pid
        assert first is not None
        assert await reason(forecaster, "go on") == "encoder_down"
        assert forecaster.state != "ready"
        assert await reason(forecaster, "meanwhile") == "encoder_down"
        await wait_until(lambda: forecaster.state == "ready")
        assert (await forecaster.forecast("go on", seconds=60)).tokens == 5
        assert forecaster.pid != first
        with pytest.raises(ProcessLookupError):
            os.kill(first, 0)
        assert forecaster.stats().restarts == 1

    hang = 0.2 if behaviour == "hangs" else 60.0
    run_scenario(tmp_path, behaviour, scenario, hang_seconds=hang)


def test_process_that_dies_is_replaced_each_time(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)

    async def scenario(forecaster: Forecaster) -> None:
        for number in (1, 2):
            assert await reason(forecaster, f"die {number}") == "encoder_down"
            await wait_until(lambda: forecaster.state == "ready")
            assert forecaster.stats().restarts == number

    run_scenario(tmp_path, "good", scenario)
    assert "it is restarted" in caplog.text
    assert "die 1" not in caplog.text


def test_it_is_started_until_it_works(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async def scenario(forecaster: Forecaster) -> None:
        assert await reason(forecaster, "die") == "encoder_down"
        await wait_until(lambda: forecaster.state == "ready")
        assert (tmp_path / "returns_late" / "starts").read_text() == "xxxx"

    run_scenario(tmp_path, "returns_late", scenario)
    assert "the router is no good" in caplog.text


def test_router_that_was_replaced_on_disk_is_not_served(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def scenario(forecaster: Forecaster) -> None:
        assert await reason(forecaster, "die") == "encoder_down"
        starts = tmp_path / "replaced" / "starts"
        await wait_until(lambda: len(starts.read_text()) >= 3)
        assert forecaster.state != "ready"
        assert await reason(forecaster, "anything") == "encoder_down"

    run_scenario(tmp_path, "replaced", scenario)
    assert "reload the gateway" in caplog.text


@pytest.mark.parametrize(
    ("behaviour", "words"),
    [
        ("refused", "the router is no good"),
        ("silent", r"exit status 7; last lines of its log: no such thing as a GPU"),
        ("rude", "ended before it was ready"),
    ],
)
def test_process_that_does_not_begin_is_told_in_its_words(
    tmp_path: Path, behaviour: str, words: str
) -> None:
    async def raise_error(forecaster: Forecaster) -> None:
        raise AssertionError(f"it is {forecaster.state}")

    with pytest.raises(ConfigError, match=words):
        run_scenario(tmp_path, behaviour, raise_error)


def test_process_that_is_never_ready_is_given_up(tmp_path: Path) -> None:
    (tmp_path / "sleepy").mkdir()
    forecaster = Forecaster(tmp_path / "sleepy", start_seconds=0.2)
    with pytest.raises(ConfigError, match=r"wasn't ready within 0\.2 s"):
        asyncio.run(forecaster.start())


def test_forecaster_is_started_once(tmp_path: Path) -> None:
    async def scenario(forecaster: Forecaster) -> None:
        with pytest.raises(ConfigError, match="started only once"):
            await forecaster.start()

    run_scenario(tmp_path, "good", scenario)
    with pytest.raises(ConfigError, match="isn't started"):
        _ = Forecaster(tmp_path).hello


def test_closing_before_the_start_is_no_harm(tmp_path: Path) -> None:
    async def run() -> None:
        forecaster = Forecaster(tmp_path)
        assert forecaster.state == "starting"
        assert await reason(forecaster, "too early") == "encoder_down"
        await forecaster.close()
        assert forecaster.state == "closed"

    asyncio.run(run())


def test_what_would_wait_too_long_is_refused_at_once(tmp_path: Path) -> None:
    async def scenario(forecaster: Forecaster) -> None:
        first = asyncio.create_task(forecaster.forecast("go on", seconds=600))
        await wait_until(lambda: forecaster.stats().under_way == 1)
        for number in range(20):
            with pytest.raises(NoForecastError) as caught:
                await forecaster.forecast(f"{number}", seconds=5)
            assert caught.value.reason == "queue_full"
        patient = asyncio.create_task(forecaster.forecast("patient", seconds=600))
        await wait_until(lambda: forecaster.stats().waiting == 1)
        for task in (first, patient):
            task.cancel()
        await asyncio.wait((first, patient))
        os.kill(forecaster.pid or 0, signal.SIGKILL)

    run_scenario(tmp_path, "slow", scenario)  # it says that a prompt takes 10 s, and hangs
