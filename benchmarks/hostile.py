"""Texts made to take much time, given to everything that reads what strangers write.

Each reader gets each shape at three lengths, each twice the one before. What is reported is the
processor time of the longest, and the exponent with which the time grew; and every error that isn't
one of the package's own. The texts are those of `_hostile_shapes`.

    python -m benchmarks.hostile [--length 25000] [READER...]
"""

import argparse
import contextlib
import gc
import json
import math
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks._hostile_shapes import SHAPES
from benchmarks._system import machine
from prefill_router import files
from prefill_router.data import Query, read_dataset
from prefill_router.endpoints.events import EventReader
from prefill_router.endpoints.json_object import MalformedError, parse_object
from prefill_router.endpoints.rate_limit_headers import retry_after
from prefill_router.endpoints.redaction import Redaction
from prefill_router.endpoints.reply_reader import ErrorEventError, ReplyReader
from prefill_router.endpoints.thinking import split_thinking
from prefill_router.errors import PrefillRouterError
from prefill_router.features.complexity import measure
from prefill_router.grading.code import last_code_block, same_output, same_result
from prefill_router.grading.equality_worker import _is_balanced
from prefill_router.grading.judge import read_verdict
from prefill_router.grading.text import LetterGrader, NumberGrader, normalise_text, parse_number
from prefill_router.importers import FORMATS, import_dataset, read_prices
from prefill_router.router.light import read_light
from prefill_router.router.storage import CHECKED_FILES, load_router
from prefill_router.runs import run as records
from prefill_router.runs.run import Task, read_manifest
from prefill_router.serialization import read_tensors
from prefill_router.targets import read_pool
from prefill_router.yaml_files import read_yaml
from prefill_router_gateway.errors import BrokenResponseError, RefusalError
from prefill_router_gateway.guard.key_file import read_keys
from prefill_router_gateway.protocol import parse_model, read_envelope, read_preferences
from prefill_router_gateway.proxy.failures import TargetRefusal, classify_refusal
from prefill_router_gateway.proxy.response_metadata import ResponseMetadata, StreamObserver, parsed
from prefill_router_gateway.records import HEADER, SESSION_HEADER
from prefill_router_gateway.settings import read_settings
from prefill_router_minipool.server.protocol import ApiError, read_request

RESULTS = Path(__file__).parent / "results"
EXPONENT, SECONDS, LEAST = 1.3, 1.0, 0.1
OURS = (
    PrefillRouterError,
    RefusalError,
    MalformedError,
    ErrorEventError,
    BrokenResponseError,
    ApiError,
)
TASK = Task(query=Query("q", "?"), grader="", answer=("A",))
NUMBER = Task(query=Query("q", "?"), grader="", answer=("12",))
_REDACTION = Redaction(["a-secret-of-a-target", "answer: 7"])
Reader = Callable[[str], object]


def _bytes(text: str) -> bytes:
    return text.encode("utf-8", "surrogatepass")


def _stream(text: str) -> None:
    """As an event, in pieces; what is an object is read as a part of an answer."""
    data, events, reading = _bytes(text), EventReader(), ReplyReader("vllm")
    for place in range(0, len(data), 100):
        for event in events.feed(data[place : place + 100]):
            reading.take(event, 0.0)
    for event in events.close():
        reading.take(event, 0.0)
    reading.reply(began=0.0, ended=1.0)


def _content(text: str) -> None:
    """As the text of an answer."""
    reading = ReplyReader("vllm")
    for place in range(0, len(text), 100):
        delta = {"content": text[place : place + 100]}
        reading.take({"choices": [{"delta": delta}]}, 0.0)
    _REDACTION.redact_reply(reading.reply(began=0.0, ended=1.0))


def _field(text: str) -> None:
    """As a field of an answer that isn't known, and as an error."""
    for name in ("odd", "error"):
        event = parse_object(b'{"%b":%b}' % (name.encode(), _bytes(text)))
        reading = ReplyReader("vllm")
        reading.take(event, 0.0)
        _REDACTION.redact_reply(reading.reply(began=0.0, ended=1.0))


