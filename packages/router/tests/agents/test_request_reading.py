"""Who asks, and what: the person's text is found among an agent's, and kept in full elsewhere."""

from typing import Any

import pytest

from prefill_router.agents import (
    EARLIER,
    SHORT,
    Harness,
    RequestReading,
    Turn,
    load_harnesses,
    read_request,
)

ASK = "Why does test_checkout fail only on Mondays? Find the cause and fix it."
CLAUDE = {"user-agent": "claude-cli/2.1.332 (external, cli)", "x-claude-code-session-id": "s1"}
CODEX = {"user-agent": "codex_cli_rs/0.80.0", "thread-id": "t1", "session-id": "t1"}
METADATA = '{"thread_id": "t1", "turn_id": "u2", "root_turn_id": "u1", "parent_thread_id": "t0"}'
OPENCODE = {"user-agent": "opencode/1.18.33", "x-session-id": "ses_1"}
RULES = "<system-reminder>\nKeep functions short.\n</system-reminder>"
PLACE = "<environment_context>\n  <cwd>/srv</cwd>\n</environment_context>"
DETAILS = "<environment_details>\n# Current Mode\n{} MODE\n</environment_details>"


def user(*texts: str) -> Turn:
    return Turn("user", texts)


def user_text(text: str) -> Turn:
    return Turn("user", (text,), is_one_text=True)


def system(text: str) -> Turn:
    return Turn("system", (text,))


def result(text: str = "fine", *, failed: bool = False) -> Turn:
    return Turn("tool", (text,), has_failed=failed)


ANSWER = Turn("assistant")


def read_turns(*turns: Turn, headers: dict[str, str] | None = None, **more: Any) -> RequestReading:
    return read_request(turns, headers=headers or {}, harnesses=load_harnesses(), **more)


