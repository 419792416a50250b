"""Talks to the hub that HF_ENDPOINT names, in a process of its own for each job, since the hub's
library reads its settings when it is imported.

Each line of standard input is a job, [environment, arguments], each line printed its answer:

    push FOLDER REPOSITORY [TOKEN]
    load REPOSITORY [REVISION]
    promote FOLDER REPOSITORY
"""

import json
import os
import sys

from prefill_router.errors import PrefillRouterError
from prefill_router.router import EncoderSources, Router, VersionRegistry, read_light
from prefill_router.testing import FakeEncoder

REQUESTS = ["Question 1 of difficulty 0.10: why?", "Question 2 of difficulty 0.95: why?", "Ünï 🦜"]


def work(job: str, name: str, *rest: str) -> object:
    sources = EncoderSources(loaded=(FakeEncoder(),))
    if job == "promote":
        registry = VersionRegistry.at(f"hf://{rest[0]}")
        registry.promote(registry.add(Router.load(name), {}))
        again = VersionRegistry.at(f"hf://{rest[0]}", create=False)
        current = again.state().current or ""
        return [current, read_light(again.router(current)).fingerprint]
    if job == "push":
        token = rest[1] if len(rest) > 1 else None
        return Router.load(name).push_to_hub(rest[0], private=True, token=token)
    router = Router.from_pretrained(name, revision=rest[0] if rest else None, sources=sources)
    return [decision.to_dict() for decision in router.route_many(REQUESTS, lam=0.6)]


def answer(environment: dict[str, str], arguments: list[str]) -> None:
    os.environ.update(environment)
    try:
        told = {"answer": work(*arguments)}
    except PrefillRouterError as error:
        told = {"error": type(error).__name__, "message": str(error)}
    sys.stdout.write(json.dumps(told) + "\n")


if __name__ == "__main__":
    for line in sys.stdin:
        child = os.fork()
        if not child:
            answer(*json.loads(line))
            sys.exit(0)
        if os.waitpid(child, 0)[1]:
            sys.stdout.write('{"error": "it crashed", "message": "see the standard error"}\n')
        sys.stdout.flush()
