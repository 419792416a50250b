"""Each way of breaking does what it says, happens when its rule says, and is in the log."""

import json
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from email.utils import parsedate_to_datetime
from pathlib import Path
from typing import Any

import httpx2
import openai
import pytest

from packages.minipool.tests.wire import body, post, read_stream, text_of, until
from prefill_router.errors import ConfigError, FormatError, PrefillRouterError
from prefill_router.targets import DIALECTS, Dialect
from prefill_router_minipool.server import (
    Faults,
    Persona,
    Rule,
    ScriptedModel,
    Server,
    read_faults,
    serve,
)
from prefill_router_minipool.server.faults import FaultInjector, Kind

pytestmark = pytest.mark.slow

ANSWER = "four and twenty"  # four tokens


@contextmanager
def serve_broken(*rules: Rule, **personas: Persona) -> Iterator[Server]:
    models = [ScriptedModel("small", lambda _: ANSWER), ScriptedModel("other", lambda _: ANSWER)]
    with serve(models, faults=Faults(rules=rules, personas=personas)) as server:
        yield server


def raw_stream(server: Server, text: str = "hi", **fields: Any) -> bytes:
    """What comes of a stream, to its end or until it is broken off."""
    request = body("small", text, stream=True, stream_options={"include_usage": True}, **fields)
    content = bytearray()
    try:
        with httpx2.stream("POST", server.base_url + "/chat/completions", json=request) as reply:
            for part in reply.iter_raw():
                content += part
    except httpx2.RemoteProtocolError:
        return bytes(content) + b"<broken off>"
    return bytes(content)


def told_text(got: bytes) -> str:
    events = [e[6:] for e in got.split(b"\n\n") if e.startswith(b'data: {"id"')]
    return text_of([json.loads(event) for event in events])


@pytest.mark.parametrize("status", [400, 404, 408, 409, 429, 500, 502, 503, 529 - 25])
def test_a_status(status: int) -> None:
    with serve_broken(Rule(kind="status", status=status, retry_after=1.5)) as server:
        reply = post(server, body("small", "hi"))
        assert (reply.status_code, reply.headers["retry-after"]) == (status, "1.5")
        assert reply.json()["error"]["type"] == "server_error"
        until(lambda: len(server.log) == 1)
        record = server.log[0]
        assert (record.status, record.fault, record.prompt) == (status, "status", "hi")
        assert (record.prompt_tokens, record.completion_tokens) == (0, 0)
        assert server.stats().answers == 0


def test_a_rate_limit_tells_when_to_come_again() -> None:
    rules = [
        Rule(kind="rate_limit", contains="plain"),
        Rule(kind="rate_limit", contains="seconds", retry_after=2),
        Rule(kind="rate_limit", contains="ms", retry_after=0.25, form="ms"),
        Rule(kind="rate_limit", contains="date", retry_after=30, form="date"),
    ]
    with serve_broken(*rules) as server:
        replies = {text: post(server, body("small", text)) for text in ("plain", "seconds", "ms")}
        dated = post(server, body("small", "date"))
    assert {reply.status_code for reply in replies.values()} == {429}
    assert "retry-after" not in replies["plain"].headers
    assert replies["seconds"].headers["retry-after"] == "2"
    assert replies["ms"].headers["retry-after-ms"] == "250"
    wait = parsedate_to_datetime(dated.headers["retry-after"]) - parsedate_to_datetime(
        dated.headers["date"]
    )
    assert 29 <= wait.total_seconds() <= 33


def test_a_real_rate() -> None:
    with serve_broken(Rule(kind="rate", per_second=0.001, burst=3)) as server:
        codes = [post(server, body("small", "hi")) for _ in range(5)]
        assert [reply.status_code for reply in codes] == [200, 200, 200, 429, 429]
        assert 900 < float(codes[-1].headers["retry-after"]) <= 1000


def test_a_bucket_fills_as_time_goes() -> None:
    now = [0.0]
    rule = Rule(kind="rate", per_second=2.0, burst=2)
    injector = FaultInjector(Faults(rules=[rule]), clock=lambda: now[0])

    def take() -> float:
        return injector.next("m", "a prompt", {})[1]

    assert [take() for _ in range(3)] == [0, 0, 0.5]
    now[0] = 0.25
    assert take() == 0.25
    now[0] = 0.5
    assert take() == 0
    now[0] = 100
    assert [take() for _ in range(3)] == [0, 0, 0.5]


