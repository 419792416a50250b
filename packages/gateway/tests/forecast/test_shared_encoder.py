"""One encoder process for several gateways: they share batches; none harms another."""

import asyncio
import errno
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from queue import SimpleQueue
from typing import Any, BinaryIO

import pytest

from packages.router.tests.programs import run_program
from prefill_router.errors import ConfigError
from prefill_router_gateway.forecast import shared_encoder
from prefill_router_gateway.forecast.encoder_process import (
    EncoderGoneError,
    EncoderHello,
    pack_frame,
    read_frame,
)
from prefill_router_gateway.forecast.shared_encoder import (
    SharedEncoder,
    connect_encoder,
    serve_clients,
)

HELLO = EncoderHello(
    fingerprint="f", targets=("a",), encoders=("e",), seconds=0.0, prompt_seconds=0.0
)


QUEUED = threading.Semaphore(0)


class CountedQueue(SimpleQueue[Any]):
    """Counts the frames that are put."""

    def put(self, item: Any, block: bool = True, timeout: float | None = None) -> None:
        super().put(item, block, timeout)
        if isinstance(item, shared_encoder._Waiting):
            QUEUED.release()


@pytest.fixture(autouse=True)
def count_queued(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shared_encoder, "SimpleQueue", CountedQueue)
    while QUEUED.acquire(blocking=False):
        pass


class Encoder:
    """An encoder's loop in a thread; each batch waits for a release of `go`."""

    def __init__(
        self,
        path: Path,
        *,
        most: int = 4,
        breaks: bool = False,
        listener: type[socket.socket] = socket.socket,
    ) -> None:
        self.path, self.batches = path, list[list[str]]()
        self.go = threading.Semaphore(0)
        self.starts = threading.Semaphore(0)
        self._breaks = breaks
        place = listener(socket.AF_UNIX)
        place.bind(str(path))
        place.listen()
        ours, self.owner = socket.socketpair()
        source: BinaryIO = ours.makefile("rb")
        self.result = list[bool]()

        def run() -> None:
            works = serve_clients(
                place, source, HELLO, self._forecast, works=lambda: not breaks, most=most
            )
            self.result.append(works)
            self.owner.close()  # the thread that reads the owner's pipe ends too
            source.close()
            ours.close()
            place.shutdown(socket.SHUT_RDWR)  # the thread that accepts connections ends too
            place.close()

        self.thread = threading.Thread(target=run, daemon=True)
        self.thread.start()

    def _forecast(self, prompts: list[str]) -> tuple[list[Any], float]:
        self.batches.append(list(prompts))
        self.starts.release()
        self.go.acquire()
        return ["unreadable" if self._breaks else {"of": p} for p in prompts], float(len(prompts))

    def await_queued(self, count: int) -> None:
        """Wait until `count` more frames were read and queued for a batch."""
        for _ in range(count):
            QUEUED.acquire()

    def end(self) -> None:
        self.owner.close()
        self.thread.join(20)
        assert not self.thread.is_alive()


@contextmanager
def client(encoder: Encoder) -> Iterator["Client"]:
    with socket.socket(socket.AF_UNIX) as place:
        place.settimeout(20)
        place.connect(str(encoder.path))
        peer = Client(place)
        with peer.file:
            yield peer


class Client:
    def __init__(self, place: socket.socket) -> None:
        self.place, self.file = place, place.makefile("rb")
        assert read_frame(self.file) == HELLO.to_dict()

    def send(self, *prompts: str) -> None:
        self.place.sendall(pack_frame({"prompts": prompts}))

    def answer(self) -> Any:
        return read_frame(self.file)


@pytest.fixture
def encoder(tmp_path: Path) -> Iterator[Encoder]:
    encoder = Encoder(tmp_path / "s")
    yield encoder
    encoder.go.release(100)
    encoder.end()


def test_what_waits_on_all_connections_is_encoded_together(encoder: Encoder) -> None:
    with client(encoder) as a, client(encoder) as b, client(encoder) as c:
        a.send("first")
        encoder.starts.acquire()
        b.send("b1", "b2")
        c.send("c1")
        encoder.await_queued(3)
        encoder.go.release(2)
        assert a.answer() == {"found": [{"of": "first"}], "seconds": 1.0}
        assert b.answer() == {"found": [{"of": "b1"}, {"of": "b2"}], "seconds": 2.0}
        assert c.answer() == {"found": [{"of": "c1"}], "seconds": 1.0}
    assert sorted(encoder.batches[1]) == ["b1", "b2", "c1"]
    assert len(encoder.batches) == 2


