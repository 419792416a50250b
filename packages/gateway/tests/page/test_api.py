"""The page's routes: its files, its numbers, and how bad requests are refused."""

import asyncio
import json
import re
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from typing import Any, get_args, get_type_hints, is_typeddict

import httpx2
import pytest
from starlette.applications import Starlette

from packages.gateway.tests.page.source import FakeSource
from packages.gateway.tests.receipts.example_receipts import (
    TARGETS,
    example_receipt,
    write_receipts,
)
from prefill_router.agents import RequestKind
from prefill_router.endpoints import Breakers, BreakerState
from prefill_router.targets import Pool, Target
from prefill_router_gateway import records
from prefill_router_gateway.api.openapi import page_paths
from prefill_router_gateway.errors import RefusalError
from prefill_router_gateway.page import (
    PageSource,
    page_routes,
    shapes,
    views,
)
from prefill_router_gateway.page.routes import PAGE_FILE_HEADERS, read_page_files
from prefill_router_gateway.receipts import savings_since, summary
from prefill_router_gateway.receipts.writer import MinuteCounts
from prefill_router_gateway.records import TargetAttempt
from prefill_router_gateway.settings import SavingsSettings


def ask(source: PageSource, path: str, *, method: str = "GET", **more: Any) -> httpx2.Response:
    async def send_request() -> httpx2.Response:
        transport = httpx2.ASGITransport(app=Starlette(routes=page_routes(source)))
        async with httpx2.AsyncClient(transport=transport, base_url="http://page") as client:
            return await client.request(method, path, **more)

    return asyncio.run(send_request())


@pytest.fixture(scope="module")
def source() -> FakeSource:
    return FakeSource(requests=60)


def test_the_page_is_html_that_nothing_may_be_added_to(source: FakeSource) -> None:
    reply = ask(source, "/")
    assert reply.status_code == 200
    assert reply.headers["content-type"] == "text/html; charset=utf-8"
    assert PAGE_FILE_HEADERS.items() <= dict(reply.headers).items()
    policy = dict(
        part.strip().split(" ", 1)
        for part in PAGE_FILE_HEADERS["content-security-policy"].split(";")
    )
    assert policy["default-src"] == "'none'"
    assert policy["script-src"] == policy["style-src"] == policy["connect-src"] == "'self'"


def test_every_file_is_served_with_its_type_and_known_again() -> None:
    types = {"css": "text/css", "js": "text/javascript", "svg": "image/svg+xml"}
    files = [file for file in read_page_files() if file.name != "index.html"]
    assert {file.name.rpartition(".")[2] for file in files} == set(types)
    for file in files:
        reply = ask(FakeSource(requests=0), f"/page/{file.name}")
        assert reply.status_code == 200
        assert reply.headers["content-type"].startswith(types[file.name.rpartition(".")[2]])
        assert reply.headers["cache-control"] == "no-cache"
        assert reply.content == file.body


def test_the_page_says_beforehand_which_modules_it_loads(source: FakeSource) -> None:
    page = ask(source, "/").text
    for file in read_page_files():
        if file.name not in ("index.html", "page.css"):
            assert f'"/page/{file.name}"' in page


@pytest.mark.parametrize("etag_pattern", ["{}", "W/{}", '"other", {}', "*"])
def test_a_file_that_is_known_is_not_sent_again(source: FakeSource, etag_pattern: str) -> None:
    etag = ask(source, "/page/page.css").headers["etag"]
    again = ask(source, "/page/page.css", headers={"if-none-match": etag_pattern.format(etag)})
    assert (again.status_code, again.content) == (304, b"")
    assert again.headers["etag"] == etag
    stale = ask(source, "/page/page.css", headers={"if-none-match": '"other"'})
    assert stale.status_code == 200


@pytest.mark.parametrize("path", ["/page/", "/page/api.py", "/page/../api.py", "/page/x.js"])
def test_nothing_else_is_served(source: FakeSource, path: str) -> None:
    assert ask(source, path).status_code == 404


def conform(value: Any, hint: Any, where: str) -> None:
    """Check a value against a shape: the same keys, and values of their types."""
    if is_typeddict(hint):
        hints = get_type_hints(hint)
        assert set(value) == set(hints), where
        for name, inner in hints.items():
            conform(value[name], inner, f"{where}.{name}")
    elif getattr(hint, "__origin__", None) is list:
        for i, item in enumerate(value):
            conform(item, get_args(hint)[0], f"{where}[{i}]")
    elif type(None) in get_args(hint) and value is not None:
        conform(value, next(h for h in get_args(hint) if h is not type(None)), where)
    elif hint is float:
        assert isinstance(value, float | int), where
    elif isinstance(hint, type):
        assert isinstance(value, hint), where
    else:
        assert value in get_args(hint) or value is None, where


def test_the_check_of_shapes_finds_what_is_wrong() -> None:
    conform({"lam": 0.5, "before": 1}, shapes.LamSet, "lam")
    for wrong in ({"lam": 0.5}, {"lam": "0.5", "before": 1.0}, {"lam": 1, "before": 1, "x": 1}):
        with pytest.raises(AssertionError):
            conform(wrong, shapes.LamSet, "lam")