ASKS: dict[str, tuple[dict[str, str], tuple[Turn, ...], str]] = {
    "a whole chat": ({}, (user_text(ASK),), ASK),
    "parts of a chat": ({}, (user("Look:", ASK),), f"Look:\n{ASK}"),
    "about a tag, without an agent": ({}, (user_text(f"{RULES}\n{ASK}"),), f"{RULES}\n{ASK}"),
    "reminders before it": (CLAUDE, (user(RULES, RULES, ASK),), ASK),
    "reminders after it": (CLAUDE, (user(ASK, RULES),), ASK),
    "in one text": (CLAUDE, (user_text(f"{RULES}\n{ASK}"),), ASK),
    "in one text, a reminder at its end": (CLAUDE, (user_text(f"{ASK}\n\n{RULES}\n"),), ASK),
    "about a tag within a line": (
        CLAUDE,
        (user_text("What does <system-reminder>be brief</system-reminder> mean?"),),
        "What does <system-reminder>be brief</system-reminder> mean?",
    ),
    "about a tag that begins a line": (
        CLAUDE,
        (user(RULES, f"{RULES}\nWhat does this mean?"),),
        f"{RULES}\nWhat does this mean?",
    ),
    "after a tool": (CLAUDE, (user(RULES, ASK), ANSWER, result(), user(RULES)), ASK),
    "after an interruption": (
        CLAUDE,
        (user(RULES, "first"), ANSWER, user("[Request interrupted by user for tool use]", ASK)),
        ASK,
    ),
    "after a local command": (
        CLAUDE,
        (user("<local-command-stdout>Set model</local-command-stdout>"), user(ASK)),
        ASK,
    ),
    "after a summary": (
        CLAUDE,
        (user("This session is being continued from a previous conversation. It ..."), user(ASK)),
        ASK,
    ),
    "with rules as an item": (
        CODEX,
        (user("# AGENTS.md instructions for /srv\n\n<INSTRUCTIONS>x</INSTRUCTIONS>"), user(ASK)),
        ASK,
    ),
    "with instructions of a user": (
        CODEX,
        (user("<user_instructions>\nbe brief\n</user_instructions>"), user(PLACE), user(ASK)),
        ASK,
    ),
    "an environment after it": (CODEX, (user(ASK), user(PLACE)), ASK),
    "an aborted turn": (CODEX, (user(ASK), user("<turn_aborted>\nno\n</turn_aborted>")), ASK),
    "from an IDE": (
        CODEX,
        (
            user(
                "# Context from my IDE setup:\n\n## Open tabs:\n- a.py\n\n"
                f"## My request for Codex:\n{ASK}"
            ),
        ),
        ASK,
    ),
    "an IDE's words of a person": (
        CODEX,
        (user("# Context from my IDE setup: broken"),),
        "# Context from my IDE setup: broken",
    ),
    "a task": ({}, (user(f"<task>\n{ASK}\n</task>", DETAILS.format("ACT")),), ASK),
    "a task in one text": (
        {},
        (user_text(f"<task>\n{ASK}\n</task>\n\n{DETAILS.format('ACT')}"),),
        ASK,
    ),
    "feedback in a result": (
        {},
        (
            user("<task>\nbegin\n</task>", DETAILS.format("ACT")),
            ANSWER,
            user(
                f"[attempt_completion] Result:\n<feedback>\n{ASK}\n</feedback>",
                DETAILS.format("ACT"),
            ),
        ),
        ASK,
    ),
    "feedback about a tag": (
        {},
        (
            user("<task>\nbegin\n</task>"),
            ANSWER,
            user(
                "[attempt_completion] Result:",
                f"<feedback>\nWhat is <task>x</task>?\n{ASK}\n</feedback>",
            ),
        ),
        f"What is <task>x</task>?\n{ASK}",
    ),
    "results as a user": (
        {},
        (
            user(f"<task>\n{ASK}\n</task>", DETAILS.format("ACT")),
            ANSWER,
            user("[execute_command for 'ls'] Result:", "app.py", DETAILS.format("ACT")),
        ),
        ASK,
    ),
    "beside reminders of a list": (
        {},
        (
            user(
                f"<task>\n{ASK}\n</task>",
                "# task_progress RECOMMENDED\n\nInclude a list of steps.",
                DETAILS.format("ACT"),
            ),
            ANSWER,
            user("[ERROR] You did not use a tool in your previous response!", "# TODO LIST UPDATE"),
        ),
        ASK,
    ),
    "in a task that goes on": (
        {},
        (
            user("<task>\nbegin\n</task>"),
            ANSWER,
            user(
                "[TASK RESUMPTION] This task was interrupted just now.",
                f"New message to respond to:\n<user_message>\n{ASK}\n</user_message>\n\n"
                '<file_content path="a.py">\nx\n</file_content>',
            ),
        ),
        ASK,
    ),
    "after attachments": (
        {"user-agent": "GitHubCopilotChat/0.35.0"},
        (user_text(f"<attachments>\na\n</attachments>\n<userRequest>\n{ASK}\n</userRequest>"),),
        ASK,
    ),
    "a request among contexts": (
        {},
        (
            user_text("<environment_info>\nLinux\n</environment_info>"),
            user(f"<context>\ntoday\n</context>\n<userRequest>\n{ASK}\n</userRequest>"),
        ),
        ASK,
    ),
    "before a summary for another model": (
        CODEX,
        (user(PLACE), user(ASK), user("Another language model started to solve this problem ...")),
        ASK,
    ),
    "beside a file": (
        OPENCODE,
        (
            user(
                'Called the Read tool with the following input: {"filePath":"/a.py"}',
                "<path>/a.py</path>\n<type>file</type>\n<content>\n1: x\n</content>",
                ASK,
            ),
        ),
        ASK,
    ),
    "with a tag that files have": (
        OPENCODE,
        (user("Fix this:\n<content>\nhello\n</content>"),),
        "Fix this:\n<content>\nhello\n</content>",
    ),
    "after a summary, with what the agent says then": (
        OPENCODE,
        (
            user("What did we do so far?"),
            ANSWER,
            user(ASK),
            ANSWER,
            user("Continue if you have next steps, or stop and ask for clarification if you"),
        ),
        ASK,
    ),
    "a reminder of a mode": (OPENCODE, (system("You are opencode"), user(ASK, RULES)), ASK),
}


