"""Sessions of coding agents, recorded and made up, with the requests that an agent would send.

A person asks, the agent answers in steps that call tools, and each step sends the whole
conversation again. Claude Code marks what is to be cached; Codex has no marks. Beside the
conversation are titles, subagents, and summaries after which it begins anew.
"""

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from prefill_router.targets import Endpoint, Pool
from prefill_router_gateway.api.routed_calls import read_incoming
from prefill_router_gateway.records import RoutingRequest
from prefill_router_gateway.settings import GatewaySettings

SAMPLES = Path("../shared/samples/agents")
ASKS = (
    "Rename the variable total to amount in cart.py.",
    "What does the function parse_line return?",
    "Add a test for an empty basket to tests/test_cart.py.",
    "Why does test_checkout fail only on Mondays? Find the cause and fix it.",
    "Refactor the payment module so that each provider is a class with a common interface.",
    "Think step by step: our async queue loses jobs when the database fails over. Analyze the "
    "race, design a fix, then implement it with tests and a migration.",
)
"""What people ask, the easiest first."""
_FILLER = "def handler(request): return respond(request, status=200)\n" * 4000
_MARK = {"cache_control": {"type": "ephemeral"}}
_SUMMARY = "Your task is to create a detailed summary of the conversation so far"
_TITLE = "You are coming up with a succinct title for a coding session."
_START = 1_790_000_000.0
_MOST_TOKENS = 120_000
"""A conversation of more tokens is summarised, and begins anew."""
Random = np.random.Generator