@pytest.mark.parametrize(
    ("path", "shape"),
    [
        ("overview", shapes.Overview),
        ("timeline", shapes.Timeline),
        ("decisions", shapes.Decisions),
        ("decisions?outcome=cut&id=00", shapes.Decisions),
        ("spend", shapes.Spend),
        ("savings", shapes.SavingsPanel),
        ("versions", shapes.VersionsView),
        ("curve", shapes.CurveView),
        ("whatif?lam=0.9", shapes.WhatIf),
        ("targets", shapes.Targets),
        ("drift", shapes.DriftView),
    ],
)
def test_numbers_have_their_shapes(source: FakeSource, path: str, shape: type) -> None:
    reply = ask(source, f"/page/api/{path}")
    assert reply.status_code == 200
    assert reply.headers["content-type"] == "application/json"
    assert reply.headers["cache-control"] == "no-store"
    conform(reply.json(), shape, path)


def test_decisions_go_on_from_a_cursor() -> None:
    source = FakeSource(requests=5)
    first = ask(source, "/page/api/decisions").json()
    assert len(first["decisions"]) == 5
    new = source.arrive()
    second = ask(source, f"/page/api/decisions?after={first['cursor']}").json()
    assert [row["id"] for row in second["decisions"]] == [new]
    assert len(ask(source, "/page/api/decisions?limit=2").json()["decisions"]) == 2


def test_one_decision(source: FakeSource) -> None:
    detail = source.records[-1].detail
    reply = ask(source, f"/page/api/decisions/{detail['decision']['id']}")
    conform(reply.json(), shapes.DecisionDetail, "detail")
    assert reply.json() == json.loads(json.dumps(detail))
    missing = ask(source, "/page/api/decisions/pr_0")
    assert missing.status_code == 404
    assert missing.json()["error"]["code"] == "no_such_decision"


BAD_LAMS = ["", "-0.1", "1.1", "nan", "inf", "-inf", "much", "0,5", "1e999"]


@pytest.mark.parametrize(
    "query",
    [*(f"whatif?lam={lam}" for lam in BAD_LAMS), "whatif"]
    + [f"decisions?limit={n}" for n in ("0", "-1", "x", "1.5", "99999", "²", "")],
)
def test_bad_questions_are_refused(source: FakeSource, query: str) -> None:
    reply = ask(source, f"/page/api/{query}")
    assert reply.status_code == 400
    assert reply.json()["error"]["param"] in ("lam", "limit")


def test_lam_is_set() -> None:
    source = FakeSource(requests=0)
    reply = ask(source, "/page/api/lam", method="POST", json={"lam": 0.25})
    assert reply.json() == {"lam": 0.25, "before": 0.62}
    assert source.lam == 0.25


BODIES = [
    *(b"", b"null", b"[]", b"{}", b'{"lam": 2}', b'{"lam": "0.5"}', b'{"lam": true}', b"\xff"),
    *(b'{"lam": NaN}', b'{"lam": null}', b'{"lam": [0]}', b'{"lam": 1, "x": 2}', b"[" * 1000),
    b'{"lam": 1' + b"0" * 400 + b"}",
]


@pytest.mark.parametrize("body", BODIES)
def test_bad_bodies_set_nothing(body: bytes) -> None:
    source = FakeSource(requests=0)
    headers = {"content-type": "application/json"}
    reply = ask(source, "/page/api/lam", method="POST", content=body, headers=headers)
    assert reply.status_code == 400
    assert reply.json()["error"]["type"] == "invalid_request_error"
    assert (source.lam, source.calls) == (0.62, [])


@pytest.mark.parametrize(
    ("status", "more"),
    [
        (415, {"content": b'{"lam": 0.5}', "headers": {"content-type": "text/plain"}}),
        (415, {"content": b'{"lam": 0.5}'}),
        (413, {"content": b" " * 2000, "headers": {"content-type": "application/json"}}),
    ],
)
def test_other_bodies_are_not_read(status: int, more: Mapping[str, Any]) -> None:
    source = FakeSource(requests=0)
    assert ask(source, "/page/api/lam", method="POST", **more).status_code == status
    assert source.calls == []


def test_a_body_that_breaks_off_sets_nothing() -> None:
    source = FakeSource(requests=0)
    route = next(route for route in page_routes(source) if route.path == "/page/api/lam")
    messages: list[Any] = []

    async def receive() -> dict[str, Any]:
        return {"type": "http.disconnect"}

    async def send(message: Any) -> None:
        messages.append(message)

    scope = {
        "type": "http",
        "method": "POST",
        "path": "/page/api/lam",
        "headers": [(b"content-type", b"application/json")],
        "query_string": b"",
    }
    asyncio.run(route.app(scope, receive, send))
    assert messages[0]["status"] == 400
    assert source.calls == []


def test_lam_is_only_set_by_posting(source: FakeSource) -> None:
    assert ask(source, "/page/api/lam").status_code == 405
    assert ask(source, "/page/api/overview", method="POST", json={}).status_code == 405