@pytest.mark.parametrize("what", ASKS)
def test_the_ask_is_what_the_person_wrote(what: str) -> None:
    headers, turns, ask = ASKS[what]
    assert read_turns(*turns, headers=headers).ask == ask


def test_after_a_summary_nothing_is_asked_until_the_person_asks_again() -> None:
    summary = (user("What did we do so far?"), ANSWER)
    assert read_turns(*summary, headers=OPENCODE).ask is None
    reading = read_turns(*summary, user("yes"), headers=OPENCODE)
    assert (reading.ask, reading.earlier) == ("yes", ())


def test_earlier_asks_come_oldest_first() -> None:
    turns = (user(RULES, "one"), ANSWER, result(), user(RULES), ANSWER, user("two"), ANSWER)
    reading = read_turns(*turns, user("three", RULES), headers=CLAUDE)
    assert (reading.ask, reading.earlier) == ("three", ("one", "two"))


KINDS: dict[str, tuple[dict[str, str], tuple[Turn, ...], str]] = {
    "a task": (CLAUDE, (user(RULES, ASK),), "main"),
    "a plan": (
        CLAUDE,
        (user(ASK, "<system-reminder>\nPlan mode is active.\n</system-reminder>"),),
        "plan",
    ),
    "a plan that a system text begins": (
        CLAUDE,
        (user(RULES, ASK), system("# Tools\n- ls\n\nPlan mode is active. Don't edit."), ANSWER),
        "plan",
    ),
    "a system text about plans": (
        CLAUDE,
        (system("Plan mode is active"), user(ASK), system("It says that Plan mode is active.")),
        "main",
    ),
    "a person's words about plans": (
        CLAUDE,
        (user(RULES, "Why does it say Plan mode is active?"),),
        "main",
    ),
    "a plan that has ended": (
        CLAUDE,
        (
            user(ASK, "<system-reminder>\nPlan mode is active.\n</system-reminder>"),
            ANSWER,
            user("go"),
        ),
        "main",
    ),
    "a plan of Cline": ({}, (user(f"<task>\n{ASK}\n</task>", DETAILS.format("PLAN")),), "plan"),
    "a subagent": ({**CLAUDE, "x-claude-code-agent-id": "a7"}, (user(ASK),), "subagent"),
    "a subagent of Codex": (
        {**CODEX, "x-openai-subagent": "collab_spawn"},
        (user(ASK),),
        "subagent",
    ),
    "a thread of a subagent": (
        {**CODEX, "x-codex-turn-metadata": '{"thread_source": "subagent"}'},
        (user(ASK),),
        "subagent",
    ),
    "metadata that isn't JSON": ({**CODEX, "x-codex-turn-metadata": "{"}, (user(ASK),), "main"),
    "a header's summary": (
        {**CLAUDE, "x-claude-code-compaction": "auto"},
        (user(ASK),),
        "compaction",
    ),
    "a text's summary": (
        CLAUDE,
        (
            user(ASK),
            ANSWER,
            user_text("Your task is to create a detailed summary of the conversation so far."),
        ),
        "compaction",
    ),
    "a summary of a conversation in tags": (
        OPENCODE,
        (user("Here is the conversation so far:\n\n<conversation>\nx\n</conversation>\nSum up."),),
        "compaction",
    ),
    "a memory": ({**CODEX, "x-openai-subagent": "memory_consolidation"}, (user(ASK),), "auxiliary"),
    "a title": (
        OPENCODE,
        (system("You are a title generator. You output"), user_text(ASK)),
        "auxiliary",
    ),
    "a title as JSON": (
        CLAUDE,
        (
            system("You are a Claude agent, built on Anthropic's Claude Agent SDK."),
            system("Generate a concise, sentence-case title (3-7 words) of this session."),
            user(f"<session>\n{ASK}\n</session>\n\nWrite the title."),
        ),
        "auxiliary",
    ),
    "a title of a chat": (
        {},
        (system("You are an expert in crafting pithy titles for chats."), user_text(ASK)),
        "auxiliary",
    ),
    "a suggestion": (
        CLAUDE,
        (user(ASK), ANSWER, user("[SUGGESTION MODE: Suggest what comes next]")),
        "auxiliary",
    ),
    "a plain chat": ({}, (user_text("You are a title generator"),), "main"),
}


