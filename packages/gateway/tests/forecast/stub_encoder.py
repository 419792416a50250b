"""A stand-in for the encoder's process, quick to start, whose behaviour a test chooses.

The name of the router's folder is the behaviour. It has two targets; its forecast is a function of
the prompt's length. Run it as `python -m packages.gateway.tests.forecast.stub_encoder`
"""

import json
import os
import struct
import sys
import time
from pathlib import Path
from typing import Any

HELLO = {
    "fingerprint": "0123456789abcdef",
    "targets": ["a", "b"],
    "encoders": ["stub"],
    "seconds": 0.0,
    "prompt_seconds": 0.0,
}


def read_frame() -> Any:
    head = sys.stdin.buffer.read(4)
    if len(head) < 4:
        return None
    return json.loads(sys.stdin.buffer.read(struct.unpack(">I", head)[0]))


def send(content: bytes, *, length: int | None = None) -> None:
    head = struct.pack(">I", len(content) if length is None else length)
    sys.stdout.buffer.write(head + content)
    sys.stdout.buffer.flush()


def answer(prompts: list[str]) -> dict[str, Any]:
    forecasts = [
        {
            "correctness": [1 / len(prompt), 0.5],
            "tokens": len(prompt),
            "truncated": False,
            "novelty": 0.25,
            "bins": [3, 9],
            "output": [20.5, None],
            "output_high": None,
        }
        for prompt in prompts
    ]
    return {"found": forecasts, "seconds": 0.5}


def count_starts(folder: Path) -> int:
    """Count the processes started for this router, with this one."""
    with (folder / "starts").open("a") as file:
        file.write("x")
        file.flush()
        return file.tell()


def main() -> None:
    options = read_frame()
    folder = Path(options["router"])
    behaviour, starts = folder.name, count_starts(folder)
    if behaviour == "silent":
        sys.stderr.write("no such thing as a GPU\n")
        sys.exit(7)
    if behaviour == "sleepy":
        time.sleep(3600)
    if behaviour == "refused" or (behaviour == "returns_late" and starts in (2, 3)):
        send(json.dumps({"error": "the router is no good"}).encode())
        sys.exit(1)
    if behaviour == "rude":
        send(b'"hello?"')
    is_replaced = behaviour == "replaced" and starts > 1
    changes = {"fingerprint": "another"} if is_replaced else {}
    changes |= {"prompt_seconds": 10.0} if behaviour == "slow" else {}
    send(json.dumps(HELLO | changes).encode())
    while (request := read_frame()) is not None:
        prompts = request["prompts"]
        if any("die" in prompt for prompt in prompts):
            os.abort()
        misbehave = starts == 1 and any("go on" in prompt for prompt in prompts)
        if misbehave and behaviour in ("hangs", "slow"):
            time.sleep(3600)
        elif misbehave and behaviour == "babbles":
            send(b"{no JSON")
        elif misbehave and behaviour == "boasts":
            send(b"", length=2**32 - 1)
        elif misbehave and behaviour == "miscounts":
            send(json.dumps(answer([*prompts, "one more"])).encode())
        elif misbehave and behaviour == "misnames":
            send(json.dumps({"found": ["because"] * len(prompts), "seconds": 0.5}).encode())
        else:
            send(json.dumps(answer(prompts)).encode())


if __name__ == "__main__":
    main()
