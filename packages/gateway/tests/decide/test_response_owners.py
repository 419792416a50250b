"""Which target a call about a stored response goes to."""

from typing import Any

import pytest

from packages.gateway.tests.decide.deciders import AT, target
from prefill_router.targets import Pool
from prefill_router_gateway import RoutingRequest
from prefill_router_gateway.decide import ResponseOwners, Sessions
from prefill_router_gateway.errors import RefusalError
from prefill_router_gateway.settings import SessionSettings as Settings

ONE_SERVES = Pool((target("a", serves=("chat", "responses")), target("b", serves=("chat",))))
BOTH_SERVE = Pool((target("a"), target("b")))


def build_sessions() -> Sessions:
    sessions = Sessions(Settings())
    sessions.keep("r_ann", target="a", key="ann")
    sessions.keep("r_free", target="a", key=None)
    sessions.keep("r_gone", target="gone", key=None)
    sessions.keep("r_b", target="b", key=None)
    sessions.keep("r" * 257, target="b", key=None)
    return sessions


def find_keeper(pool: Pool, response: str, **fields: Any) -> str:
    question = RoutingRequest(endpoint="responses", at=AT, max_tokens=0, **fields)
    return ResponseOwners(pool, build_sessions()).keeper(response, question)


def refusal(pool: Pool, response: str, **fields: Any) -> RefusalError:
    with pytest.raises(RefusalError) as caught:
        find_keeper(pool, response, **fields)
    assert caught.value.code in ("unknown_response", "no_eligible_target")
    return caught.value


def test_a_response_is_where_it_was_made_whatever_is_wished() -> None:
    assert find_keeper(BOTH_SERVE, "r_ann", key="ann") == "a"
    assert find_keeper(BOTH_SERVE, "r_free") == "a"
    assert find_keeper(BOTH_SERVE, "r_free", exclude=frozenset("a")) == "a"


@pytest.mark.parametrize("pool", [ONE_SERVES, BOTH_SERVE])
def test_a_key_reaches_its_own_alone_and_hears_nothing_of_others(pool: Pool) -> None:
    pairs = [("r_ann", "bob"), ("r_ann", None), ("r_free", "ann"), ("r_never", "ann")]
    errors = [refusal(pool, response, key=key) for response, key in pairs]
    assert {error.status for error in errors} == {404}
    (message,) = {str(error) for error in errors}
    assert "known to belong to this key" in message


def test_what_nobody_remembers_is_where_it_must_be() -> None:
    assert find_keeper(ONE_SERVES, "r_never") == "a"
    assert find_keeper(BOTH_SERVE, "r_never", allow=frozenset("b")) == "b"
    assert find_keeper(BOTH_SERVE, "r_never", exclude=frozenset("b")) == "a"
    error = refusal(BOTH_SERVE, "r_never")
    assert "['a', 'b'] in the header x-prefill-router-allow" in str(error)
    assert refusal(BOTH_SERVE, "r" * 257).status == 404


def test_a_target_that_cannot_be_asked_any_more_is_told() -> None:
    assert "'gone', which can't be called: it is no longer in the pool" in str(
        refusal(BOTH_SERVE, "r_gone")
    )
    assert "'b', which can't be called: doesn't serve responses" in str(refusal(ONE_SERVES, "r_b"))
    key_fields = {"key": "ann", "key_targets": frozenset("b")}
    assert "not allowed by the key" in str(refusal(BOTH_SERVE, "r_ann", **key_fields))
    mute = Pool((target("b", serves=("chat",)),))
    assert "serves: [responses]" in str(refusal(mute, "r_never"))
