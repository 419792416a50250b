"""How coding agents write their requests: the marks of each harness, read from a versioned file.

The marks are in `harnesses.yaml`. Settings may add to them, since the agents' requests change from
month to month.
"""

import re
from collections.abc import Mapping, Sequence
from functools import cache, cached_property
from importlib.resources import files
from pathlib import Path
from typing import Literal, final

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from prefill_router.errors import ConfigError
from prefill_router.yaml_files import DistinctLoader, read_yaml

RequestKind = Literal["main", "plan", "subagent", "compaction", "auxiliary"]
"""What a request of an agent is for.

- `main`: the person's task;
- `plan`: the same, while the agent only plans;
- `subagent`: a task that the agent gave to a second one;
- `compaction`: a summary of the conversation, which then goes on from it;
- `auxiliary`: a title, a topic, a suggestion or a probe.
"""
Texts = tuple[str, ...]
ANY = "*"


@final
class Harness(BaseModel):
    """The marks of one agent: what tells it from others, and its texts from the person's.

    Comparisons ignore case in the names of headers alone.

    Attributes:
        clients: Starts of the header user-agent.
        headers: Headers that only this agent sends.
        systems: Starts of a system prompt.
        openings: Starts of a user's text.
        blocks: Tags; a text between them is the agent's, where it begins or ends a user's text.
        wrappers: Tags with the person's text between them.
        requests_after: Starts of texts, each with the line after which the person's text begins.
        texts: Starts of texts that the agent writes as the user.
        results: Starts of texts in which the agent writes a tool's result as the user.
        compactions: Starts of a user's text that asks for a summary of the conversation.
        auxiliary: Starts of a system prompt or a user's text for a title, topic or suggestion.
        plans: Words within a block, or at the beginning of a line of a system text after the ask,
            that say that the agent plans.
        subagents: Words within a system prompt that say that a subagent asks.
        volatile: Starts of system texts that change with each request.
        sessions: Headers that name the conversation; the first that is there counts.
        agents: Headers that name the subagent.
        types: Headers that name the subagent's type, such as a reviewer.
        parents: Headers that name the conversation or subagent that started it.
        turns: Headers that name the person's turn, the same through its tool calls.
        json_headers: Headers with a JSON object, whose fields are read as `HEADER.FIELD`.
        kinds: For a header and its value, or `*` for any value, the kind of request.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    clients: Texts = ()
    headers: Texts = ()
    systems: Texts = ()
    openings: Texts = ()
    blocks: Texts = ()
    wrappers: Texts = ()
    requests_after: Mapping[str, str] = Field(default_factory=dict)
    texts: Texts = ()
    results: Texts = ()
    compactions: Texts = ()
    auxiliary: Texts = ()
    plans: Texts = ()
    subagents: Texts = ()
    volatile: Texts = ()
    sessions: Texts = ()
    agents: Texts = ()
    types: Texts = ()
    parents: Texts = ()
    turns: Texts = ()
    json_headers: Texts = ()
    kinds: Mapping[str, Mapping[str, RequestKind]] = Field(default_factory=dict)

    @cached_property
    def opening_tags(self) -> Texts:
        """How a text begins that is the agent's, or has the person's text in a wrapper."""
        return tuple(f"<{name}" for name in (*self.blocks, *self.wrappers))

    @cached_property
    def leading_block(self) -> re.Pattern[str]:
        """A block at the beginning of a text; a line or another block follows it, or nothing."""
        names = "|".join(map(re.escape, self.blocks)) or "(?!)"
        return re.compile(
            rf"<(?P<tag>{names})(?:\s[^<>]*)?>.*?</(?P=tag)>[ \t]*(?=\n|\Z|<(?:{names})[\s>])",
            re.DOTALL,
        )

    @cached_property
    def whole_wrapper(self) -> re.Pattern[str]:
        """A text that is one wrapper; group 2 is the person's text."""
        return re.compile(rf"<({_names(self.wrappers)})>(.*)</\1>\s*", re.DOTALL)

    def with_marks(self, more: "Harness") -> "Harness":
        """These marks, and those of `more` after them."""
        own, added = self.model_dump(), more.model_dump(exclude_unset=True)
        fields = {
            name: {**own[name], **value} if isinstance(value, Mapping) else (*own[name], *value)
            for name, value in added.items()
        }
        return Harness(**{**own, **fields})


