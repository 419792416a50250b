"""Judges that say what a test wants, for the tests of grading."""

import re
from collections.abc import Callable, Mapping
from typing import Any

from prefill_router.targets import Pool, Provider, RequestOptions, Target
from prefill_router_minipool.server import Faults, Rule, ScriptedModel, Server, serve

YES = '{"extracted": "4", "reasoning": "They agree.", "correct": "yes", "confidence": 80}'
NO = '{"extracted": "5", "reasoning": "They differ.", "correct": "no", "confidence": null}'
UNREADABLE = "I would rather not say."


def judge_pool(server: Server, *, concurrency: int = 4, max_tokens: int = 500) -> Pool:
    provider = Provider(
        name="court", base_url=server.base_url, dialect="vllm", concurrency=concurrency
    )
    judge = Target(
        name="judge",
        provider="court",
        input_price=1.0,
        output_price=10.0,
        request=RequestOptions(max_tokens=max_tokens),
    )
    return Pool((judge,), providers=(provider,))


def court(say: Callable[[str], str] | Mapping[str, str], *rules: Rule) -> Any:
    model = ScriptedModel("judge", say, characters=32)
    return serve([model], faults=Faults(rules=rules))


def by_answer(prompt: str) -> str:
    """Says yes to answers that hold 4."""
    return YES if "4" in find_answer(prompt) else NO


def find_answer(prompt: str) -> str:
    match = re.search(r"(=== \w{16}) answer to grade\n(.*)\n\1 end", prompt, re.DOTALL)
    assert match
    return match[2]