@pytest.mark.parametrize("what", KINDS)
def test_the_kind_of_a_request(what: str) -> None:
    headers, turns, kind = KINDS[what]
    assert read_turns(*turns, headers=headers).kind == kind


def test_a_probe_allows_one_token() -> None:
    assert read_turns(user_text("quota"), headers=CLAUDE, max_tokens=1).kind == "auxiliary"
    assert read_turns(user_text("quota"), max_tokens=1).kind == "main"


def test_a_conversation_keeps_its_name_and_others_have_their_own() -> None:
    main = read_turns(user(RULES, ASK), headers=CLAUDE)
    later = read_turns(user("Something else"), ANSWER, user(ASK), headers=CLAUDE)
    assert main.conversation == later.conversation == "s1"
    assert (
        read_turns(user(ASK), headers={"user-agent": "claude-cli/2"}, session="s1").conversation
        == "s1"
    )
    sub = {**CLAUDE, "x-claude-code-agent-id": "a7"}
    assert read_turns(user(ASK), headers=sub).conversation == "s1/a7"
    compacted = read_turns(user(ASK), headers={**sub, "x-claude-code-compaction": "auto"})
    assert (compacted.kind, compacted.conversation) == ("compaction", "s1/a7")
    title = read_turns(
        system("You are coming up with a succinct title"), user_text(ASK), headers=CLAUDE
    )
    assert (title.conversation, title.parent) == (None, "s1")
    assert read_turns(user_text(ASK)).conversation is None


def test_metadata_alone_names_thread_turn_and_parent() -> None:
    reading = read_turns(user(ASK), headers={"x-codex-turn-metadata": METADATA})
    assert (reading.conversation, reading.turn, reading.parent) == ("t1", "u1", "t0")


def test_a_subagent_without_a_name_is_told_by_its_task() -> None:
    billing = system("x-anthropic-billing-header: cc_version=2; cc_is_subagent=true;")
    first = read_turns(billing, user(ASK), headers=CLAUDE)
    again = read_turns(billing, user(ASK), ANSWER, result(), headers=CLAUDE)
    other = read_turns(billing, user("List the files."), headers=CLAUDE)
    assert first.conversation == again.conversation != other.conversation
    assert first.parent == "s1"


def test_a_turn_goes_on_from_the_first_answer_to_the_next_ask() -> None:
    event = "<task-notification>\nDone.\n</task-notification>"
    for turns, is_ongoing in (
        ([user("Go.")], False),
        ([user("Go."), ANSWER], True),
        ([user("Go."), ANSWER, result()], True),
        ([user("Go."), ANSWER, user(event)], True),
        ([user("Go."), ANSWER, user("Again.")], False),
        ([user(event)], False),
    ):
        assert read_turns(*turns, headers=CLAUDE).is_ongoing is is_ongoing, turns


def test_failing_steps_are_counted_back_to_the_ask() -> None:
    failing = (ANSWER, result("Exit code 1\nE"), ANSWER, result(failed=True))
    assert read_turns(user(ASK), *failing, headers=CLAUDE).failing_steps == 2
    assert read_turns(user(ASK), *failing, ANSWER, result(), headers=CLAUDE).failing_steps == 0
    assert read_turns(user(ASK), ANSWER, result(), *failing, headers=CLAUDE).failing_steps == 2
    assert read_turns(user(ASK), *failing, user(RULES), headers=CLAUDE).failing_steps == 2
    assert read_turns(user(ASK), *failing, user("stop"), headers=CLAUDE).failing_steps == 0
    assert (
        read_turns(user_text(ASK), ANSWER, result('{"metadata":{"exit_code":2}}')).failing_steps
        == 1
    )
    assert read_turns(user_text(ASK), ANSWER, result("Exit code 0\nError: none")).failing_steps == 0