def test_errors_that_the_client_knows() -> None:
    rules = [
        Rule(kind="unauthorized", contains="key"),
        Rule(kind="context_length", contains="long"),
        Rule(kind="unsupported_field", field="max_tokens"),
    ]
    with serve_broken(*rules) as server:
        client = openai.OpenAI(base_url=server.base_url, api_key="x", max_retries=0)

        def ask(text: str, **fields: Any) -> Any:
            messages: Any = [{"role": "user", "content": text}]
            return client.chat.completions.create(model="small", messages=messages, **fields)

        with client:
            with pytest.raises(openai.AuthenticationError):
                ask("key")
            with pytest.raises(openai.BadRequestError) as long:
                ask("long")
            with pytest.raises(openai.BadRequestError) as field:
                ask("hi", max_tokens=5)
            assert ask("hi", max_completion_tokens=50).choices[0].message.content == ANSWER
    assert long.value.code == "context_length_exceeded"
    assert (field.value.code, field.value.param) == ("unsupported_parameter", "max_tokens")


@pytest.mark.parametrize(("after", "text"), [(0, ""), (2, "four and"), (9, ANSWER)])
@pytest.mark.parametrize("kind", ["break", "truncate", "error_event"])
def test_a_stream_that_is_cut_off(kind: Kind, after: int, text: str) -> None:
    with serve_broken(Rule(kind=kind, after=after)) as server:
        content = raw_stream(server)
        assert told_text(content) == text
        assert content.endswith(b"<broken off>") == (kind == "break")
        assert (b'data: {"error"' in content) == (kind == "error_event")
        assert b"[DONE]" not in content
        assert b"stop" not in content
        until(lambda: len(server.log) == 1)
        record = server.log[0]
        assert (record.status, record.fault) == (200, kind)
        assert not record.complete
        assert server.stats().answers == 0
        assert record.prompt_tokens == 4
        assert record.completion_tokens >= min(after, 4)


def test_whole_replies_that_are_cut_off() -> None:
    cut: list[Kind] = ["break", "truncate", "error_event", "bad_json", "bad_sse"]
    with serve_broken(*(Rule(kind=kind, contains=kind) for kind in cut)) as server:
        with pytest.raises(httpx2.RemoteProtocolError):
            post(server, body("small", "break"))
        for text in ("truncate", "bad_json", "bad_sse"):
            with pytest.raises(ValueError, match=r"Expecting|Unterminated|decode|Extra"):
                post(server, body("small", text)).json()
        assert "error" in post(server, body("small", "error_event")).json()
        assert post(server, body("small", "well")).json()["usage"]["completion_tokens"] == 4


@pytest.mark.parametrize("stream", [True, False])
def test_a_reply_that_hangs(stream: bool) -> None:
    with serve_broken(Rule(kind="hang", after=1)) as server:
        with pytest.raises(httpx2.ReadTimeout):
            httpx2.post(
                server.base_url + "/chat/completions",
                json=body("small", "hi", stream=stream),
                timeout=0.2,
            )
        until(lambda: len(server.log) == 1)
        assert (server.log[0].fault, server.log[0].complete) == ("hang", False)


@pytest.mark.parametrize("kind", ["delay", "stall", "slow"])
def test_replies_that_take_their_time(kind: Kind) -> None:
    seconds = 0.1 if kind == "slow" else 0.3
    with serve_broken(Rule(kind=kind, seconds=seconds)) as server:
        for stream in (True, False):
            assert post(server, body("small", "hi", stream=stream)).status_code == 200
        assert text_of(read_stream(server, "hi")) == ANSWER
        until(lambda: len(server.log) == 3)
        assert all(record.seconds >= 0.29 and record.complete for record in server.log)


@pytest.mark.parametrize("kind", ["bad_json", "bad_sse"])
@pytest.mark.parametrize("after", [0, 2, 9])
def test_malformed_chunks(kind: Kind, after: int) -> None:
    with serve_broken(Rule(kind=kind, after=after)) as server:
        events = [e.removeprefix(b"data: ") for e in raw_stream(server).split(b"\n\n")]
        good = 0
        for event in events:
            try:
                good += bool(json.loads(event))
            except ValueError:
                good += 0
        # of the first, four of text, the finish and the usage all but one; not [DONE] and the end
        assert (good, len(events)) == (6, 9)


