"""Verifiers check what a request asked for; a client's schema can do no harm."""

import builtins
import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from prefill_router.sandbox import Limits
from prefill_router.targets import Target
from prefill_router_gateway.learning import Verifiers
from prefill_router_gateway.learning.verifiers import (
    MOST_CHECKS,
    RequestTest,
    Verification,
    follows,
    request_tests,
)
from prefill_router_gateway.receipts import RepeatedRequest, SampledRequest

PERSON = {
    "type": "object",
    "properties": {"name": {"type": "string"}, "age": {"$ref": "#/$defs/age"}},
    "required": ["name"],
    "additionalProperties": False,
    "$defs": {"age": {"type": "integer", "minimum": 0}},
}


def build_request(**body: Any) -> RepeatedRequest:
    sample = SampledRequest(
        id="pr_1",
        at=0.0,
        share=1.0,
        endpoint="chat",
        body={"messages": [{"role": "user", "content": "Who?"}], **body},
        answer="",
    )
    return RepeatedRequest(sample)


def build_schema_request(schema: dict[str, Any]) -> RepeatedRequest:
    json_schema = {"name": "person", "schema": schema}
    return build_request(response_format={"type": "json_schema", "json_schema": json_schema})


@pytest.mark.parametrize(
    ("answer", "keeps"),
    [
        ('{"name": "Ada", "age": 36}', True),
        ('{"name": "Ada"}', True),
        ('{"age": 36}', False),
        ('{"name": "Ada", "age": -1}', False),
        ('{"name": "Ada", "town": "London"}', False),
        ('["Ada"]', False),
        ("Ada is 36.", False),
        ("[" * 100_000, False),
    ],
)
def test_an_answer_that_breaks_the_schema_is_wrong_and_others_are_left_to_the_judge(
    answer: str, keeps: bool
) -> None:
    verification = Verifiers().verify(build_schema_request(PERSON), answer)
    assert verification == (None if keeps else Verification("schema", 0.0))


def test_any_object_is_asked_for_without_a_schema() -> None:
    request = build_request(response_format={"type": "json_object"})
    assert Verifiers().verify(request, "{}") is None
    assert Verifiers().verify(request, "[]") == Verification("schema", 0.0)
    assert Verifiers().verify(build_request(), "no JSON") is None


@pytest.mark.parametrize(
    ("endpoint", "body"),
    [
        ("responses", {"text": {"format": {"type": "json_schema", "name": "p", "schema": PERSON}}}),
        ("messages", {"output_config": {"format": {"type": "json_schema", "schema": PERSON}}}),
        ("messages", {"output_format": {"type": "json_schema", "schema": PERSON}}),
    ],
)
def test_every_protocol_s_schema_is_checked_and_asked_for_on_the_side(
    endpoint: Any, body: dict[str, Any]
) -> None:
    turns = {"responses": "input", "messages": "messages"}[endpoint]
    request_body = {turns: [{"role": "user", "content": "Who?"}], "max_tokens": 9, **body}
    sample = SampledRequest(
        id="pr_1", at=0.0, share=1.0, endpoint=endpoint, body=request_body, answer=""
    )
    request = RepeatedRequest(sample)
    assert Verifiers().verify(request, '{"age": 36}') == Verification("schema", 0.0)
    response_format = request.options_for(Target(name="small")).request.extra_body[
        "response_format"
    ]
    assert (response_format["type"], response_format["json_schema"]["schema"]) == (
        "json_schema",
        PERSON,
    )
    assert response_format["json_schema"]["name"]


def _doubling(depth: int) -> dict[str, Any]:
    definitions = {str(n): {"allOf": 2 * [{"$ref": f"#/$defs/{n + 1}"}]} for n in range(depth)}
    return {"$ref": "#/$defs/0", "$defs": {**definitions, str(depth): {"type": "string"}}}