def _names(tags: Texts) -> str:
    return "|".join(map(re.escape, tags)) or "(?!)"


@final
class Harnesses(BaseModel):
    """The marks of all agents, by the agent's name.

    Attributes:
        version: The version of the format.
        failures: Regular expressions of the start of a tool's result that failed.
        harnesses: The marks of each agent; the first whose marks a request has is its agent.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    version: Literal[1] = 1
    failures: Texts = ()
    harnesses: Mapping[str, Harness] = Field(default_factory=dict)

    @cached_property
    def failure(self) -> re.Pattern[str]:
        """The start of a tool's result that failed."""
        return re.compile("|".join(f"(?:{pattern})" for pattern in self.failures) or "(?!)")

    @cached_property
    def volatile(self) -> Texts:
        """The starts of system texts that an agent changes with each request."""
        return tuple(start for marks in self.harnesses.values() for start in marks.volatile)

    def with_marks(self, more: Mapping[str, Harness]) -> "Harnesses":
        """These marks, with more of them for the same agents, and further agents after them."""
        marks_by_agent = dict(self.harnesses)
        for name, marks in more.items():
            marks_by_agent[name] = (
                marks_by_agent[name].with_marks(marks) if name in marks_by_agent else marks
            )
        return self.model_copy(update={"harnesses": marks_by_agent})

    def identify(
        self, headers: Mapping[str, str], systems: Sequence[str], openings: Sequence[str]
    ) -> tuple[str, str] | None:
        """The agent whose marks a request has, and which; None for no agent.

        Args:
            headers: The headers, with names in lower case.
            systems: The starts of its system prompts.
            openings: The starts of the user's first texts.
        """
        client = headers.get("user-agent", "")
        for name, marks in self.harnesses.items():
            if marks.clients and client.startswith(marks.clients):
                return name, f"the header user-agent is {client[:64]!r}"
            for header in marks.headers:
                if header in headers:
                    return name, f"it has the header {header}"
            for what, starts, texts in (
                ("a system prompt", marks.systems, systems),
                ("a user's text", marks.openings, openings),
            ):
                start = next((s for s in starts for t in texts if t.startswith(s)), None)
                if start is not None:
                    return name, f"{what} begins with {start!r}"
        return None


@cache
def load_harnesses() -> Harnesses:
    """The marks that this package has.

    Raises:
        ConfigError: The file is damaged.
    """
    text = files(__package__).joinpath("harnesses.yaml").read_text("utf-8")
    try:
        return Harnesses.model_validate(yaml.load(text, Loader=DistinctLoader))
    except ValueError as error:
        raise ConfigError(
            f"the marks of agents can't be read; install the package again: {error}"
        ) from None


def read_harnesses(settings: Path) -> Harnesses:
    """The marks that this package has, and those that a gateway's settings add (`agents.marks`).

    Args:
        settings: The settings' file; an empty one adds none. Whatever else it has is ignored.

    Raises:
        ConfigError: The file can't be read, or its marks aren't marks.
    """
    try:
        value = read_yaml(settings)
        agents = {} if value is None else value
        if isinstance(agents, Mapping):
            agents = agents.get("agents", {})
        if not isinstance(agents, Mapping):
            raise ConfigError(f"it has no section agents; {_ADVICE}")
        return load_harnesses().with_marks(_AgentMarks.model_validate(agents).marks)
    except ConfigError as error:
        raise ConfigError(f"{settings}: {error}") from None
    except ValidationError as error:
        problems = "; ".join(
            f"agents.{'.'.join(map(str, detail['loc']))}: {detail['msg']}"
            for detail in error.errors()
        )
        raise ConfigError(f"{settings}: {problems}; {_ADVICE}") from None


_ADVICE = (
    "give marks of agents as in a gateway's settings, such as agents: {marks: {our-agent: "
    "{systems: [You are ours]}}}"
)


class _AgentMarks(BaseModel):
    """The marks among a gateway's settings of agents."""

    model_config = ConfigDict(extra="ignore", frozen=True)

    marks: Mapping[str, Harness] = Field(default_factory=dict)