def step(command: str, output: str = "fine") -> tuple[Turn, Turn]:
    return Turn("assistant", calls=(("Bash", {"command": command}),)), result(output)


def test_repeated_calls_and_stalled_steps_are_counted_back_to_the_ask() -> None:
    test, look = step("pytest"), step("ls")
    for steps, repeated, stalled in (
        ((test,), 0, 0),
        ((test, look), 0, 0),
        ((test, test), 1, 1),
        ((test, test, test), 2, 2),
        ((test, look, test, look), 0, 2),
        ((test, look, step("pytest", "1 passed")), 0, 0),
        ((test, step("pytest", "1 passed")), 1, 0),
    ):
        turns = [turn for step in steps for turn in step]
        reading = read_turns(user(ASK), *turns, headers=CLAUDE)
        assert (reading.repeated_calls, reading.stalled_steps) == (repeated, stalled), steps
        after = read_turns(user(ASK), *turns, user("Stop."), headers=CLAUDE)
        assert (after.repeated_calls, after.stalled_steps) == (0, 0)


def test_arguments_that_are_nested_too_deeply_count_as_different() -> None:
    def nest_deeply() -> Any:
        value: Any = []
        for _ in range(100_000):
            value = [value]
        return value

    turns = [Turn("assistant", calls=(("Bash", nest_deeply()),)) for _ in range(3)]
    assert read_turns(user(ASK), *turns, headers=CLAUDE).repeated_calls == 0


def test_a_short_ask_is_read_with_what_it_refers_to() -> None:
    def read_scored_text(*asks: str) -> str | None:
        return read_turns(*(turn for ask in asks for turn in (user_text(ask), ANSWER))).scored_text

    assert read_scored_text("yes") == "yes"
    assert read_scored_text(ASK, "yes") == f"{ASK}\n\nyes"
    assert read_scored_text("old " * 30, ASK, "yes") == f"{ASK}\n\nyes"
    assert read_scored_text(ASK, "again", "more", "yes") == f"{ASK}\n\nagain\n\nmore\n\nyes"
    assert read_scored_text(ASK, "x" * (SHORT + 1)) == "x" * (SHORT + 1)
    assert read_scored_text(*map(str, range(20))) == "\n\n".join(map(str, range(11, 20)))
    assert read_scored_text(ASK, "a" * EARLIER, "yes") == f"{'a' * EARLIER}\n\nyes"
    assert read_turns(ANSWER).scored_text is None


def test_marks_can_be_added_for_an_agent_and_for_a_new_one() -> None:
    more = {
        "claude-code": Harness(blocks=("house-rules",)),
        "ours": Harness(clients=("our-agent/",), blocks=("memo",), sessions=("x-our-session",)),
    }
    marks = load_harnesses().with_marks(more)
    turn = user("<house-rules>\nx\n</house-rules>", RULES, ASK)
    assert read_request([turn], headers=CLAUDE, harnesses=marks).ask == ASK
    assert read_request([turn], headers=CLAUDE, harnesses=load_harnesses()).ask != ASK
    ours = {"user-agent": "our-agent/1", "x-our-session": "o7"}
    reading = read_request([user("<memo>\nx\n</memo>", ASK)], headers=ours, harnesses=marks)
    assert (reading.agent, reading.ask, reading.conversation) == ("ours", ASK, "o7")


@pytest.mark.parametrize(
    "text",
    [
        "<task>" * 40_000,
        "[x] Result:" + "<feedback>" * 30_000,
        "<context></context>" * 15_000,
        "<context>\n</context>\n" * 15_000 + "x",
        "x\n" + "<context>\n</context>\n" * 15_000,
        " " * 300_000,
    ],
)
def test_a_hostile_text_is_read(text: str) -> None:
    """A search that isn't linear would take minutes here."""
    for opening in (user("<task>\nx\n</task>"), user("<environment_info>\n</environment_info>")):
        assert read_turns(opening, user_text(text)).agent is not None