def _observe_stream(text: str) -> None:
    """As a stream that the gateway hands on."""
    for endpoint in ("chat", "responses", "messages"):
        watch = StreamObserver(endpoint, leave_out_usage=True)
        data = b'data: {"choices":[]}\n\ndata: ' + _bytes(text) + b"\n\n"
        for place in range(0, len(data), 100):
            watch.feed(data[place : place + 100])
        watch.close()


def _read_answer(text: str) -> None:
    """As an answer in one piece, and its end."""
    data, facts = _bytes(text), ResponseMetadata("chat")
    for value in (parsed(data), parsed(b'{"error":%b}' % data), parsed(b'{"usage":%b}' % data)):
        if value is not None:
            facts.take(value)
    facts.count(data)
    facts.take_end(b'{"usage":' + data)
    classify_refusal(
        TargetRefusal(status=400, headers=[(b"retry-after", data)], body=data), key="k" * 20
    )


def _read_client_request(text: str) -> None:
    """As a request of a client, in each of its places."""
    value = _bytes(text)
    if len(text) <= 200_000:
        parse_model(text, targets=["a", "b"], names={"auto": 0.5})
    for body in (
        value,
        b'{"model":"auto","messages":%b}' % value,
        b'{"model":"auto","messages":[{"role":"user","content":%b}],"metadata":%b}'
        % (value, value),
        b'{"model":"auto","messages":[{"role":"user","content":%b}]}' % _bytes(json.dumps(text)),
        b'{"model":"auto","messages":[],"tools":%b,"stream":true,"stream_options":%b}'
        % (value, value),
    ):
        _all_of(read_envelope("chat", body))


def _all_of(envelope: Any) -> None:
    for name in ("turns", "key_turns", "text_bytes", "needs", "tool_call_ids", "session_hint"):
        getattr(envelope, name)
    envelope.body_for("other", ask_usage=True)


def _read_wishes(text: str) -> None:
    value = text.encode("latin-1", "replace")
    for name in (*(HEADER + n for n in ("lam", "max-cost", "allow", "scored")), SESSION_HEADER):
        try:
            read_preferences([(name.encode(), value)], ["a", "b"])
        except RefusalError:
            continue


def _read_waits(text: str) -> None:
    names = ("retry-after-ms", "retry-after", "date", "x-ratelimit-reset")
    for name in (*names, "x-ratelimit-reset-tokens", "anthropic-ratelimit-tokens-reset"):
        headers = {name: text, "anthropic-ratelimit-tokens-remaining": "0"}
        retry_after(headers, now=0.0)


def _read_record(text: str) -> None:
    """As a record of a run."""
    with contextlib.suppress(ValueError):  # its reader reports it as corrupt
        records.answer_from_text(text)


def _minipool(text: str) -> None:
    for body in (_bytes(text), b'{"model":"m","messages":%b}' % _bytes(text)):
        try:
            read_request(body, "chat")
        except ApiError:
            continue


TEXTS: dict[str, Reader] = {
    "letters": lambda text: LetterGrader().grade(TASK, text),
    "numbers": lambda text: NumberGrader().grade(NUMBER, text),
    "a number": parse_number,
    "mathematics": _is_balanced,
    "matching": normalise_text,
    "verdicts": lambda text: read_verdict(text, soft=False),
    "scores": lambda text: read_verdict(json.dumps({"score": text}), soft=True),
    "code blocks": last_code_block,
    "outputs": lambda text: same_output(text, text + "0"),
    "results": lambda text: same_result(text, "[1]"),
    "a stream": _stream,
    "contents": _content,
    "a field": _field,
    "a passing stream": _observe_stream,
    "a passing answer": _read_answer,
    "a request": _read_client_request,
    "wishes": _read_wishes,
    "waits": _read_waits,
    "records": _read_record,
    "the minipool's request": _minipool,
    "redaction": _REDACTION,
    "thoughts": lambda text: split_thinking(text, "vllm"),
    "complexity": lambda text: measure([text]),
}