def test_a_batch_has_at_most_so_many_prompts(encoder: Encoder) -> None:
    with client(encoder) as a, client(encoder) as b, client(encoder) as c:
        a.send("first")
        encoder.starts.acquire()
        b.send("b1", "b2", "b3")
        c.send("c1", "c2", "c3")
        encoder.await_queued(3)
        encoder.go.release(3)
        assert [len(each.answer()["found"]) for each in (a, b, c)] == [1, 3, 3]
    assert [len(batch) for batch in encoder.batches] == [1, 3, 3]


def test_a_client_that_leaves_in_the_middle_of_a_batch_or_a_frame_harms_no_other(
    encoder: Encoder,
) -> None:
    with client(encoder) as stays:
        with client(encoder) as leaves, client(encoder) as half:
            leaves.send("gone")
            encoder.starts.acquire()
            half.place.sendall(b"\0\0")
        stays.send("here")
        encoder.go.release(2)
        assert stays.answer()["found"] == [{"of": "here"}]


def test_it_ends_with_its_owner_but_not_before_its_clients(encoder: Encoder) -> None:
    with client(encoder) as peer:
        encoder.owner.close()
        peer.send("late")
        encoder.go.release()
        assert peer.answer()["found"] == [{"of": "late"}]
        assert encoder.thread.is_alive()
    encoder.thread.join(20)
    assert encoder.result == [True]


def test_it_ends_when_it_can_encode_nothing_any_more(tmp_path: Path) -> None:
    encoder = Encoder(tmp_path / "s", breaks=True)
    encoder.go.release(100)
    with client(encoder) as a:
        a.send("x")
        assert a.answer()["found"] == ["unreadable"]
        encoder.thread.join(20)
    assert encoder.result == [False]


class FullSocket(socket.socket):
    """Finds no file descriptor for its first connection."""

    refused = 0

    def accept(self) -> Any:
        if not self.refused:
            self.refused += 1
            raise OSError(errno.EMFILE, "Too many open files")
        return super().accept()


def test_it_accepts_again_once_it_has_file_descriptors(tmp_path: Path) -> None:
    full = Encoder(tmp_path / "s", listener=FullSocket)
    full.go.release()
    with client(full) as peer:
        peer.send("late")
        assert peer.answer()["found"] == [{"of": "late"}]
    full.end()


HANGING_PROGRAM = """
import socket, sys, time
from prefill_router_gateway.forecast.encoder_process import EncoderHello
from prefill_router_gateway.forecast.shared_encoder import serve_clients
hello = EncoderHello(fingerprint="f", targets=(), encoders=(), seconds=0.0, prompt_seconds=0.0)
place = socket.socket(fileno=int(sys.argv[1]))
serve_clients(place, sys.stdin.buffer, hello, lambda _: time.sleep(3600), works=bool, most=4,
              hang_seconds=0.05)
"""


@pytest.mark.slow
def test_a_batch_that_hangs_ends_the_process(tmp_path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as place:
        place.bind(str(tmp_path / "s"))
        place.listen()
        number = place.fileno()
        with run_program(
            [sys.executable, "-c", HANGING_PROGRAM, str(number)],
            pass_fds=(number,),
            stdin=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        ) as process:
            with socket.socket(socket.AF_UNIX) as peer:
                peer.connect(str(tmp_path / "s"))
                peer.sendall(pack_frame({"prompts": ["a secret"]}))
                assert process.wait(60) == 1
            assert process.stderr is not None
            log = process.stderr.read()
    assert "Timeout" in log
    assert "a secret" not in log


def test_a_connection_asks_and_tells_when_it_has_ended(encoder: Encoder) -> None:
    encoder.go.release(100)

    async def scenario() -> None:
        link = await connect_encoder(encoder.path, seconds=20)
        assert link.hello == HELLO
        assert (await link.ask({"prompts": ["x"]}))["found"] == [{"of": "x"}]
        assert not link.end.is_set()
        await link.close()
        assert link.end.is_set()
        with pytest.raises(EncoderGoneError):
            await link.ask({"prompts": ["y"]})

    asyncio.run(scenario())


def test_no_encoder_at_a_path_is_told(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="can't be reached"):
        asyncio.run(connect_encoder(tmp_path / "none", seconds=1))


@pytest.mark.slow
def test_an_encoder_that_cannot_start_leaves_no_socket(tmp_path: Path) -> None:
    options = {"router": str(tmp_path / "none"), "folders": {}, "device": None}
    options |= {"trust_remote_code": False, "threads": 1, "reuse_bytes": 0, "most_prompts": 4}

    async def scenario() -> None:
        for _ in range(2):
            with pytest.raises(ConfigError):
                await SharedEncoder(tmp_path / "s", options).start()

    asyncio.run(scenario())
    assert not (tmp_path / "s").exists()