@pytest.mark.parametrize(
    ("how", "usage"),
    [
        ("zero", (0, 0, 0)),
        ("huge", (5000, 5000, 9000)),
        ("negative", (-5, -5, -9)),
        ("null", (None, None, None)),
        ("text", ("4", "4", "8")),
        ("omit", None),
    ],
)
def test_lies_about_usage(how: Any, usage: Any) -> None:
    with serve_broken(Rule(kind="usage", usage=how)) as server:
        last = read_stream(server, "hi")[-1]
        whole = post(server, body("small", "hi")).json()
        if usage is None:
            assert last["choices"]
            assert "usage" not in whole
        else:
            assert last["usage"] == whole["usage"]
            names = ("prompt_tokens", "completion_tokens", "total_tokens")
            assert tuple(last["usage"][name] for name in names) == usage
        until(lambda: len(server.log) == 2)
        assert {(r.prompt_tokens, r.completion_tokens) for r in server.log} == {(4, 4)}


def test_answers_that_are_not_what_they_should_be() -> None:
    rules = [
        Rule(kind="empty", contains="empty"),
        Rule(kind="wrong_model", contains="model", reply_model="an impostor"),
        Rule(kind="finish", contains="filter", finish="content_filter"),
    ]
    with serve_broken(*rules) as server:
        empty = read_stream(server, "empty")
        assert (text_of(empty), empty[-1]["usage"]["completion_tokens"]) == ("", 4)
        assert post(server, body("small", "empty")).json()["choices"][0]["message"]["content"] == ""
        assert {event["model"] for event in read_stream(server, "model")} == {"an impostor"}
        finish = [e["choices"][0]["finish_reason"] for e in read_stream(server, "filter")[:-1]]
        assert finish[-2:] == [None, "content_filter"]
        until(lambda: len(server.log) == 4)
        assert [record.fault for record in server.log] == [
            "empty", "empty", "wrong_model", "finish",
        ]  # fmt: skip


def test_several_things_go_wrong_at_once_but_only_one_end() -> None:
    rules = [
        Rule(kind="delay", seconds=0),
        Rule(kind="usage", usage="zero"),
        Rule(kind="truncate", after=1),
        Rule(kind="break", after=1),
        Rule(kind="status", contains="refuse"),
        Rule(kind="rate_limit", contains="refuse"),
    ]
    with serve_broken(*rules) as server:
        assert not raw_stream(server).endswith(b"<broken off>")
        assert post(server, body("small", "refuse")).status_code == 500
        until(lambda: len(server.log) == 2)
        assert server.log[0].fault == "delay+usage+truncate"
        assert server.log[1].fault == "delay+status"
        assert server.stats().faults == {"delay": 2, "usage": 1, "truncate": 1, "status": 1}


def kinds(injector: FaultInjector, prompts: list[str], model: str = "small") -> list[bool]:
    return [bool(injector.next(model, prompt, {})[0]) for prompt in prompts]


def test_rules_hold_when_they_say() -> None:
    def make_injector(rule: Rule) -> FaultInjector:
        return FaultInjector(Faults(rules=[rule]))

    prompts = ["a", "b", "a", "a", "b"]
    firsts = [True, True, False, False, False]
    assert kinds(make_injector(Rule(kind="status", attempts=1)), prompts) == firsts
    scripted = Rule(kind="status", requests=(0, 3))
    assert kinds(make_injector(scripted), prompts) == [True, False, False, True, False]
    assert kinds(make_injector(Rule(kind="status", times=2)), prompts) == firsts
    assert kinds(make_injector(Rule(kind="status", contains="b")), prompts) == [
        p == "b" for p in prompts
    ]
    assert not any(kinds(make_injector(Rule(kind="status", model="other")), prompts))
    assert all(kinds(make_injector(Rule(kind="status", model="other")), prompts, "other"))
    assert not any(kinds(make_injector(Rule(kind="status", share=0)), prompts))


def test_shares_are_drawn_by_prompt_and_attempt_whatever_the_order() -> None:
    faults = Faults(rules=[Rule(kind="status", share=0.3)], seed=5)
    prompts = [f"question {i}" for i in range(2000)]

    def draw_faults(faults: Faults, order: list[str]) -> dict[str, list[bool]]:
        injector = FaultInjector(faults)
        is_faulty: dict[str, list[bool]] = {prompt: [] for prompt in prompts}
        for prompt in order * 2:
            is_faulty[prompt].append(bool(injector.next("small", prompt, {})[0]))
        return is_faulty

    first, second = draw_faults(faults, prompts), draw_faults(faults, prompts[::-1])
    assert first == second
    counts = Counter(sum(both) for both in first.values())
    assert 500 < counts[1] + 2 * counts[2] < 1400  # 1,200 of 4,000 expected
    assert counts[1] > 500  # the second attempt is another draw
    assert draw_faults(Faults(rules=faults.rules, seed=6), prompts) != first