@pytest.mark.slow
@pytest.mark.parametrize(
    "schema",
    [
        {"$ref": "#/$defs/missing"},
        {"$ref": "http://127.0.0.1:9/schema.json"},
        {"$ref": "#"},
        {"$schema": "http://127.0.0.1:9/unknown", "type": "string"},
        {"type": "no type"},
        {"pattern": "("},
        {"type": "string", "pattern": "^(a+)+$"},
        {"patternProperties": {"^(a+)+$": {"type": "integer"}}, "additionalProperties": False},
        _doubling(40),
    ],
    ids=str,
)
def test_a_schema_that_says_nothing_or_takes_for_ever_refuses_nothing(
    schema: dict[str, Any],
) -> None:
    value = "a" * 60 + "b"
    assert follows(schema, json.dumps({value: 1} if "patternProperties" in schema else value))


def test_as_many_checks_are_made_as_answers_take() -> None:
    numbers = {"type": "array", "items": {"type": "integer"}}
    assert not follows(numbers, json.dumps([*range(MOST_CHECKS // 10), "one"]))


def test_without_the_package_the_outermost_value_is_checked(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    real = builtins.__import__

    def import_without(name: str, *args: Any, **options: Any) -> Any:
        if name == "jsonschema":
            raise ImportError(name)
        return real(name, *args, **options)

    monkeypatch.setattr(builtins, "__import__", import_without)
    assert not follows(PERSON, "[]")
    assert not follows(PERSON, '{"age": 36}')
    assert follows(PERSON, '{"name": 1}')


def test_the_pattern_refutes_and_the_function_decides(tmp_path: Path) -> None:
    file = tmp_path / "mine.py"
    file.write_text("def grade(task, text):\n    return {'42': 1.0, '41.': 0.0}[text]\n")
    verifiers = Verifiers(pattern=r"^\d+\.?$", function=f"{file}:grade")
    assert verifiers.verify(build_request(), "no number") == Verification("pattern", 0.0)
    assert verifiers.verify(build_request(), "42") == Verification("function", 1.0)
    assert verifiers.verify(build_request(), "41.") == Verification("function", 0.0)
    assert verifiers.verify(build_request(), "7") is None  # the function raised an error


ADD_REQUEST = """Write `add(a, b)`.

assert add(1, 2) == 3
assert add("a", "b") == "ab", "texts too"
assert that it works

>>> add(2, 2)
4
>>> add(0.1, 0.2)  # about
0.3...
"""


def test_tests_are_found_in_a_request() -> None:
    assert request_tests(ADD_REQUEST) == [
        RequestTest("assert add(1, 2) == 3"),
        RequestTest('assert add("a", "b") == "ab", "texts too"'),
        RequestTest("add(2, 2)\n", "4\n"),
    ]
    assert request_tests("Assert your rights.\nassert True\n>>> \nnothing (") == []
    assert request_tests(">>> 1 +\n2") == []


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("bwrap") is None, reason="bubblewrap is not installed")
@pytest.mark.parametrize(
    ("program", "fails"),
    [
        ("def add(a, b):\n    return a + b", False),
        ("def add(a, b):\n    return int(a) + int(b)", True),
        ("def add(a, b):\n    return a + b if a == 1 or a == 'a' else 5", True),
        ("def plus(a, b):\n    return 0", False),  # the tests are about something else
        ("import nothing_like_it\ndef add(a, b):\n    return 0", False),
        ("let add = (a, b) => a + b", False),
        ("print('[[], []]')\ndef add(a, b):\n    raise SystemExit", True),
        ("import sys\ndef add(a, b):\n    sys.stdout.write('x')\n    return a + b", True),
        ("def add(a, b):\n    while True: pass", False),  # left to the judge
    ],
)
def test_a_program_that_fails_the_tests_of_its_request_is_wrong(program: str, fails: bool) -> None:
    request = build_request(messages=[{"role": "user", "content": ADD_REQUEST}])
    limits = Limits(cpu_seconds=1, wall_seconds=2)
    verifiers = Verifiers(tests=True)
    assert verifiers._sandbox is not None
    verifiers._sandbox = replace(verifiers._sandbox, limits=limits)
    verification = verifiers.verify(request, f"Here:\n```python\n{program}\n```\nDone.")
    assert verification == (Verification("tests", 0.0) if fails else None)
    assert verifiers.verify(request, "It adds.") is None
