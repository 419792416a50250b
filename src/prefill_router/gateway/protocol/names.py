"""What the model's name in a request asks for: routing, and at which lam, or one target."""

import difflib
import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import final

from prefill_router.gateway.protocol.numbers import read_number
from prefill_router.gateway.refusal import RefusalError

ROUTING_NAMES = ("auto", "prefill-router", "MoM")
"""Names that route at the lam that is set; `MoM` is vLLM semantic-router's."""
_route_llm = re.compile(r"router-(?P<router>.+)-(?P<threshold>[^-]*)").fullmatch
_LONGEST = 128  # of names that are quoted, or compared with the known ones
_MOST_TOLD = 20


@final
@dataclass(frozen=True, kw_only=True)
class Asked:
    """What a model's name asks for.

    Attributes:
        target: The target that is named; None where the request is to be routed.
        lam: The trade-off that the name holds; None where it holds none.
    """

    target: str | None = None
    lam: float | None = None


_ROUTED = Asked()


def parse_model(name: str, *, targets: Collection[str], names: Mapping[str, float]) -> Asked:
    """What a model's name asks for.

    A target's own name comes first, even where it is one of `ROUTING_NAMES`: who named a target so
    reaches it. The settings' names follow, then `ROUTING_NAMES`, then `prefill-router:LAM`, then
    RouteLLM's `router-NAME-THRESHOLD`. Its threshold is what the strong target's chance must reach
    for it to be called, so that 0 always calls the strong one and 1 hardly ever: as lam it is 1
    minus the threshold. Its NAME says which router decides, and there is but one here.

    Args:
        name: What the request has as its model.
        targets: The names of the targets.
        names: The settings' own routing names, each with its lam.

    Raises:
        RefusalError: 404 `model_not_found` where nothing has this name, 400 where its lam or
            threshold isn't a number from 0 to 1.
    """
    if name in targets:
        return Asked(target=name)
    if name in names:
        return Asked(lam=names[name])
    if name in ROUTING_NAMES:
        return _ROUTED
    if name.startswith("prefill-router:"):
        return Asked(lam=_share(name.partition(":")[2], "lam", "prefill-router:0.7"))
    found = _route_llm(name) if len(name) <= _LONGEST else None
    if found is not None:
        threshold = _share(found["threshold"], "threshold", "router-mf-0.3")
        return Asked(lam=1 - threshold)
    raise _unknown(name, list(dict.fromkeys((*ROUTING_NAMES, *names, *targets))))


def _share(text: str, what: str, example: str) -> float:
    number = read_number(text)
    if number is None or number > 1:
        raise RefusalError(
            f"the {what} in the model's name isn't a number from 0 to 1; write {example}",
            code="invalid_value",
            param="model",
        )
    return number


def _unknown(name: str, known: list[str]) -> RefusalError:
    close = difflib.get_close_matches(name, known, n=1) if len(name) <= _LONGEST else []
    told = f"the model {name!r}" if len(name) <= _LONGEST else "the model"
    nearest = f"; did you mean {close[0]!r}?" if close else ";"
    more = f" and {len(known) - _MOST_TOLD} more" if len(known) > _MOST_TOLD else ""
    return RefusalError(
        f"{told} doesn't exist{nearest} known are {', '.join(known[:_MOST_TOLD])}{more}, and "
        "prefill-router:LAM",
        status=404,
        code="model_not_found",
        param="model",
    )
