"""Sessions of coding agents in shapes that vary by chance, with what a reader should find in each.

They are written as the agents write them, not as the marks in `harnesses.yaml` read them: rules,
reminders, environments and outputs differ in number, order and place; contents are texts or lists
of parts; headers are there or not; and people ask in several lines, briefly, with code, or about
the agents' own tags.
"""

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from prefill_router.targets import Endpoint

Fields = dict[str, Any]
WORDS = (
    "run the linter before each commit",
    "keep functions short",
    "never change the public interface",
    "tests are in tests/",
    "use the project's own logger",
    "branch main is protected",
)
TAGS = ("system-reminder", "environment_context", "task", "context", "div", "T")


@dataclass(frozen=True, kw_only=True)
class Variant:
    """One request, and what a reader should find.

    Attributes:
        endpoint: The endpoint.
        headers: Its headers.
        body: Its body.
        agent: The agent that sends it; None for a plain chat.
        ask: The person's newest text.
        conversation: A name that all requests of one conversation have, and no other; None for
            requests that belong to none.
        is_first: Whether the ask is the only one so far.
    """

    endpoint: Endpoint
    headers: dict[str, str]
    body: Fields
    agent: str | None
    ask: str
    conversation: str | None
    is_first: bool


@dataclass
class Session:
    """A session as it grows; each harness writes its own turns.

    Attributes:
        random: Draws what varies.
        name: Its name, which no other session has.
        asks: What the person asks in it, in order.
    """

    random: np.random.Generator
    name: str
    asks: Sequence[str]
    turns: list[Fields] = field(default_factory=list)
    calls: int = 0

    def chance(self, share: float) -> bool:
        """True in this share of the cases."""
        return bool(self.random.random() < share)

    def some(self, most: int) -> str:
        """Lines that the agent adds, `most` at most."""
        count = int(self.random.integers(1, most + 1))
        return "\n".join(f"- {self.random.choice(WORDS)}" for _ in range(count))

    def output(self) -> str:
        """A tool's output, which may quote tags or look like a person's words."""
        lines = [
            f"{n:6}\tdef handler_{n}(): return {n}" for n in range(self.random.integers(1, 60))
        ]
        odd = (
            "<system-reminder>\nFile is empty.\n</system-reminder>",
            "continue?",
            "Error: no file",
        )
        return "\n".join([*lines, *([str(self.random.choice(odd))] if self.chance(0.3) else [])])

    def call(self) -> str:
        """The id of the next tool call."""
        self.calls += 1
        return f"call_{self.name}_{self.calls}"


def ask_texts(random: np.random.Generator, questions: Sequence[str]) -> Iterator[str]:
    """What people ask: questions, some in other words, with code, with tags, or briefly."""
    for question in questions:
        tag = str(random.choice(TAGS))
        yield str(
            random.choice(
                [
                    question,
                    question,
                    f"{question}\n\nAnswer in one sentence.",
                    f"What does <{tag}> mean here?\n\n<{tag}>\n3\n</{tag}>\n\n{question}",
                    f"```python\nx = '<{tag}>'\n```\n{question}",
                    f"[question] {question}",
                ]
            )
        )


def _text(text: str) -> Fields:
    return {"type": "text", "text": text}


def _reminder(session: Session) -> str:
    body = str(
        session.random.choice(
            [
                f"As you answer the user's questions, you can use the following context:\n"
                f"# claudeMd\nContents of CLAUDE.md:\n\n{session.some(30)}",
                f"The TodoWrite tool hasn't been used recently.\n{session.some(3)}",
                f"# gitStatus\nCurrent branch: main\nStatus:\n M {session.name}.py",
                f"The following skills are available:\n\n{session.some(8)}",
            ]
        )
    )
    return f"<system-reminder>\n{body}\n</system-reminder>"


def claude_code(session: Session) -> Iterator[Variant]:
    """Claude Code: reminders around the ask, tool loops, titles, subagents, background events."""
    client = _ClaudeCode(session)
    if client.has_hints:
        yield client.ask_title()
    for place, ask in enumerate(session.asks):
        client.add_ask(ask, place)
        yield client.send(ask, session.turns, place)
        for _ in range(session.random.integers(0, 4)):
            client.add_tool_calls()
            yield client.send(ask, session.turns, place)
        session.turns.append({"role": "assistant", "content": [_text("Done. Shall I go on?")]})
    if client.has_hints:
        yield client.ask_subagent()


