"""Forecasts of a batch, in which one bad prompt spoils no other."""

import logging
import re
from collections.abc import Sequence
from dataclasses import replace

from prefill_router.data import Prompt
from prefill_router.errors import PrefillRouterError, PromptError, UpstreamError
from prefill_router.gateway.forecasting.exchange import Found
from prefill_router.router import Router

_log = logging.getLogger(__name__)
_PLACE = re.compile(r"request (\d+)")
# What libraries raise on a prompt that they choke on, and where memory runs out.
_FAILURES = (
    PrefillRouterError,
    RuntimeError,
    MemoryError,
    ValueError,
    TypeError,
    LookupError,
    OSError,
)


def forecast_each(router: Router, prompts: Sequence[Prompt]) -> list[Found]:
    """What is expected of each prompt, or why it can't be said; encoded together.

    A prompt that can't be encoded is left out, and the others are tried again; after any other
    failure they are read one by one.
    """
    found: list[Found] = ["unreadable"] * len(prompts)
    left = list(range(len(prompts)))
    while left:
        try:
            forecasts = router.forecast_many([prompts[i] for i in left])
        except PromptError as error:
            place = _place(error, len(left))
            if place is None:
                return [_alone(router, prompt) for prompt in prompts]
            del left[place]
        except _FAILURES as error:
            _log.warning("a batch of %d failed: %s", len(left), type(error).__name__)
            for i in left:
                found[i] = _alone(router, prompts[i])
            return found
        else:
            for i, forecast in zip(left, forecasts, strict=True):
                found[i] = forecast
            return found
    return found


def reusing_beginnings(router: Router, most_bytes: int) -> Router:
    """The router, its encoders keeping what they made of shared beginnings, where they can.

    On a GPU nothing is kept: prompts would be read one by one there, and batches pay more.
    """
    if not router.features.provenances or _on_gpu(router.sources.device):
        return router
    from prefill_router.encoders.prefix_reuse import with_prefix_reuse

    loaded = tuple(
        with_prefix_reuse(router.encoder(provenance), most_bytes=most_bytes)
        for provenance in router.features.provenances
    )
    return router.with_sources(replace(router.sources, loaded=loaded))


def _on_gpu(device: str | None) -> bool:
    import torch

    return torch.cuda.is_available() if device is None else not device.startswith("cpu")


def still_works(router: Router) -> bool:
    """Whether an ordinary prompt can be read: a GPU that failed once, say, never does again."""
    try:
        router.forecast_many(["How are you?"])
    except _FAILURES as error:
        _log.warning("an ordinary prompt failed too: %s", type(error).__name__)
        return False
    return True


def _alone(router: Router, prompt: Prompt) -> Found:
    try:
        return router.forecast_many([prompt])[0]
    except PromptError:
        return "unreadable"
    except UpstreamError as error:
        _log.warning("the encoder's endpoint failed: %s", error.failure)
        return "encoder_down"
    except _FAILURES as error:
        _log.warning("a prompt failed: %s", type(error).__name__)
        return "unreadable"


def _place(error: PromptError, count: int) -> int | None:
    """Which prompt of the batch it was, from 0."""
    named = _PLACE.fullmatch(error.query_id)
    place = None if named is None else int(named[1]) - 1
    return place if place is not None and 0 <= place < count else None
