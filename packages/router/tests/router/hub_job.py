"""Talks to the hub that HF_ENDPOINT names; arguments:

push FOLDER REPOSITORY [TOKEN]
load REPOSITORY [REVISION]
promote FOLDER REPOSITORY
"""

from packages.router.tests.fakes.hub_worker import do_jobs
from prefill_router.router import EncoderSources, Router, VersionRegistry, read_light
from prefill_router.testing import FakeEncoder

REQUESTS = ["Question 1 of difficulty 0.10: why?", "Question 2 of difficulty 0.95: why?", "Ünï 🦜"]


def work(*arguments: str) -> dict[str, object]:
    return {"answer": answer(*arguments)}


def answer(job: str, name: str, *arguments: str) -> object:
    sources = EncoderSources(loaded=(FakeEncoder(),))
    if job == "promote":
        registry = VersionRegistry.at(f"hf://{arguments[0]}")
        registry.promote(registry.add(Router.load(name), {}))
        again = VersionRegistry.at(f"hf://{arguments[0]}", create=False)
        current = again.state().current or ""
        return [current, read_light(again.router(current)).fingerprint]
    if job == "push":
        token = arguments[1] if len(arguments) > 1 else None
        return Router.load(name).push_to_hub(arguments[0], private=True, token=token)
    router = Router.from_pretrained(
        name, revision=arguments[0] if arguments else None, sources=sources
    )
    return [decision.to_dict() for decision in router.route_many(REQUESTS, lam=0.6)]


if __name__ == "__main__":
    do_jobs(work)
