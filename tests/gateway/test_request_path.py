"""The walk of a request in ARCHITECTURE.md, beside the calls of a real one."""

import asyncio
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from prefill_router.gateway.guard import ClientKey
from prefill_router.gateway.guard.key_file import add_key, digest
from tests.architecture import walk
from tests.call_trace import Calls, traced
from tests.gateway.scripted_target import GOOD, GOOD_WHOLE, Fake, Script, chunked
from tests.gateway.server_process import QUIET, Running, gateway_thread, make_gateway

pytestmark = pytest.mark.slow

WALK = walk("A request, from socket to receipt")
OF_STREAMS = "gateway.proxy.response_metadata:StreamObserver.feed"
MOST = 20
"""Modules of the gateway on the path of a request that bears a key."""
SECRET = "pr-secret"


@contextmanager
def target(*scripts: Script) -> Iterator[str]:
    """A target in a thread of its own; its address."""
    ready, loops = threading.Event(), list[asyncio.AbstractEventLoop]()
    urls = list[str]()

    async def serve() -> None:
        async with Fake(*scripts) as fake:
            loops.append(asyncio.get_running_loop())
            urls.append(fake.url)
            ended = asyncio.Event()
            stops.append(ended.set)
            ready.set()
            await ended.wait()

    stops: list[Callable[[], None]] = []
    thread = threading.Thread(target=lambda: asyncio.run(serve()), daemon=True)
    thread.start()
    ready.wait()
    try:
        yield urls[0]
    finally:
        loops[0].call_soon_threadsafe(stops[0])
        thread.join()


def run_there(run: Running) -> Callable[[Callable[[], None]], None]:
    """Runs something in the thread of the gateway's loop."""

    def call_there(call: Callable[[], None]) -> None:
        done = threading.Event()
        run.loop.call_soon_threadsafe(lambda: (call(), done.set()))
        done.wait()

    return call_there


def asked(folder: Path, *scripts: Script, stream: bool) -> Calls:
    """The calls of a request whose forecast is remembered, on connections that are open."""
    body = {"model": "auto", "stream": stream, "messages": [{"role": "user", "content": "hi"}]}
    headers = {"authorization": f"Bearer {SECRET}"}
    keys = folder / "keys.yaml"
    add_key(keys, ClientKey(name="ann", sha256=digest(SECRET)))
    with target(*scripts) as url:
        made = make_gateway(folder, f"{url}/v1", settings=QUIET, key_env="LAB_KEY")
        places = made.places(keys=keys, threads=1)
        with (
            gateway_thread(places, environment={"LAB_KEY": "sk-lab"}) as run,
            run.client(headers=headers) as client,
        ):
            for _ in range(2):
                client.post("/v1/chat/completions", json=body)
            with traced(run_there(run)) as calls:
                reply = client.post("/v1/chat/completions", json=body)
        row = made.rows("target, reason, status")[-1]
    # what looks every half second whether the loop is held up is no request's
    calls.made = [call for call in calls.made if ":EventLoopLag." not in call]
    assert reply.status_code == 200
    assert row == {"target": reply.headers["x-prefill-router-target"]} | {
        "reason": "policy",
        "status": 200,
    }
    return calls


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Calls:
    """Of an answer in one piece."""
    return asked(tmp_path_factory.mktemp("whole"), GOOD_WHOLE, stream=False)


@pytest.fixture(scope="module")
def streamed(tmp_path_factory: pytest.TempPathFactory) -> Calls:
    """Of a stream."""
    return asked(tmp_path_factory.mktemp("streamed"), chunked(GOOD), stream=True)


def test_a_streamed_request_goes_the_way_that_the_walk_tells(streamed: Calls) -> None:
    assert streamed.in_order(WALK) == WALK


def test_an_answer_in_one_piece_goes_the_same_way(whole: Calls) -> None:
    assert whole.in_order(WALK) == [step for step in WALK if step != OF_STREAMS]


def test_a_request_enters_no_module_that_the_walk_leaves_out(whole: Calls, streamed: Calls) -> None:
    listed = {step.partition(":")[0] for step in WALK}
    assert set(streamed.modules) == listed
    assert set(whole.modules) <= listed
    assert len([module for module in listed if module.startswith("gateway.")]) <= MOST


def test_what_cannot_answer_is_worked_out_once(streamed: Calls) -> None:
    assert streamed.made.count("gateway.decide.candidates:Candidates.barred") == 1