@dataclass(frozen=True, kw_only=True)
class Step:
    """One request of a session, and its answer.

    Attributes:
        question: What the gateway reads of it.
        messages: Its turns, as LiteLLM gets them.
        thread: The requests that begin alike, each with the one before it as its prefix.
        task: The person's or subagent's ask that it belongs to, in all sessions.
        is_task: Whether its answer is part of that task, and not a title or a summary.
        correctness: Every target's probability of solving the task.
        output_tokens: Tokens of its answer.
        call: The id of the tool call in its answer; None for none.
    """

    question: RoutingRequest
    messages: list[dict[str, Any]]
    thread: str
    task: int
    is_task: bool
    correctness: np.ndarray
    output_tokens: int
    call: str | None

    @property
    def tokens(self) -> int:
        """Its input tokens, for every target."""
        return -(-self.question.text_bytes // 4)


@dataclass
class _Agent:
    """A coding agent at work; `steps` is what it has sent."""

    random: Random
    pool: Pool
    kind: str
    name: str
    at: float
    skill: np.ndarray
    tasks: Iterator[int]
    settings: GatewaySettings = field(default_factory=GatewaySettings)
    steps: list[Step] = field(default_factory=list)
    calls: int = 0

    def send(self, thread: "_Thread", **fields: Any) -> None:
        """Send what a thread has so far."""
        path, body, headers = thread.request()
        incoming = read_incoming(
            path,
            json.dumps(body).encode(),
            [(name.encode(), value.encode()) for name, value in headers.items()],
            key=None,
            settings=self.settings,
            pool=self.pool,
            lam=None,
            at=self.at,
        )
        values = {"output_tokens": int(self.random.integers(60, 500)), "call": None, **fields}
        messages = body.get("messages") or body["input"]
        step = Step(question=incoming.question, messages=messages, thread=thread.key, **values)
        self.steps.append(step)
        self.at += float(self.random.uniform(4, 25))

    def text(self, tokens: int) -> str:
        """A text of this many tokens."""
        return _FILLER[: 4 * tokens]


@dataclass
class _Thread:
    """A conversation as it grows, in the shape of its agent's requests."""

    agent: _Agent
    key: str
    system: str
    headers: Mapping[str, str]
    turns: list[dict[str, Any]] = field(default_factory=list)

    @property
    def is_claude(self) -> bool:
        return self.agent.kind == "claude"

    def request(self) -> tuple[Endpoint, dict[str, Any], Mapping[str, str]]:
        """The path, the body and the headers of its next request."""
        if not self.is_claude:
            own = {"instructions": self.system, "input": self.turns}
            return "responses", {"model": "auto", **own}, self.headers
        *before, last = self.turns
        parts = [*last["content"][:-1], {**last["content"][-1], **_MARK}]
        system = [{"type": "text", "text": self.system, **_MARK}]
        turns = [*before, {**last, "content": parts}]
        body: dict[str, Any] = {"model": "auto", "max_tokens": 8000}
        body |= {"system": system, "messages": turns}
        return "messages", body, self.headers

    def say(self, role: str, text: str) -> None:
        """Add a text."""
        kind = "text" if self.is_claude else "output_text" if role == "assistant" else "input_text"
        self.turns.append({"role": role, "content": [{"type": kind, "text": text}]})

    def call(self, name: str, tokens: int, *, result: str) -> None:
        """Add a tool call of this many tokens, and its result."""
        command = self.agent.text(tokens)
        if not self.is_claude:
            self.turns += [
                {"type": "function_call", "call_id": name, "name": "shell", "arguments": command},
                {"type": "function_call_output", "call_id": name, "output": result},
            ]
            return
        use = {"type": "tool_use", "id": name, "name": "Bash", "input": {"command": command}}
        output = {"type": "tool_result", "tool_use_id": name, "content": result}
        self.turns += [
            {"role": "assistant", "content": [use]},
            {"role": "user", "content": [output]},
        ]


def _chances(agent: _Agent, hardness: float) -> np.ndarray:
    """Every target's probability of solving a task, which noise makes its own."""
    noise = agent.random.normal(0, 0.5, len(agent.skill))
    chances: np.ndarray = 1 / (1 + np.exp(-4 * (agent.skill - hardness) - noise))
    return chances


def _work(agent: _Agent, thread: _Thread, ask: str, count: int, chances: np.ndarray) -> None:
    """Answer an ask in `count` steps."""
    task = next(agent.tasks)
    thread.say("user", ask)
    fields = {"task": task, "is_task": True, "correctness": chances}
    for number in range(count):
        if number == count - 1:
            agent.send(thread, **fields)
            thread.say("assistant", agent.text(agent.steps[-1].output_tokens))
            return
        agent.calls += 1
        name = f"call_{agent.name}_{agent.calls}"
        agent.send(thread, **fields, call=name)
        size = int(min(agent.random.lognormal(6.5, 1.0), 8000))
        thread.call(name, agent.steps[-1].output_tokens, result=agent.text(size))


def _aside(agent: _Agent, thread: _Thread) -> None:
    """Send a title or a summary, which any target can write."""
    chances = np.full(len(agent.skill), 0.95)
    agent.send(thread, task=next(agent.tasks), is_task=False, correctness=chances)


def _headers(agent: _Agent, sub: str | None = None) -> dict[str, str]:
    if agent.kind == "codex":
        name = agent.name if sub is None else f"{agent.name}-{sub}"
        return {"user-agent": "codex_cli_rs/0.80.0", "session-id": name}
    own = {} if sub is None else {"x-claude-code-agent-id": sub}
    return {
        "user-agent": "claude-cli/2.1.332 (external, cli)",
        "x-claude-code-session-id": agent.name,
        **own,
    }


def _summarise(agent: _Agent, thread: _Thread, times: int) -> _Thread:
    """Have the conversation summarised; the one that goes on from the summary."""
    thread.say("user", _SUMMARY)
    _aside(agent, thread)
    after = _Thread(agent, f"{agent.name}/{times}", thread.system, thread.headers)
    after.say("user", "The conversation so far, in short: " + agent.text(1500))
    after.say("assistant", "I have read it.")
    return after


def _session(agent: _Agent, steps: int) -> list[Step]:
    """A session with about this many steps in its main conversation."""
    random = agent.random
    prompt = agent.text(int(random.integers(4_000, 16_000)))
    opening = "You are Claude Code.\n" if agent.kind == "claude" else "You are a coding agent.\n"
    thread = _Thread(agent, agent.name, opening + prompt, _headers(agent))
    left, summaries = steps, 0
    if agent.kind == "claude":
        title = _Thread(agent, f"{agent.name}/title", _TITLE, _headers(agent))
        title.say("user", ASKS[0])
        _aside(agent, title)
    while left > 0:
        level = int(random.integers(len(ASKS)))
        hardness = (level + random.uniform(0, 1)) / len(ASKS)
        count = min(left, 1 + int(random.geometric(1 / (2 + 16 * hardness))))
        left -= count
        ask = f"{ASKS[level]} (in part {left} of {agent.name}, and nowhere else in this project)"
        if count > 3 and random.random() < 0.3:
            _delegate(agent, int(random.integers(3, 10)), hardness / 2)
        _work(agent, thread, ask, count, _chances(agent, hardness))
        agent.at += float(min(random.lognormal(4.2, 1.2), 7200))
        if agent.steps[-1].tokens > _MOST_TOKENS:
            summaries += 1
            thread = _summarise(agent, thread, summaries)
    return agent.steps


def _delegate(agent: _Agent, count: int, hardness: float) -> None:
    """Have a subagent work before the main conversation goes on."""
    sub = f"agent-{agent.calls}"
    system = "You are a subagent.\n" + agent.text(3000)
    thread = _Thread(agent, f"{agent.name}/{sub}", system, _headers(agent, sub))
    _work(agent, thread, f"Search the repository for {sub}.", count, _chances(agent, hardness))


def make_sessions(pool: Pool, skill: np.ndarray, *, count: int, seed: int) -> list[list[Step]]:
    """Made-up sessions of 5 to 60 steps, by turns of Claude Code and of Codex.

    Args:
        pool: The targets.
        skill: How hard a task each solves in half of the cases, from 0 to 1.
        count: The number of sessions.
        seed: Other sessions.
    """
    random, tasks = np.random.default_rng(seed), iter(range(10**9))
    sessions = []
    for number in range(count):
        kind = ("claude", "codex")[number % 2]
        at = _START + 86_400.0 * number
        agent = _Agent(random, pool, kind, f"{kind}-{number:04d}", at, skill, tasks)
        sessions.append(_session(agent, int(random.integers(5, 61))))
    return sessions


RECORDED = (
    ("12_claude_code_title", "title", -1),
    ("01_claude_code_first_turn", "main", -2),
    ("10_claude_code_subagent", "sub", -3),
    ("03_claude_code_after_tool_result", "main", -2),
    ("04_claude_code_tool_result_and_reminder", "main", -2),
    ("05_claude_code_second_ask", "main", -4),
    ("14_claude_code_compaction", "main", -5),
    ("15_claude_code_after_compaction", "after", -6),
)
"""A session of Claude Code by the names of its recorded requests, with their threads and tasks."""


def recorded_session(pool: Pool, skill: np.ndarray, *, seed: int) -> list[Step]:
    """The recorded requests of one session, ten seconds apart."""
    agent = _Agent(np.random.default_rng(seed), pool, "claude", "recorded", _START, skill, iter(()))
    chances = {n: _chances(agent, 0.5) for n in ("main", "after")} | {"sub": _chances(agent, 0.2)}
    steps = []
    for number, (file, thread, task) in enumerate(RECORDED):
        value = json.loads((SAMPLES / f"{file}.json").read_bytes())
        body = json.dumps(value["body"]).encode()
        headers = [(k.encode(), v.encode()) for k, v in value["headers"].items()]
        incoming = read_incoming(
            value["path"].removeprefix("/v1/"),
            body,
            headers,
            key=None,
            settings=agent.settings,
            pool=pool,
            lam=None,
            at=agent.at + 10.0 * number,
        )
        question = incoming.question
        steps.append(
            Step(
                question=question,
                messages=value["body"]["messages"],
                thread=f"recorded/{thread}",
                task=task,
                is_task=question.agent.kind in ("main", "subagent"),
                correctness=chances.get(thread, np.full(len(pool), 0.95)),
                output_tokens=200,
                call=None,
            )
        )
    return steps
