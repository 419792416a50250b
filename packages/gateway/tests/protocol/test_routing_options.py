"""What the model's name and the headers of a request ask for."""

import pytest
from hypothesis import given, settings, strategies as st

from prefill_router_gateway.errors import RefusalError
from prefill_router_gateway.protocol import (
    NO_PREFERENCES,
    RequestedModel,
    RoutingPreferences,
    parse_model,
    read_preferences,
)

TARGETS = ("small", "large", "org/model-v1:free")


def parse(name: str, *, targets: tuple[str, ...] = TARGETS) -> RequestedModel:
    return parse_model(name, targets=targets, names={"cheap": 0.2})


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("auto", RequestedModel()),
        ("prefill-router", RequestedModel()),
        ("MoM", RequestedModel()),
        ("small", RequestedModel(target="small")),
        ("org/model-v1:free", RequestedModel(target="org/model-v1:free")),
        ("cheap", RequestedModel(lam=0.2)),
        ("prefill-router:0.7", RequestedModel(lam=0.7)),
        ("prefill-router:0", RequestedModel(lam=0.0)),
        ("prefill-router:1", RequestedModel(lam=1.0)),
        ("prefill-router:.5", RequestedModel(lam=0.5)),
        ("router-mf-0.25", RequestedModel(lam=0.75)),
        ("router-sw-ranking-1", RequestedModel(lam=0.0)),
    ],
)
def test_names(name: str, expected: RequestedModel) -> None:
    assert parse(name) == expected


def test_a_target_of_the_same_name_comes_first() -> None:
    for name in ("auto", "cheap", "prefill-router:0.7", "router-mf-0.5"):
        assert parse(name, targets=("x", name)) == RequestedModel(target=name)


@pytest.mark.parametrize(
    "lam", ["", "x", "-0.1", "1.01", "nan", "inf", "1e400", "0_1", "\u0660.\u0665", "0x1"]
)
def test_a_lam_is_a_number_from_0_to_1(lam: str) -> None:
    for name, part in (("prefill-router:", "lam"), ("router-mf-", "threshold")):
        if lam.startswith("-") and part == "threshold":
            continue  # its dash belongs to the router's name
        with pytest.raises(RefusalError, match=f"the {part} in the model's name") as raised:
            parse(name + lam)
        assert (raised.value.status, raised.value.param) == (400, "model")


def test_unknown_names() -> None:
    with pytest.raises(RefusalError, match="did you mean 'large'") as raised:
        parse("larg")
    assert (raised.value.status, raised.value.code) == (404, "model_not_found")
    with pytest.raises(RefusalError, match="'gpt-9' doesn't exist; the models are auto"):
        parse("gpt-9")
    with pytest.raises(RefusalError) as raised:
        parse("x" * 100_000)
    assert len(str(raised.value)) < 300
    with pytest.raises(RefusalError, match="and 16 more"):
        parse("gpt-9", targets=tuple(f"t{i}" for i in range(30)))


@settings(deadline=None)
@given(st.text())
def test_any_name_is_known_or_refused(name: str) -> None:
    try:
        requested = parse(name)
    except RefusalError as refusal:
        assert refusal.status in (400, 404)  # noqa: PT017
    else:
        assert requested.target is None or requested.target == name


PLAIN = [(b"host", b"x"), (b"authorization", b"Bearer k"), (b"x-stainless-os", b"Linux")]


def preferences_of(*headers: tuple[str, str]) -> RoutingPreferences:
    own_headers = [(f"x-prefill-router-{name}".encode(), value.encode()) for name, value in headers]
    return read_preferences([*PLAIN, *own_headers], TARGETS)


def test_no_wishes() -> None:
    assert read_preferences(PLAIN, TARGETS) is NO_PREFERENCES
    assert read_preferences([], TARGETS) is NO_PREFERENCES


def test_all_wishes() -> None:
    preferences = preferences_of(
        ("lam", "0.25"),
        ("max-cost", "1e-3"),
        ("allow", "small, large ,"),
        ("exclude", "large"),
        ("exclude", "org/model-v1:free"),
        ("scored", "conversation"),
        ("learn", "no"),
    )
    assert preferences == RoutingPreferences(
        lam=0.25,
        max_cost=0.001,
        allow=frozenset({"small", "large"}),
        exclude=frozenset({"large", "org/model-v1:free"}),
        scored="conversation",
        learn=False,
    )


def test_names_of_sessions() -> None:
    for value, session in ((b"thread 7", "thread 7"), (b"", None), ("fünf".encode(), "fünf")):
        assert read_preferences([(b"x-session-id", value)], TARGETS).session == session


@pytest.mark.parametrize(
    ("name", "value", "problem"),
    [
        ("lam", "1.5", "must be a number from 0 to 1"),
        ("lam", "", "must be a number from 0 to 1"),
        ("max-cost", "-1", "must be an amount in US dollars"),
        ("max-cost", "1e999", "must be an amount in US dollars"),
        ("max-cost", "cheap", "must be an amount in US dollars"),
        ("allow", " , ", "names no target"),
        ("allow", "small,tiny", "names unknown targets: tiny"),
        ("exclude", "auto", "names unknown targets: auto"),
        ("scored", "everything", "must be one of ask, last_user, "),
        ("learn", "1", "must be yes or no"),
        ("lambda", "0.5", "there is no header x-prefill-router-lambda; the headers are"),
    ],
)
def test_malformed_wishes(name: str, value: str, problem: str) -> None:
    with pytest.raises(RefusalError, match=problem) as raised:
        preferences_of((name, value))
    assert f"x-prefill-router-{name}" in str(raised.value)
    assert raised.value.status == 400


def test_wishes_that_come_twice() -> None:
    with pytest.raises(RefusalError, match=r"x-prefill-router-lam is repeated"):
        preferences_of(("lam", "0.5"), ("lam", "0.5"))


@pytest.mark.parametrize("value", [b"x" * 257, b"a\x01b", b"\xff"])
def test_malformed_sessions(value: bytes) -> None:
    with pytest.raises(RefusalError, match="x-session-id"):
        read_preferences([(b"x-session-id", value)], TARGETS)