@pytest.mark.parametrize("style", DIALECTS)
def test_every_dialect_tells_the_same_answer(style: Dialect) -> None:
    persona = Persona(style=style, reasoning=3, cached=2, cost=0.5)
    with serve_broken(small=persona) as server:
        events = read_stream(server, "hi")
        message = post(server, body("small", "hi")).json()["choices"][0]["message"]
        quiet = read_stream(server, "hi", chat_template_kwargs={"enable_thinking": False})
        quieter = read_stream(server, "hi", enable_thinking=False)
        short = read_stream(server, "hi", max_tokens=2)
        until(lambda: len(server.log) == 5)
        log = server.log
    usage = events[-1]["usage"]
    assert (usage["prompt_tokens"], usage["completion_tokens"]) == (4, 7)
    assert [record.reasoning_tokens for record in log] == [3, 3, 0, 0, 2]
    assert text_of(quiet) == text_of(quieter) == ANSWER
    assert text_of(short).removeprefix("<think>let me t") == ""
    ends = [e["choices"][0]["finish_reason"] for e in short if e["choices"]]
    assert ends == [None] * (len(ends) - 1) + ["length"]
    assert bool(short[-1]["choices"]) == (style == "deepseek")
    field = {"vllm": "reasoning", "openrouter": "reasoning"}.get(style, "reasoning_content")
    shown = "".join(e["choices"][0]["delta"].get(field, "") for e in events if e["choices"])
    hidden = style in ("openai", "anthropic", "nemotron")
    assert shown == message.get(field, "") == ("" if hidden else "let me think")
    expected = f"<think>let me think</think>{ANSWER}" if style == "nemotron" else ANSWER
    assert text_of(events) == message["content"] == expected
    details = usage.get("completion_tokens_details")
    has_details = style in ("openai", "deepseek", "qwen", "openrouter")
    assert details == ({"reasoning_tokens": 3} if has_details else None)
    assert usage.get("prompt_cache_hit_tokens") == (2 if style == "deepseek" else None)
    assert usage.get("cost") == (0.5 if style == "openrouter" else None)


def test_faults_are_read_from_a_file(tmp_path: Path) -> None:
    path = tmp_path / "faults.yaml"
    path.write_text(
        "seed: 3\nrules:\n  - {kind: break, model: small, after: 2, requests: [0, 3]}\n"
        "personas:\n  small: {style: qwen, reasoning: 2}\n"
    )
    faults = read_faults(path)
    assert faults.rules == [Rule(kind="break", model="small", after=2, requests=(0, 3))]
    assert faults.persona_of("small") == Persona(style="qwen", reasoning=2)
    assert faults.persona_of("other") == Persona()
    path.write_text("")
    assert read_faults(path) == Faults()


@pytest.mark.parametrize(
    "text",
    [
        "rules: [{kind: explode}]",
        "rules: [{kind: status, unheard: 1}]",
        "rules: [{kind: status, share: 2}]",
        "rules: [{}]",
        "rules: 3",
        "unheard: 1",
        "[]]",
        "- 1",
        "rules: [{kind: status, status: 200}]",
        "personas: {small: {style: nobody}}",
        "personas: {small: {reasoning: -1}}",
        "\x00",
        "{" * 5000,
    ],
)
def test_files_that_are_no_faults(tmp_path: Path, text: str) -> None:
    path = tmp_path / "faults.yaml"
    path.write_text(text)
    with pytest.raises(FormatError, match=r"faults\.yaml"):
        read_faults(path)
    with pytest.raises(FormatError, match="no such file"):
        read_faults(tmp_path / "nothing.yaml")


@pytest.mark.parametrize(
    "fields", [{"share": -1}, {"status": 700}, {"per_second": 0}, {"seconds": -1}, {"after": -1}]
)
def test_rules_that_make_no_sense(fields: dict[str, Any]) -> None:
    with pytest.raises(ConfigError):
        Rule(kind="status", **fields)
    with pytest.raises(PrefillRouterError):
        Persona(cost=-1)
