"""Which target a call about a stored response goes to."""

from typing import Any

import pytest

from packages.gateway.tests.decide.deciders import AT, target
from prefill_router.targets import Pool
from prefill_router_gateway import RoutingRequest
from prefill_router_gateway.decide import ResponseOwners, Sessions
from prefill_router_gateway.errors import RefusalError
from prefill_router_gateway.settings import SessionSettings as Settings

ONE = Pool((target("a", serves=("chat", "responses")), target("b", serves=("chat",))))
TWO = Pool((target("a"), target("b")))


def sessions() -> Sessions:
    found = Sessions(Settings())
    found.keep("r_ann", target="a", key="ann")
    found.keep("r_free", target="a", key=None)
    found.keep("r_gone", target="gone", key=None)
    found.keep("r_b", target="b", key=None)
    found.keep("r" * 257, target="b", key=None)
    return found


def keeper(pool: Pool, response: str, **asked: Any) -> str:
    question = RoutingRequest(endpoint="responses", at=AT, max_tokens=0, **asked)
    return ResponseOwners(pool, sessions()).keeper(response, question)


def refusal(pool: Pool, response: str, **asked: Any) -> RefusalError:
    with pytest.raises(RefusalError) as caught:
        keeper(pool, response, **asked)
    assert caught.value.code in ("unknown_response", "no_eligible_target")
    return caught.value


def test_a_response_is_where_it_was_made_whatever_is_wished() -> None:
    assert keeper(TWO, "r_ann", key="ann") == "a"
    assert keeper(TWO, "r_free") == "a"
    assert keeper(TWO, "r_free", exclude=frozenset("a")) == "a"


@pytest.mark.parametrize("pool", [ONE, TWO])
def test_a_key_reaches_its_own_alone_and_hears_nothing_of_others(pool: Pool) -> None:
    asked = [("r_ann", "bob"), ("r_ann", None), ("r_free", "ann"), ("r_never", "ann")]
    errors = [refusal(pool, response, key=key) for response, key in asked]
    assert {error.status for error in errors} == {404}
    (told,) = {str(error) for error in errors}
    assert "known to belong to this key" in told


def test_what_nobody_remembers_is_where_it_must_be() -> None:
    assert keeper(ONE, "r_never") == "a"
    assert keeper(TWO, "r_never", allow=frozenset("b")) == "b"
    assert keeper(TWO, "r_never", exclude=frozenset("b")) == "a"
    error = refusal(TWO, "r_never")
    assert "['a', 'b'] in the header x-prefill-router-allow" in str(error)
    assert refusal(TWO, "r" * 257).status == 404


def test_a_target_that_cannot_be_asked_any_more_is_told() -> None:
    assert "'gone', which can't be called: it is no longer in the pool" in str(
        refusal(TWO, "r_gone")
    )
    assert "'b', which can't be called: doesn't serve responses" in str(refusal(ONE, "r_b"))
    other = {"key": "ann", "key_targets": frozenset("b")}
    assert "not allowed by the key" in str(refusal(TWO, "r_ann", **other))
    mute = Pool((target("b", serves=("chat",)),))
    assert "serves: [responses]" in str(refusal(mute, "r_never"))