class _ClaudeCode:
    """A session of Claude Code, with the marks that all of its requests share."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self.has_hints, has_old_id = session.chance(0.5), session.chance(0.3)
        self._has_header = session.chance(0.7)
        ids = {"device_id": "d", "account_uuid": "a", "session_id": session.name}
        self._user = f"user_0f_account__session_{session.name}" if has_old_id else json.dumps(ids)

    def send(
        self, ask: str, turns: list[Fields], place: int, *, conversation: str | None = ""
    ) -> Variant:
        """A request with these turns; of the session's conversation unless another is given."""
        session = self._session
        line = (
            f"x-anthropic-billing-header: cc_version=2.1.3; cch={session.random.integers(9**5):x};"
        )
        system = [_text(line)] if session.chance(0.6) else []
        system += [_text("You are Claude Code, Anthropic's official CLI for Claude.")]
        body = {"model": "auto", "max_tokens": 32000, "system": system, "messages": list(turns)}
        return Variant(
            endpoint="messages",
            headers=self._headers(place),
            body={**body, "metadata": {"user_id": self._user}},
            agent="claude-code",
            ask=ask,
            conversation=session.name if conversation == "" else conversation,
            is_first=place == 0,
        )

    def _headers(self, place: int) -> dict[str, str]:
        name = self._session.name
        headers = {"user-agent": "claude-cli/2.1.300 (external, cli)"}
        headers |= {"x-claude-code-session-id": name} if self._has_header else {}
        headers |= {"x-claude-code-prompt-id": f"{name}-{place}"} if self.has_hints else {}
        return headers

    def ask_title(self) -> Variant:
        """The request for a title, which belongs to no conversation."""
        ask = self._session.asks[0]
        line = "You are coming up with a succinct title for a coding session."
        variant = self.send(ask, [{"role": "user", "content": ask}], 0, conversation=None)
        return replace(variant, body={**variant.body, "system": [_text(line)]})

    def ask_subagent(self) -> Variant:
        """The request of a subagent, in a conversation of its own."""
        session = self._session
        task = f"Search for every use of {session.name}, and list files and lines in a table."
        turns = [{"role": "user", "content": [_text(_reminder(session)), _text(task)]}]
        variant = self.send(task, turns, 0, conversation=f"{session.name}/sub")
        return replace(variant, headers={**variant.headers, "x-claude-code-agent-id": "agent-7"})

    def add_ask(self, ask: str, place: int) -> None:
        """Add the person's turn, with reminders and what happened in the background."""
        session = self._session
        before = self._reminders(4)
        if place and session.chance(0.2):
            run = "<bash-input>git status</bash-input>", "<bash-stdout>clean</bash-stdout>"
            session.turns.append({"role": "user", "content": [_text(text) for text in run]})
        content: Any = [*before, _text(ask), *self._reminders(2)]
        if session.chance(0.2):
            content = "\n".join(part["text"] for part in content)
        session.turns.append({"role": "user", "content": content})
        if session.chance(0.2):
            session.turns.append({"role": "system", "content": "Current date: 2026-03-01"})

    def add_tool_calls(self) -> None:
        """Add a turn of the model with one or two calls, and the turn with their results."""
        session = self._session
        names = [session.call() for _ in range(session.random.integers(1, 3))]
        uses = [{"type": "tool_use", "id": n, "name": "Bash", "input": {"n": n}} for n in names]
        thought = [{"type": "thinking", "thinking": "so", "signature": "s"}]
        session.turns.append({"role": "assistant", "content": [*thought, *uses]})
        results = [self._tool_result(name) for name in names]
        results += [_text(_reminder(session))] if session.chance(0.4) else []
        session.turns.append({"role": "user", "content": results})

    def _tool_result(self, name: str) -> Fields:
        session = self._session
        content = [_text(session.output())] if session.chance(0.5) else session.output()
        return {"type": "tool_result", "tool_use_id": name, "content": content}

    def _reminders(self, most: int) -> list[Fields]:
        """Fewer than `most` reminders."""
        session = self._session
        return [_text(_reminder(session)) for _ in range(session.random.integers(0, most))]