def _of_folder(read: Callable[[Path], object], *names: str) -> Callable[[Path], Reader]:
    """Reads a folder whose files all hold the text, as their checksums say."""

    def make_reader(folder: Path) -> Reader:
        def reader(text: str) -> None:
            for name in names:
                (folder / name).write_bytes(_bytes(text))
            files.write_checksums(folder, list(names))
            read(folder)

        return reader

    return make_reader


def _of_file(read: Callable[[Path], object], name: str) -> Callable[[Path], Reader]:
    def make_reader(folder: Path) -> Reader:
        def reader(text: str) -> None:
            (folder / name).write_bytes(_bytes(text))
            read(folder / name)

        return reader

    return make_reader


def _import(kind: str) -> Callable[[Path], object]:
    return lambda path: import_dataset(kind, [path], skip_malformed=True)


FILES: dict[str, Callable[[Path], Reader]] = {
    "YAML": _of_file(read_yaml, "a.yaml"),
    "a pool": _of_file(read_pool, "pool.yaml"),
    "prices": _of_file(read_pool, "prices.csv"),
    "prices as JSON": _of_file(read_prices, "prices.json"),
    "clients' keys": _of_file(read_keys, "keys.yaml"),
    "settings": _of_file(read_settings, "gateway.yaml"),
    "tensors": _of_file(read_tensors, "a.safetensors"),
    "a run's manifest": _of_folder(read_manifest, "run.json"),
    "a router": _of_folder(load_router, *CHECKED_FILES),
    "a light router": _of_folder(read_light, *CHECKED_FILES),
    "a dataset": _of_folder(read_dataset, "queries.parquet", "outcomes.parquet"),
    **{
        f"{kind} ({suffix})": _of_file(_import(kind), f"a.{suffix}")
        for kind in FORMATS
        for suffix in ("csv", "jsonl", "json")
    },
}


def time_read(read: Reader, text: str) -> tuple[float, str | None]:
    """Processor seconds, and an error that isn't the package's own."""
    odd = None
    gc.collect()
    gc.disable()  # how often it looks depends on what came before
    began = time.process_time()
    try:
        read(text)
    except OURS:
        pass
    except Exception as error:
        odd = f"{type(error).__name__}: {error}"[:200]
    took = time.process_time() - began
    gc.enable()
    return took, odd


def try_shapes(name: str, read: Reader, length: int) -> list[dict[str, Any]]:
    """What a reader makes of each shape."""
    rows = []
    for shape, make in SHAPES.items():
        times, errors = zip(*(time_read(read, make(length * k)) for k in (1, 2, 4)), strict=True)
        exponent = math.log2(max(times[2], 1e-6) / max(times[0], 1e-6)) / 2
        is_slow = times[2] > SECONDS or (exponent > EXPONENT and times[2] > LEAST)
        rows.append(
            {
                "reader": name,
                "shape": shape,
                "seconds": round(times[2], 4),
                "exponent": round(exponent, 2),
                "error": next((error for error in errors if error), None),
                "is slow": is_slow,
            }
        )
    return rows


def main() -> None:
    """Look at every reader, print what is wrong, and write the results."""
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("readers", nargs="*")
    options.add_argument("--length", type=int, default=25_000)
    chosen = options.parse_args()
    rows = []
    with tempfile.TemporaryDirectory() as temporary:
        readers = TEXTS | {name: make(Path(temporary)) for name, make in FILES.items()}
        for name, read in readers.items():
            if not chosen.readers or name in chosen.readers:
                rows += try_shapes(name, read, chosen.length)
                for row in rows[-len(SHAPES) :]:
                    if row["is slow"] or row["error"]:
                        print(json.dumps(row), flush=True)
    wrong = [row for row in rows if row["is slow"] or row["error"]]
    if not chosen.readers:
        summary = {
            "readers": len(readers),
            "shapes": len(SHAPES),
            "characters": 4 * chosen.length,
            "slowest": sorted(rows, key=lambda row: -row["seconds"])[:20],
            "wrong": wrong,
        }
        files.write_json(RESULTS / "hostile.json", {"machine": machine(), **summary})
    print(f"{len(wrong)} of {len(rows)} are wrong")
    sys.exit(bool(wrong))


if __name__ == "__main__":
    main()
