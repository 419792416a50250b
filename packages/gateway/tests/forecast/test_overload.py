"""More prompts than the encoder can read: those are admitted that will be read in time."""

import asyncio

import pytest

from prefill_router_gateway.forecast.forecaster import BatchTimeModel, ForecastJob, ForecastQueue

pytestmark = pytest.mark.slow

SECOND = 1.0
NO_LOOP = asyncio.new_event_loop()
NO_LOOP.close()


def build_job(key: str, *, size: int = 1, until: float = 9.0) -> ForecastJob:
    return ForecastJob(key, "", size, NO_LOOP.create_future(), waiters=1, until=until)


class SimulatedQueue:
    """A queue before an encoder, on a simulated clock.

    Args:
        takes: Seconds that each prompt takes.
        estimate: Seconds of a prompt, as the queue assumes at first.
        fixed: Seconds that each batch takes in addition to its prompts.
    """

    def __init__(self, *, takes: float, estimate: float, fixed: float = 0.0) -> None:
        self.takes, self.fixed, self.now, self.ends = takes, fixed, 0.0, 0.0
        self.waiting = ForecastQueue(
            most=256, batch=32, characters=10_000, pace=BatchTimeModel(estimate)
        )
        self.under_way: list[ForecastJob] = []
        self.refused: list[float] = []
        self.read: list[tuple[ForecastJob, float]] = []

    def ask(self, at: float, *, size: int = 100) -> None:
        self.run_until(at)
        if self.waiting.admits(size, now=at, seconds=SECOND):
            self.waiting.add(build_job(f"{at}", size=size, until=at + SECOND))
        else:
            self.refused.append(at)
        self.run_until(at)

    def run_until(self, at: float) -> None:
        while True:
            if self.under_way and self.ends <= at:
                self.read += [(job, self.ends) for job in self.under_way]
                self.waiting.end_batch(self.ends)
                self.under_way, self.now = [], self.ends
            if self.under_way:
                return
            self.now = max(self.now, self.ends)
            self.under_way = self.waiting.take(self.now)
            self.ends = self.now + self.fixed + self.takes * len(self.under_way)
            if not self.under_way:
                self.now = at
                return

    def in_time(self) -> int:
        return sum(ended <= job.until for job, ended in self.read)


@pytest.mark.parametrize("times", [4, 16])
@pytest.mark.parametrize(("takes", "fixed"), [(0.02, 0.0), (0.003, 0.1), (0.3, 0.0)])
@pytest.mark.parametrize("error", [0.5, 5.0])
def test_at_many_times_its_capacity_the_encoder_reads_as_much_and_little_in_vain(
    times: int, takes: float, fixed: float, error: float
) -> None:
    seconds, capacity = 20.0, 32 / (32 * takes + fixed)
    queue = SimulatedQueue(takes=takes, estimate=error * (takes + fixed), fixed=fixed)
    requests = round(seconds * times * capacity)
    for number in range(requests):
        queue.ask(number * seconds / requests)
    assert (
        queue.in_time() >= 0.9 * (seconds - 2) * capacity
    )  # it has that long to see how slow it is
    assert len(queue.refused) >= 0.9 * (requests - queue.in_time())


def test_prompts_of_any_size_come_in_time_where_they_are_mixed() -> None:
    queue = SimulatedQueue(takes=0.02, estimate=0.02)
    for number in range(4000):
        queue.ask(number * 0.005, size=(50, 400, 3000)[number % 3])
    sizes = [sum(job.size == size for job, _ in queue.read) for size in (50, 400, 3000)]
    assert min(sizes) > 200
    assert queue.in_time() >= 0.95 * 20 / 0.02


def test_an_encoder_that_is_too_slow_is_asked_one_prompt_at_a_time() -> None:
    queue = SimulatedQueue(takes=3.0, estimate=0.01)
    for number in range(2000):
        queue.ask(number * 0.01)
    assert len(queue.read) <= 8
    queue.takes = 0.01
    for number in range(2000, 4000):
        queue.ask(number * 0.01)
    assert queue.in_time() >= 1500


def test_what_would_end_too_late_is_told_so_before_it_is_begun() -> None:
    waiting = ForecastQueue(most=9, batch=9, characters=9999, pace=BatchTimeModel(0.2))
    jobs = [build_job(str(until), until=until) for until in (0.2, 0.3, 0.9)]
    for job in jobs:
        waiting.add(job)
    assert waiting.take(0.0) == jobs[1:2]  # with the third it would end after 0.3 s
    assert jobs[0].future.result() == "deadline"
    assert not jobs[2].future.done()


def test_a_batch_that_is_overdue_counts_as_half_done() -> None:
    waiting = ForecastQueue(most=9, batch=1, characters=9999, pace=BatchTimeModel(0.05))
    waiting.add(build_job("a"))
    waiting.take(0.0)  # should end after 0.1 s
    assert waiting.admits(1, now=0.5, seconds=1.0)
    assert not waiting.admits(1, now=1.0, seconds=1.0)


def test_pace_tells_batches_of_several_sizes() -> None:
    pace = BatchTimeModel(0.02)
    batches = [[7] * short + [11] * long for short, long in ((32, 4), (4, 1), (8, 16))]

    def takes(sizes: list[int]) -> float:
        return 0.05 + 0.001 * sizes.count(7) + 0.02 * sizes.count(11)

    for number in range(200):
        pace.learn(batches[number % 3], takes(batches[number % 3]))
    for sizes in batches:
        estimate = pace.of_batch(len(sizes), most=64) + sum(map(pace.of, sizes))
        assert estimate == pytest.approx(takes(sizes), rel=0.25)
    assert pace.of(20) == pace.of(11)


def test_one_batch_that_stood_still_changes_little() -> None:
    pace = BatchTimeModel(0.01)
    for _ in range(20):
        pace.learn([7], 0.01)
    pace.learn([7], 60.0)
    assert pace.of_batch(1, most=1) + pace.of(7) < 0.025
