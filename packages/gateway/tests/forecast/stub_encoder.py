"""A stand-in for the encoder's process, quick to start, that misbehaves as it is told.

Its manners are the name of the router's folder. It knows two targets, and expects of every prompt
what its length says. `python -m packages.gateway.tests.forecast.stub_encoder`
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


def read() -> Any:
    head = sys.stdin.buffer.read(4)
    if len(head) < 4:
        return None
    return json.loads(sys.stdin.buffer.read(struct.unpack(">I", head)[0]))


def send(content: bytes, *, length: int | None = None) -> None:
    head = struct.pack(">I", len(content) if length is None else length)
    sys.stdout.buffer.write(head + content)
    sys.stdout.buffer.flush()


def answer(prompts: list[str]) -> dict[str, Any]:
    found = [
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
    return {"found": found, "seconds": 0.5}


def starts_so_far(folder: Path) -> int:
    """How often a process was started for this router, this one included."""
    with (folder / "starts").open("a") as file:
        file.write("x")
        file.flush()
        return file.tell()


def main() -> None:
    options = read()
    folder = Path(options["router"])
    manners, starts = folder.name, starts_so_far(folder)
    if manners == "silent":
        sys.stderr.write("no such thing as a GPU\n")
        sys.exit(7)
    if manners == "sleepy":
        time.sleep(3600)
    if manners == "refused" or (manners == "returns_late" and starts in (2, 3)):
        send(json.dumps({"error": "the router is no good"}).encode())
        sys.exit(1)
    if manners == "rude":
        send(b'"hello?"')
    other = manners == "replaced" and starts > 1
    told = {"fingerprint": "another"} if other else {}
    told |= {"prompt_seconds": 10.0} if manners == "slow" else {}
    send(json.dumps(HELLO | told).encode())
    while (asked := read()) is not None:
        prompts = asked["prompts"]
        if any("die" in prompt for prompt in prompts):
            os.abort()
        misbehave = starts == 1 and any("go on" in prompt for prompt in prompts)
        if misbehave and manners in ("hangs", "slow"):
            time.sleep(3600)
        elif misbehave and manners == "babbles":
            send(b"{no JSON")
        elif misbehave and manners == "boasts":
            send(b"", length=2**32 - 1)
        elif misbehave and manners == "miscounts":
            send(json.dumps(answer([*prompts, "one more"])).encode())
        elif misbehave and manners == "misnames":
            send(json.dumps({"found": ["because"] * len(prompts), "seconds": 0.5}).encode())
        else:
            send(json.dumps(answer(prompts)).encode())


if __name__ == "__main__":
    main()