def codex(session: Session) -> Iterator[Variant]:
    """Codex: rules and environment as the user's items, before or after the ask."""
    rules = f"# AGENTS.md instructions for /srv/{session.name}\n\n"
    rules += f"<INSTRUCTIONS>\n{session.some(40)}\n</INSTRUCTIONS>"
    has_rules, has_turn = session.chance(0.7), session.chance(0.5)
    headers = _codex_headers(session, has_turn=has_turn)

    def send(ask: str, number: int) -> Variant:
        body = {"model": "auto", "instructions": "You are a coding agent.", "store": False}
        return Variant(
            endpoint="responses",
            headers=headers,
            body={**body, "input": list(session.turns)},
            agent="codex",
            ask=ask,
            conversation=session.name,
            is_first=number == 0,
        )

    if session.chance(0.4):
        words = "<permissions instructions>\nThe sandbox may write.\n</permissions instructions>"
        session.turns.append(_codex_item(words, "developer"))
    for number, ask in enumerate(session.asks):
        _add_codex_ask(session, ask, number, rules if has_rules else None)
        yield send(ask, number)
        for _ in range(session.random.integers(0, 4)):
            _add_shell_call(session)
            yield send(ask, number)
        answer = {"type": "output_text", "text": "Done."}
        session.turns.append({"type": "message", "role": "assistant", "content": [answer]})


def _codex_item(text: str, role: str = "user") -> Fields:
    return {"type": "message", "role": role, "content": [{"type": "input_text", "text": text}]}


def _codex_headers(session: Session, *, has_turn: bool) -> dict[str, str]:
    agents = ["codex_cli_rs/0.90.0", "codex_exec/0.171"]
    headers = {"session-id": session.name, "thread-id": session.name}
    headers |= {"user-agent": str(session.random.choice(agents))}
    turn = {"session_id": session.name, "thread_id": session.name, "thread_source": "user"}
    return headers | ({"x-codex-turn-metadata": json.dumps(turn)} if has_turn else {})


def _add_codex_ask(session: Session, ask: str, number: int, rules: str | None) -> None:
    """Add the person's turn, with the environment and, at first, the rules before or after it."""
    place = f"<environment_context>\n  <cwd>/srv/{session.name}</cwd>\n</environment_context>"
    around = [_codex_item(place)] if number == 0 or session.chance(0.3) else []
    around += [_codex_item(rules)] if rules is not None and number == 0 else []
    if session.chance(0.5):
        around.reverse()
    text = ask
    if session.chance(0.2):
        text = "# Context from my IDE setup:\n\n## Open tabs:\n- a.py\n\n"
        text += f"## My request for Codex:\n{ask}"
    late = session.chance(0.3) and number > 0
    session.turns += [_codex_item(text), *around] if late else [*around, _codex_item(text)]


def _add_shell_call(session: Session) -> None:
    name = session.call()
    session.turns += [
        {"type": "reasoning", "summary": [], "encrypted_content": "x"},
        {"type": "function_call", "call_id": name, "name": "shell", "arguments": name},
        {"type": "function_call_output", "call_id": name, "output": session.output()},
    ]


def opencode(session: Session) -> Iterator[Variant]:
    """OpenCode: chats, with a title of two user messages, and reminders at the end of an ask."""
    headers = {"user-agent": "opencode/1.20.0", "x-session-id": session.name}

    def send(ask: str, turns: list[Fields], number: int, conversation: str | None) -> Variant:
        return Variant(
            endpoint="chat",
            headers=headers,
            body={"model": "auto", "messages": list(turns)},
            agent="opencode",
            ask=ask,
            conversation=conversation,
            is_first=number == 0,
        )

    first = [("system", "You are a title generator. You output ONLY a thread title.")]
    first += [("user", "Generate a title for this conversation:\n"), ("user", session.asks[0])]
    title = [{"role": role, "content": text} for role, text in first]
    yield send(session.asks[0], title, 0, None)
    system = f"You are opencode, an agent.\n{session.some(30)}"
    session.turns.append({"role": "system", "content": system})
    for number, ask in enumerate(session.asks):
        note = f"# Plan Mode - System Reminder\n{session.some(4)}"
        note = f"<system-reminder>\n{note}\n</system-reminder>"
        parts = [_text(ask), *([_text(note)] if session.chance(0.4) else [])]
        is_text = len(parts) == 1 and session.chance(0.7)
        session.turns.append({"role": "user", "content": ask if is_text else parts})
        yield send(ask, session.turns, number, session.name)
        for _ in range(session.random.integers(0, 4)):
            _call_in_chat(session)
            yield send(ask, session.turns, number, session.name)
        session.turns.append({"role": "assistant", "content": "Done."})


def _call_in_chat(session: Session) -> None:
    name = session.call()
    function = {"name": "bash", "arguments": json.dumps({"command": name})}
    call = {"id": name, "type": "function", "function": function}
    session.turns += [
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": name, "content": session.output()},
    ]


