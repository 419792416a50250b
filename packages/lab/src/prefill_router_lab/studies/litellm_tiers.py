"""The classifiers of LiteLLM's complexity router that ask no language model.

LiteLLM sends each tier of requests to a target that its operator names. `heuristic` finds the tier
by words and lengths; `heuristic_v2` by success rates of prompts of the same kind in UltraFeedback.
Both run in this process, by LiteLLM's own package.
"""

import asyncio
import os
from collections.abc import Sequence
from typing import Final, Literal

from prefill_router.data import Prompt
from prefill_router.errors import ConfigError
from prefill_router.lazy_imports import optional_imports

Classifier = Literal["heuristic", "heuristic_v2"]
CLASSIFIERS: Final[tuple[Classifier, ...]] = ("heuristic", "heuristic_v2")
TIERS: Final = ("SIMPLE", "MEDIUM", "COMPLEX", "REASONING")


def classify_prompts(prompts: Sequence[Prompt], classifier: Classifier) -> tuple[int, ...]:
    """The tier of each prompt, as a place in `TIERS`.

    Args:
        prompts: Texts or chats; of a chat, LiteLLM reads the last user message and the system's.
        classifier: Which classifier.

    Raises:
        MissingExtraError: LiteLLM isn't installed.
        ConfigError: LiteLLM names a tier that this package doesn't know.
    """
    # LiteLLM downloads a list of prices when it is imported, unless this is set.
    os.environ.setdefault("LITELLM_LOCAL_MODEL_COST_MAP", "True")
    with optional_imports("the study of peers"):
        from litellm import Router
        from litellm.router_api import RoutingContext
        from litellm.router_strategy.complexity_router import ComplexityRouter
    settings = {"tiers": {tier: tier for tier in TIERS}, "classifier_type": classifier}
    router = ComplexityRouter("auto", RoutingContext(Router(model_list=[])), settings)

    async def classify_all() -> list[str]:
        texts = [_read_messages(prompt) for prompt in prompts]
        outcomes = [await router.aclassify(text, system) for text, system in texts]
        return [str(getattr(outcome.tier, "value", outcome.tier)) for outcome in outcomes]

    names = asyncio.run(classify_all())
    unknown = sorted(set(names) - set(TIERS))
    if unknown:
        raise ConfigError(f"LiteLLM names the tiers {unknown}; this study knows {list(TIERS)}")
    return tuple(TIERS.index(name) for name in names)


def _read_messages(prompt: Prompt) -> tuple[str, str | None]:
    """The last user message and the system's."""
    if isinstance(prompt, str):
        return prompt, None
    users = [message.content for message in prompt if message.role == "user"]
    systems = [message.content for message in prompt if message.role == "system"]
    return (users or [message.content for message in prompt])[-1], "\n\n".join(systems) or None
