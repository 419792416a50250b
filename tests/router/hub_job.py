"""Talks to the hub that HF_ENDPOINT names; apart, since its library reads that when imported.

    python hub_job.py push FOLDER REPOSITORY [TOKEN]
    python hub_job.py load REPOSITORY [REVISION]
"""

import json
import sys

from prefill_router.errors import PrefillRouterError
from prefill_router.router import EncoderSources, Router
from prefill_router.testing import FakeEncoder

REQUESTS = ["Question 1 of difficulty 0.10: why?", "Question 2 of difficulty 0.95: why?", "Ünï 🦜"]


def work(job: str, name: str, *rest: str) -> object:
    sources = EncoderSources(loaded=(FakeEncoder(),))
    if job == "push":
        token = rest[1] if len(rest) > 1 else None
        return Router.load(name).push_to_hub(rest[0], private=True, token=token)
    router = Router.from_pretrained(name, revision=rest[0] if rest else None, sources=sources)
    return [decision.to_dict() for decision in router.route_many(REQUESTS, lam=0.6)]


if __name__ == "__main__":
    try:
        answer = {"answer": work(*sys.argv[1:])}
    except PrefillRouterError as error:
        answer = {"error": type(error).__name__, "message": str(error)}
    sys.stdout.write(json.dumps(answer))
