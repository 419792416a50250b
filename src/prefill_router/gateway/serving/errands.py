"""Where plain calls go: those about a stored response, and counts of tokens."""

from collections.abc import Mapping
from functools import partial
from urllib.parse import parse_qs, quote

from starlette.routing import Route

from prefill_router.gateway.deciding import Question
from prefill_router.gateway.protocol import read_wishes
from prefill_router.gateway.refusal import RefusalError
from prefill_router.gateway.serving.answering import decide
from prefill_router.gateway.serving.gateway import Gateway
from prefill_router.gateway.serving.incoming import read_incoming
from prefill_router.gateway.serving.plain import Asked, Errand, PlainCalls
from prefill_router.gateway.words import Endpoint

STORED: Mapping[str, Mapping[str, str]] = {
    "": {"GET": "retrieve", "DELETE": "delete"},
    "/input_items": {"GET": "input_items"},
    "/cancel": {"POST": "cancel"},
}
"""The calls about a stored response, by what follows it in the path, and their methods."""
COUNTED: Mapping[str, tuple[Endpoint, str]] = {
    "/v1/messages/count_tokens": ("messages", "/count_tokens"),
    "/v1/responses/input_tokens": ("responses", "/input_tokens"),
}
"""The counts of tokens: by their path, the call that they are about and what follows its path."""
_LACKING = frozenset((404, 405, 501))


def plain_routes(gateway: Gateway) -> list[Route]:
    """The routes of all plain calls."""
    counts = [
        Route(
            path,
            PlainCalls(
                gateway, {"POST": "count_tokens"}, partial(_count, endpoint=endpoint, below=below)
            ),
            methods=["POST"],
        )
        for path, (endpoint, below) in COUNTED.items()
    ]
    about = [
        Route(
            f"/v1/responses/{{id}}{below}",
            PlainCalls(gateway, names, partial(_stored, below=below)),
            methods=list(names),
        )
        for below, names in STORED.items()
    ]
    return counts + about


async def _stored(asked: Asked, *, below: str) -> Errand:
    """To the target that keeps the response which the path names.

    Raises:
        RefusalError: 404, nobody is known to keep it for this key.
    """
    scope = asked.scope
    name: str = scope["path_params"]["id"]
    if not name.strip("."):  # it would climb in the target's path
        raise RefusalError("the path names no response", status=404, code="unknown_response")
    query = parse_qs(scope["query_string"].decode("latin-1"))
    sent = asked.body if scope["method"] == "POST" else b""
    return Errand(
        endpoint="responses",
        below=f"/{quote(name, safe='')}{below}",
        order=(asked.live.keepers.keeper(name, _question(asked)),),
        bodies=lambda _: sent,
        stream=query.get("stream") == ["true"],
    )


async def _count(asked: Asked, *, endpoint: Endpoint, below: str) -> Errand:
    """To the target that would answer the request itself, or the next that can count.

    Raises:
        RefusalError: As of the request itself.
    """
    gateway, live = asked.gateway, asked.live
    incoming = read_incoming(
        endpoint,
        asked.body,
        asked.scope["headers"],
        key=asked.key,
        settings=live.settings,
        pool=live.loaded.pool,
        lam=gateway.lam_set,
        at=asked.at,
    )
    decided = await decide(gateway, live, incoming, counted=False)
    splicer = incoming.envelope.splicer
    return Errand(
        endpoint=endpoint,
        below=below,
        order=decided.choice.order,
        bodies=lambda target: live.body_for(target, splicer, endpoint, ask_usage=False),
        lacking=_LACKING,
    )


def _question(asked: Asked) -> Question:
    """Who asks about a response, and which targets may be asked."""
    key = asked.key
    allowed = None if key is None or key.targets is None else frozenset(key.targets)
    names = [n for n in asked.live.loaded.pool.names if allowed is None or n in allowed]
    wishes = read_wishes(asked.scope["headers"], names)
    return Question(
        endpoint="responses",
        at=asked.at,
        max_tokens=0,  # nothing is written
        allow=wishes.allow,
        exclude=wishes.exclude,
        key=None if key is None else key.name,
        key_targets=allowed,
    )