def test_a_source_that_can_not_answer_is_told_of() -> None:
    source = FakeSource(requests=0)
    source.broken = True
    reply = ask(source, "/page/api/spend")
    assert reply.status_code == 503
    assert reply.json()["error"]["message"].startswith("the receipts can't be read")
    assert reply.headers["retry-after"] == "5"


def test_every_path_is_described(source: FakeSource) -> None:
    routes = {
        (route.path, method.lower())
        for route in page_routes(source)
        if route.path.startswith("/page/api/")
        for method in (route.methods or set()) - {"HEAD"}
    }
    assert routes == {(path, method) for path, of in page_paths().items() for method in of}


def test_a_refusal_keeps_its_status_and_headers(monkeypatch: pytest.MonkeyPatch) -> None:
    source = FakeSource(requests=0)

    async def refuse(lam: float) -> shapes.LamSet:
        raise RefusalError(f"not {lam}", status=409, headers={"retry-after": "3"})

    monkeypatch.setattr(source, "set_lam", refuse)
    reply = ask(source, "/page/api/lam", method="POST", json={"lam": 0.1})
    assert (reply.status_code, reply.headers["retry-after"]) == (409, "3")


async def _pieces() -> AsyncIterator[bytes]:
    for piece in (b'{"la', b'm": 0', b".75}"):
        yield piece


def test_a_body_in_pieces_is_put_together() -> None:
    source = FakeSource(requests=0)
    headers = {"content-type": "application/json; charset=utf-8"}
    reply = ask(source, "/page/api/lam", method="POST", content=_pieces(), headers=headers)
    assert reply.json()["lam"] == 0.75


def test_every_word_of_the_gateway_is_known_to_the_page() -> None:
    source = next(f for f in read_page_files() if f.name == "words.js").body.decode()
    words = {
        name: set(re.findall(r"^  (\w+):", body, re.MULTILINE))
        for name, body in re.findall(r"export const (\w+) = \{(.*?)^\};", source, re.M | re.S)
    }
    assert words == {
        "REASONS": set(records.REASONS),
        "BECAUSE": set(records.REASONS),
        "FALLBACKS": set(records.FALLBACK_REASONS),
        "KINDS": set(get_args(RequestKind)),
        "OUTCOMES": set(records.OUTCOMES),
        "ENDS": set(get_args(records.AttemptEnd)),
        "SCORED": set(records.SCORED),
        "STATES": set(get_args(shapes.State)),
        "BREAKERS": set(get_args(BreakerState)),
    }


def test_views_of_receipts_have_their_shapes(tmp_path: Path) -> None:
    file = tmp_path / "receipts.sqlite"
    unpriced = example_receipt(3, cost=None, choice={"estimated_cost": {}}, outcome={"usage": None})
    receipts = [example_receipt(1), example_receipt(2, prompt="hidden", key="ann"), unpriced]
    agent = {"agent": "codex", "kind": "subagent", "type": "review", "failing_steps": 3}
    agent_detail = views.detail(example_receipt(4, details={"agent": agent}))
    conform(agent_detail, shapes.DecisionDetail, "detail")
    assert (agent_detail["decision"]["agent"], agent_detail["decision"]["kind"]) == (
        "codex",
        "subagent",
    )
    assert (agent_detail["type"], agent_detail["failing_steps"]) == ("review", 3)
    assert views.row(receipts[0])["agent"] is None
    write_receipts(file, receipts)
    for receipt in receipts:
        view = views.detail(receipt)
        conform(view, shapes.DecisionDetail, "detail")
        assert "hidden" not in json.dumps(view)
    savings = savings_since(str(file), SavingsSettings())
    for compared in (savings, None):
        view = views.spend(summary(str(file), 0.0), compared, 0.0)
        conform(view, shapes.SpendWindow, "spend")
    conform(views.savings(savings), shapes.SavingsView, "savings")
    pool = Pool(tuple(Target(name=name, base_url="http://127.0.0.1:9/v1") for name in TARGETS))
    breakers = Breakers(failures=5, seconds=10)
    conform(views.health(pool, "small", breakers, receipts), shapes.TargetHealth, "health")
    attempts = [
        TargetAttempt(target="small", end="connect", status=None, seconds=0.1, failure=why)
        for why in ("its host is unknown", "nothing listens there")
    ]
    receipts.append(example_receipt(5, outcome={"attempts": tuple(attempts)}))
    assert views.health(pool, "small", breakers, receipts)["last_failure"] == attempts[1].failure
    assert views.health(pool, "large", breakers, receipts)["last_failure"] is None
    conform(
        views.pick(shapes.MinuteView, {"at": 420.0}, MinuteCounts(7)), shapes.MinuteView, "minute"
    )


def test_a_view_has_the_fields_of_its_shape_alone() -> None:
    assert views.pick(
        shapes.SwitchPoint, {"target": "a", "key": "b"}, example_receipt(1).choice
    ) == {
        "lam": 0.9,
        "target": "a",
    }
    with pytest.raises(AttributeError, match="before"):
        views.pick(shapes.LamSet, {}, example_receipt(1).choice)