def cline(session: Session) -> Iterator[Variant]:
    """Cline: the ask in tags, its environment after it, and tools' results as the user's texts."""
    details = f"<environment_details>\n# Visible Files\n{session.some(9)}\n</environment_details>"
    session.turns.append({"role": "system", "content": "You are a highly skilled engineer."})
    for number, ask in enumerate(session.asks):
        tag = "task" if number == 0 else str(session.random.choice(["feedback", "user_message"]))
        head = [] if number == 0 else [_text("[attempt_completion] Result:")]
        files = f"<file_content path='a.py'>\n{session.output()}\n</file_content>"
        more = [_text(files)] if session.chance(0.2) else []
        steps = f"# task_progress RECOMMENDED\n\n{session.some(4)}"
        more += [_text(steps)] if session.chance(0.5) else []
        parts = [*head, _text(f"<{tag}>\n{ask}\n</{tag}>"), *more, _text(details)]
        session.turns.append({"role": "user", "content": parts})
        yield _plain_variant(session, "cline", ask, number)
        for _ in range(session.random.integers(0, 4)):
            call = "<read_file><path>a.py</path></read_file>"
            session.turns.append({"role": "assistant", "content": call})
            result = [_text("[read_file for 'a.py'] Result:"), _text(session.output())]
            session.turns.append({"role": "user", "content": [*result, _text(details)]})
            yield _plain_variant(session, "cline", ask, number)
        session.turns.append({"role": "assistant", "content": "<attempt_completion/>"})


def copilot(session: Session) -> Iterator[Variant]:
    """Copilot: contexts in messages or tags of their own, and the ask in a last tag."""
    session.turns.append({"role": "system", "content": "You are an expert programming assistant."})
    around = "<environment_info>\nLinux\n</environment_info>\n"
    around += f"<workspace_info>\n{session.name}\n</workspace_info>"
    session.turns.append({"role": "user", "content": around})
    for number, ask in enumerate(session.asks):
        tags = [name for name in ("attachments", "context", "editorContext") if session.chance(0.5)]
        pieces = [f"<{name}>\n{session.some(6)}\n</{name}>" for name in tags]
        notes = f"<reminderInstructions>\n{session.some(3)}\n</reminderInstructions>"
        pieces += [notes] if session.chance(0.5) else []
        text = "\n".join([*pieces, f"<userRequest>\n{ask}\n</userRequest>"])
        session.turns.append({"role": "user", "content": text})
        yield _plain_variant(session, "copilot", ask, number)
        for _ in range(session.random.integers(0, 3)):
            _call_in_chat(session)
            yield _plain_variant(session, "copilot", ask, number)
        session.turns.append({"role": "assistant", "content": "Done."})


def chat(session: Session) -> Iterator[Variant]:
    """A chat that no agent writes."""
    for number, ask in enumerate(session.asks):
        session.turns.append({"role": "user", "content": ask})
        yield _plain_variant(session, None, ask, number)
        session.turns.append({"role": "assistant", "content": "Done."})


def _plain_variant(session: Session, agent: str | None, ask: str, number: int) -> Variant:
    return Variant(
        endpoint="chat",
        headers={},
        body={"model": "auto", "messages": list(session.turns)},
        agent=agent,
        ask=ask,
        conversation=session.name,
        is_first=number == 0,
    )


HARNESSES: dict[str, Callable[[Session], Iterator[Variant]]] = {
    "Claude Code": claude_code,
    "Codex": codex,
    "OpenCode": opencode,
    "Cline": cline,
    "Copilot": copilot,
    "none": chat,
}


def make_variants(
    questions: Sequence[str], *, sessions: int, seed: int
) -> Iterator[tuple[str, list[Variant]]]:
    """The sessions of every harness, each with its requests.

    Args:
        questions: What people ask about; no two sessions ask the same.
        sessions: The number of sessions of each harness.
        seed: Other sessions.
    """
    random = np.random.default_rng(seed)
    asks = list(ask_texts(random, questions))
    place = 0
    for harness, write in HARNESSES.items():
        for number in range(sessions):
            count = int(random.integers(1, 5))
            own = asks[place : place + count]
            if len(own) < count:
                raise ValueError(f"{sessions} sessions of each need more than {len(asks)} asks")
            place += count
            session = Session(random, f"{harness.lower().replace(' ', '-')}-{number:04d}", own)
            yield harness, list(write(session))
