"""The gateway's settings: one YAML file, overridden by the environment and by options.

A variable's name is `PREFILL_ROUTER_` and the path of a setting, joined by two underscores. A
setting with several values is written in JSON: `PREFILL_ROUTER_BUDGETS='[{...}]'`. Errors say
where each invalid setting is set, what its value is, and which values are valid.
"""

import json
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeVar, final, get_args, get_origin
from urllib.parse import urlsplit

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    ValidationError,
    create_model,
    field_validator,
    model_validator,
)

from prefill_router.agents import Harness, Harnesses, RequestKind, RequestReading, load_harnesses
from prefill_router.errors import ConfigError, nearest
from prefill_router.options import PORT, POSITIVE, SHARE, SHARE_ABOVE_ZERO, SHARE_BELOW_ONE
from prefill_router.yaml_files import Number, WholeNumber, line_of, read_yaml
from prefill_router_gateway.limits import COUNT, DOLLARS_PER_SECOND, SECONDS
from prefill_router_gateway.records import Scored

if TYPE_CHECKING:
    from pydantic_core import ErrorDetails


Share = Annotated[Number, SHARE]
Seconds = Annotated[Number, SECONDS]
Count = Annotated[WholeNumber, COUNT]


_SITE = re.compile(
    r"(?!http://.*:80$|https://.*:443$)"  # which browsers leave out
    r"https?://([a-z0-9]([a-z0-9.-]*[a-z0-9])?|\[[0-9a-f:]+\])(:\d{1,5})?"
)


def _on_or_off(value: Any) -> Any:
    """YAML reads on and off as true and false."""
    return ("off", "on")[value] if isinstance(value, bool) else value


class SettingsSection(BaseModel):
    """A section of the settings; unknown names are refused."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)


@final
class ListenSettings(SettingsSection):
    """Where the gateway listens.

    Attributes:
        host: An address of this machine; addresses other than loopback need keys.
        port: The port; 0 takes any free one.
        hosts: Host names that clients may use in the `Host` header, besides the address.
        origins: The sites whose pages may call paths below `/v1` from a browser, for example
            `https://app.example`.
        unready_seconds: At shutdown, how long it still answers while `/ready` reports that it is
            ending, so that load balancers stop sending requests; skipped if `/ready` was never
            requested.
        drain_seconds: After that, how long requests in flight have to end.
    """

    host: str = "127.0.0.1"
    port: Annotated[WholeNumber, PORT] = 8080
    hosts: tuple[str, ...] = ()
    origins: tuple[str, ...] = ()
    unready_seconds: Annotated[Number, Field(ge=0, le=86_400)] = 5.0
    drain_seconds: Annotated[Number, Field(ge=0, le=86_400)] = 30.0

    @field_validator("origins")
    @classmethod
    def _are_sites(cls, origins: tuple[str, ...]) -> tuple[str, ...]:
        for origin in origins:
            if not _SITE.fullmatch(origin):
                raise ValueError(
                    f"{origin!r} is no site; give its scheme, its host in lower case and its port, "
                    "unless that is the usual one, for example https://app.example"
                )
        return origins


@final
class LatencySettings(SettingsSection):
    """How predicted waiting enters the choice; by default it is only measured and recorded.

    It never counts once a budget is spent, nor without a forecast.

    Attributes:
        deadline_seconds: A target that is predicted to take longer isn't chosen while another in
            time may answer; None for no deadline.
        dollars_per_second: What a second of waiting costs beside the target's own cost.
        until: What is waited for: the whole `answer`, or its `first_token`.
        keep: The least probability of a correct answer that a quicker target must have, as a share
            of that of the policy's own choice. Below 1, a guarantee about `lam` no longer holds.
    """

    deadline_seconds: Seconds | None = None
    dollars_per_second: Annotated[Number, DOLLARS_PER_SECOND] = 0.0
    until: Literal["answer", "first_token"] = "answer"
    keep: Share = 1.0


@final
class RoutingSettings(SettingsSection):
    """The settings of the choice of targets.

    Attributes:
        lam: The trade-off of requests that give none; where it isn't set, a version has its own.
        names: Further model names that route, each with its lam, for example `cheap: 0.2`.
        scored: The part of a request that the encoder reads. With `ask` it is what a person asked
            last, without what a coding agent wrote around it.
        deadline_seconds: The longest wait for a forecast.
        max_queue: The most requests that wait for a forecast.
        max_batch: The most prompts that are encoded together.
        cache_entries: The most forecasts in the cache; 0 disables it.
        reuse_bytes: Memory in which a causal encoder keeps the states of prefixes that prompts
            share; 0 for none. It isn't used on a GPU, where batches gain more.
        fallback: What decides without a forecast: `prior`, the policy applied to train accuracies;
            `best`, by train accuracy; `cheapest`; or a target.
        novelty: Requests above this quantile of the train rows' novelty aren't forecast; 1 for
            none.
        headroom: Whether a target whose provider says that its rate limits allow no further request
            is chosen only where no other may answer.
        latency: How predicted waiting enters the choice; None to neither measure nor predict it.
        versions_seconds: How often the versions of `serve --versions` are looked at.
    """

    lam: Share = 0.5
    names: dict[str, Share] = Field(default_factory=dict)
    scored: Scored = "ask"
    deadline_seconds: Seconds = 1.0
    max_queue: Count = 256
    max_batch: Count = 32
    cache_entries: Annotated[WholeNumber, Field(ge=0, le=10_000_000)] = 4096
    reuse_bytes: Annotated[WholeNumber, Field(ge=0, le=2**40)] = 2**28
    fallback: str = "prior"
    novelty: Share = 1.0
    headroom: bool = False
    latency: LatencySettings | None = None
    versions_seconds: Seconds = 5.0


@final
class SessionSettings(SettingsSection):
    """The settings by which conversations keep their target.

    Attributes:
        known_by: How a conversation is recognised: `header`, by the session header alone;
            `conversation`, without a header also by its first turns; `none`, not at all.
        seconds: The time without an answer after which a conversation expires.
        cache_seconds: The time for which providers are assumed to cache a prompt.
        margin: The gain in score that a switch must exceed, beyond the value of the cache.
        most: The most conversations that are remembered.
    """

    known_by: Literal["conversation", "header", "none"] = "conversation"
    seconds: Seconds = 3600.0
    cache_seconds: Seconds = 300.0
    margin: Annotated[Number, Field(ge=0, le=2)] = 0.0
    most: Count = 100_000


@final
class KindSettings(SettingsSection):
    """How one kind of agents' requests is routed, where the client says nothing else.

    Attributes:
        lam: Its trade-off; None for that of all requests.
        targets: The targets that may answer it; None for all.
        floor: The least predicted probability of a correct answer that its target has, where one
            has it; None for none.
    """

    lam: Share | None = None
    targets: frozenset[str] | None = None
    floor: Share | None = None


@final
class EscalationSettings(SettingsSection):
    """When a task counts as one that doesn't get on; any of these is enough.

    Attributes:
        failing_steps: So many results of tools in a row have failed.
        repeated_calls: The newest tool call was made so often in a row before, with the same
            arguments.
        stalled_steps: So many of the newest tool calls, one after another, had been made before
            with the same arguments and the same result.
    """

    failing_steps: Count = 3
    repeated_calls: Count = 2
    stalled_steps: Count = 4


@final
class AgentSettings(SettingsSection):
    """How the requests of coding agents are read and routed.

    Attributes:
        marks: Marks that distinguish agents, and their texts from the person's; they are
            added to those that the gateway has, by the agent's name.
        main: The person's tasks, and all requests of other clients.
        plan: Plans of the person's tasks.
        subagent: Tasks that an agent gives to a second one.
        compaction: Summaries of a conversation.
        auxiliary: Titles, topics, suggestions and probes, by default at the lowest cost.
        escalation: Whether a task that doesn't get on goes to a stronger target, once: `on`, `off`,
            or `observe`, to say only in the receipt where it would.
        escalate_after: When a task counts as one that doesn't get on.
        requests: How many requests an agent is expected to send for what a person or another agent
            asks. A target is chosen by its costs over them.
        by_agent: The same for one agent, by its name and the kind of request.
        types: The same for one type of subagent, by the agent's name for it.
    """

    marks: dict[str, Harness] = Field(default_factory=dict)
    main: KindSettings = KindSettings()
    plan: KindSettings = KindSettings()
    subagent: KindSettings = KindSettings()
    compaction: KindSettings = KindSettings()
    auxiliary: KindSettings = KindSettings(lam=0.0)
    escalation: Annotated[Literal["off", "on", "observe"], BeforeValidator(_on_or_off)] = "off"
    escalate_after: EscalationSettings = EscalationSettings()
    requests: Annotated[Number, Field(ge=1, le=1000)] = 8.0
    by_agent: dict[str, dict[RequestKind, KindSettings]] = Field(default_factory=dict)
    types: dict[str, KindSettings] = Field(default_factory=dict)

    @model_validator(mode="after")
    def _check_agents(self) -> "AgentSettings":
        harnesses = self.harnesses.harnesses
        for name in self.by_agent:
            if name not in harnesses:
                near = nearest(name, harnesses)
                raise ValueError(f"by_agent has {name!r}; agents are {', '.join(harnesses)}{near}")
        return self

    @cached_property
    def harnesses(self) -> Harnesses:
        """The marks of all agents."""
        return load_harnesses().with_marks(self.marks)

    @property
    def named(self) -> dict[str, KindSettings]:
        """The settings of each kind, agent and type, by their names in the settings."""
        of_kinds: dict[str, KindSettings] = {
            kind: getattr(self, kind) for kind in get_args(RequestKind)
        }
        of_agents = {
            f"by_agent.{agent}.{kind}": own
            for agent, kinds in self.by_agent.items()
            for kind, own in kinds.items()
        }
        return {**of_kinds, **of_agents, **{f"types.{t}": own for t, own in self.types.items()}}

    def for_request(self, reading: RequestReading) -> KindSettings:
        """The settings of a request: of its kind, and over them of its agent and of its type."""
        kind: KindSettings = getattr(self, reading.kind)
        of_agent = self.by_agent.get(reading.agent or "", {}).get(reading.kind)
        of_type = self.types.get(reading.type or "") if reading.kind == "subagent" else None
        for own in (of_agent, of_type):
            if own is not None:
                kind = kind.model_copy(update=own.model_dump(exclude_unset=True))
        return kind


@final
class FailureSettings(SettingsSection):
    """The settings for failures of targets.

    Attributes:
        retries: The most retries of the same target.
        targets: The most targets that are called for one request.
        backoff_seconds: The wait before the first retry; doubled for each further one, with jitter.
        connect_seconds: The time limit for connecting, which overrides the provider's, like the
            next three.
        first_token_seconds: The time limit for each byte up to the first event of a stream. By
            default the provider's where the pool file sets it, otherwise 60, or 600 where the
            target thinks.
        silence_seconds: The time limit between two pieces of a stream; by default likewise, 120
            or 600.
        answer_seconds: The time limit for the whole answer.
        breaker_failures: The failures in a row that open a target's breaker.
        breaker_seconds: The time that a breaker stays open before one call is tried.
    """

    retries: Annotated[WholeNumber, Field(ge=0, le=10)] = 1
    targets: Annotated[WholeNumber, Field(ge=1, le=100)] = 3
    backoff_seconds: Annotated[Number, Field(ge=0, le=60)] = 0.2
    connect_seconds: Seconds | None = None
    first_token_seconds: Seconds | None = None
    silence_seconds: Seconds | None = None
    answer_seconds: Seconds | None = None
    breaker_failures: Count = 5
    breaker_seconds: Seconds = 15.0


@final
class BudgetSettings(SettingsSection):
    """A spending budget.

    Attributes:
        dollars: The US dollars that may be spent.
        per: The window, an hour or a day (UTC).
        key: The name of its key; None for the whole gateway.
        soften_from: The spent share from which on lam falls linearly, to 0 where all is spent.
        stop: Whether requests are refused once all is spent; otherwise the cheapest target answers.
    """

    dollars: Annotated[Number, POSITIVE]
    per: Literal["hour", "day"]
    key: str | None = None
    soften_from: Annotated[Number, SHARE_BELOW_ONE] = 0.5
    stop: bool = False


@final
class TrafficSettings(SettingsSection):
    """The share of the traffic that is routed.

    Attributes:
        share: The share of conversations that the router decides on; with 0 its decisions are only
            recorded.
        otherwise: The target of the rest.
    """

    share: Share = 1.0
    otherwise: str | None = None

    @model_validator(mode="after")
    def _has_somewhere_to_go(self) -> "TrafficSettings":
        if self.share < 1 and self.otherwise is None:
            raise ValueError("a share below 1 needs otherwise, the target of the rest")
        return self


@final
class ReceiptSettings(SettingsSection):
    """The settings of receipts.

    Attributes:
        url: `sqlite:///FILE`, or `postgresql://...`, whose password may come from `PGPASSWORD`.
        prompts: Whether receipts keep the text that the encoder read.
        keep_days: The retention period in days; None keeps receipts for ever.
        wait_seconds: The longest time that the end of an answer waits for its receipt.
        max_queue: The most receipts in the queue; further ones are lost, and counted as lost.
    """

    url: str = "sqlite:///receipts.sqlite"
    prompts: bool = False
    keep_days: Annotated[WholeNumber, Field(le=36_500)] | None = None
    wait_seconds: Annotated[Number, Field(ge=0, le=60)] = 2.0
    max_queue: Count = 10_000

    @field_validator("url")
    @classmethod
    def _is_known(cls, url: str) -> str:
        if not url.startswith(("sqlite:///", "postgresql://")):
            raise ValueError("must begin with sqlite:/// or postgresql://")
        return url

    @field_validator("keep_days")
    @classmethod
    def _is_long_enough(cls, days: int | None) -> int | None:
        if days is not None and days < 1:
            raise ValueError(
                "must be at least 1, since the gateway reads the last day's spending and "
                "conversations from receipts when it starts"
            )
        return days


@final
class SavingsSettings(SettingsSection):
    """The settings of savings.

    Attributes:
        baseline: The target that costs are compared with, which each receipt names; None for the
            target with the highest train accuracy.
        encoder_second_dollars: What a second of waiting for a forecast costs, in US dollars.
            Waiting includes the queue, and several requests may share a batch, so this deducts
            more than the processor's time rather than less.
        encoder_thousand_dollars: What 1,000 forecasts cost, in US dollars. With both 0, the encoder
            isn't counted.
    """

    baseline: str | None = None
    encoder_second_dollars: Annotated[Number, Field(ge=0, le=1000)] = 0.0
    encoder_thousand_dollars: Annotated[Number, Field(ge=0, le=1000)] = 0.0

    def encoder_cost(self, forecasts: int, seconds: float) -> float | None:
        """US dollars of forecasts that were waited for so long; None if it isn't counted."""
        second, thousand = self.encoder_second_dollars, self.encoder_thousand_dollars
        return seconds * second + forecasts * thousand / 1000 if second or thousand else None


@final
class LearningSettings(SettingsSection):
    """What is kept of the traffic for the next router to learn from.

    Attributes:
        share: The share of requests that are kept with their answers, chosen by chance; 0 for none.
        keep_texts: Whether the texts of these requests and answers may be kept in the database of
            receipts; a share above 0 needs it.
        keep_days: After this many days they are deleted, with what was learned of them; None keeps
            them as long as receipts.
    """

    share: Share = 0.0
    keep_texts: bool = False
    keep_days: Annotated[WholeNumber, Field(ge=1, le=36_500)] | None = 30

    @model_validator(mode="after")
    def _has_consent(self) -> "LearningSettings":
        if self.share > 0 and not self.keep_texts:
            raise ValueError(
                "a share above 0 keeps the texts of that share of requests and answers in the "
                "database of receipts; write keep_texts: true to allow it, or share: 0"
            )
        return self


@final
class SharedSettings(SettingsSection):
    """The settings of the state that several gateways (replicas) share.

    Attributes:
        url: `postgresql://...`, which may be that of the receipts; None for a gateway by itself.
        lease: The share of a budget that a replica takes at a time.
        wait_seconds: The longest that a request waits for the database.
    """

    url: str | None = None
    lease: Annotated[Number, SHARE_ABOVE_ZERO] = 0.02
    wait_seconds: Annotated[Number, Field(gt=0, le=60)] = 1.0

    @field_validator("url")
    @classmethod
    def _is_postgres(cls, url: str | None) -> str | None:
        if url is not None and not url.startswith("postgresql://"):
            raise ValueError("must begin with postgresql://")
        return url


@final
class LimitSettings(SettingsSection):
    """The limits on clients' requests and connections.

    Attributes:
        body_bytes: The most bytes of a request's body.
        body_items: The most strings, objects and lists in a body; parsing very many would delay
            other requests.
        header_bytes: The most bytes of a request's headers.
        connections: The most open connections.
        waiting_per_address: The most connections from one address that have sent no complete
            headers; further ones are closed at once.
        requests: The most requests in flight, streams included; more are refused with 503.
        streams: The most open streams; more are refused with 503.
        held_bytes: The most bytes of all bodies in memory; a body is kept until its answer begins.
            Requests beyond it are refused with 503.
    """

    body_bytes: Count = 10_000_000
    header_bytes: Annotated[WholeNumber, Field(ge=1024, le=1_000_000)] = 32_768
    body_items: Count = 50_000
    connections: Count = 4096
    waiting_per_address: Count = 1024
    requests: Count = 2048
    streams: Count = 2048
    held_bytes: Annotated[WholeNumber, Field(ge=1, le=2**40)] = 2**30

    @model_validator(mode="after")
    def _has_room_for_one(self) -> "LimitSettings":
        if self.held_bytes < self.body_bytes:
            raise ValueError("held_bytes must be at least body_bytes, or some bodies never fit")
        return self


@final
class LogSettings(SettingsSection):
    """The settings of the log, which is written to standard error.

    Attributes:
        form: `json`, one object per line; `text`, for people; `auto`, text on a terminal and JSON
            otherwise.
        level: The lowest level that is written.
    """

    form: Literal["auto", "json", "text"] = "auto"
    level: Literal["debug", "info", "warning", "error"] = "info"


@final
class StreamSettings(SettingsSection):
    """The settings of streams.

    Attributes:
        usage: `ask` requests token counts from targets, and drops the event with them if the client
            didn't request it; `leave` forwards the request unchanged.
        keep_alive_seconds: The time without a byte after which the client gets a comment or a
            `ping`, and headers before them where it has none; None for never.
    """

    usage: Literal["ask", "leave"] = "ask"
    keep_alive_seconds: Seconds | None = 20.0


Section = TypeVar("Section", bound=SettingsSection)


class GatewaySettings(SettingsSection):
    """All settings; every section has defaults.

    Attributes:
        keys: The file of client keys, see `prefill-router key`; None requires no keys.
        forward_headers: Further request headers that are forwarded to targets.
        traces: The OTLP endpoint of traces; None for none.
    """

    listen: ListenSettings = ListenSettings()
    routing: RoutingSettings = RoutingSettings()
    sessions: SessionSettings = SessionSettings()
    agents: AgentSettings = AgentSettings()
    failures: FailureSettings = FailureSettings()
    budgets: tuple[BudgetSettings, ...] = ()
    traffic: TrafficSettings = TrafficSettings()
    receipts: ReceiptSettings = ReceiptSettings()
    savings: SavingsSettings = SavingsSettings()
    learning: LearningSettings = LearningSettings()
    shared: SharedSettings = SharedSettings()
    limits: LimitSettings = LimitSettings()
    logs: LogSettings = LogSettings()
    streams: StreamSettings = StreamSettings()
    keys: Path | None = None
    forward_headers: tuple[str, ...] = ()
    traces: str | None = None

    @field_validator("traces")
    @classmethod
    def _is_address(cls, url: str | None) -> str | None:
        parts = urlsplit(url or "")
        if url is not None and not (parts.scheme in ("http", "https") and parts.netloc):
            raise ValueError("must be an OTLP endpoint, for example http://127.0.0.1:4318")
        return url

    def section(self, kind: type[Section]) -> Section:
        """The section of this class, one of the gateway's own or of `SECTIONS`.

        Raises:
            ConfigError: There is none.
        """
        section = next((value for _, value in self if isinstance(value, kind)), None)
        if section is None:
            raise ConfigError(f"the settings have no section of the class {kind.__name__}")
        return section


SECTIONS: dict[str, type[SettingsSection]] = {}
"""Further sections by name; sections added here are read and checked like the others."""


def _model() -> type[GatewaySettings]:
    further: Any = {name: (kind, kind()) for name, kind in SECTIONS.items()}
    base = GatewaySettings
    return create_model(base.__name__, __base__=base, **further) if further else base


PREFIX = "PREFILL_ROUTER_"
_JOINT = "__"
Place = tuple[int | str, ...]
"""The path of a setting: names, and positions in lists."""


@final
@dataclass(frozen=True)
class Variable:
    """An environment variable with the prefix of settings.

    Attributes:
        name: Its name.
        path: The path of the setting.
        value: Its value: plain text, or parsed JSON.
        wrong: Why it can't be read; None where it can.
    """

    name: str
    path: tuple[str, ...]
    value: Any = None
    wrong: str | None = None


def _variables(environment: Mapping[str, str] | None, model: type[BaseModel]) -> list[Variable]:
    """The variables with the prefix of settings, those of whole sections first."""
    variables = os.environ if environment is None else environment
    names = (name for name in sorted(variables) if name.upper().startswith(PREFIX))
    return sorted((_variable(n, variables[n], model) for n in names), key=lambda v: len(v.path))


def over(value: Mapping[Any, Any], further: Mapping[Any, Any]) -> dict[Any, Any]:
    """Settings overridden by others: sections are merged, anything else is replaced."""
    joined = dict(value)
    for name, new in further.items():
        old = joined.get(name)
        if isinstance(old, dict) and isinstance(new, dict):
            joined[name] = over(old, new)
        else:
            joined[name] = new
    return joined


def model_at(path: Place, model: type[BaseModel]) -> type[BaseModel] | None:
    """The section at a path; None where the path isn't that of a section."""
    section: type[BaseModel] | None = model
    for name in path:
        if isinstance(name, str):
            section = next(iter(_models(_kind(section, name))), None)
    return section


def _variable(name: str, text: str, model: type[BaseModel]) -> Variable:
    path = tuple(name[len(PREFIX) :].lower().split(_JOINT))
    parent = model_at(path[:-1], model)
    kind = _kind(parent, path[-1])
    if get_origin(kind) not in (tuple, dict) and next(_models(kind), None) is None:
        return Variable(name, path, text)
    try:
        return Variable(name, path, json.loads(text))
    except (ValueError, RecursionError):
        shape = "{...}" if get_origin(kind) is None else "[...] or {...}"
        return Variable(name, path, wrong=f"isn't JSON; it has several values: {shape}")


def _kind(model: type[BaseModel] | None, name: str) -> Any:
    """The type of a field; None where there is none."""
    field = None if model is None else model.model_fields.get(name)
    return None if field is None else field.annotation


def _models(kind: Any) -> Iterator[type[BaseModel]]:
    for each in (kind, *get_args(kind)):
        if isinstance(each, type) and issubclass(each, BaseModel):
            yield each


def read_settings(
    path: Path | None = None,
    *,
    options: Mapping[str, Any] | None = None,
    environment: Mapping[str, str] | None = None,
) -> GatewaySettings:
    """Read settings from a YAML file, overridden by the environment, overridden by options.

    Args:
        path: The file; None for none.
        options: Settings, nested as in the file.
        environment: The variables; by default the process's.

    Raises:
        ConfigError: Some are invalid; the message lists them all, and where each is set.
    """
    model = _model()
    variables = [v for v in _variables(environment, model) if not _is_stray(v, model)]
    problems = [f"{variable.name}: {variable.wrong}" for variable in variables if variable.wrong]
    value = {} if path is None else _read_file(path)
    sources = SettingSources(path, value, variables, options or {})
    whole: dict[str, Any] = dict(value)
    for variable in variables:
        if variable.wrong is None:
            nested = variable.value
            for name in reversed(variable.path):
                nested = {name: nested}
            whole = over(whole, nested)
    try:
        settings = model.model_validate(over(whole, sources.options))
    except ValidationError as error:
        problems += setting_errors(error, model, sources)
    if problems:
        raise ConfigError(*problems)
    return settings


def stray_variables(environment: Mapping[str, str] | None = None) -> dict[str, str]:
    """Variables with the prefix of settings that aren't settings; other programs may use them.

    Args:
        environment: The variables; by default the process's.

    Returns:
        By variable, the end of a sentence that suggests a setting; empty for no suggestion.
    """
    model = _model()
    return {
        v.name: _meant_variable(v, model)
        for v in _variables(environment, model)
        if _is_stray(v, model)
    }


def _meant_variable(variable: Variable, model: type[BaseModel]) -> str:
    name = str(variable.path[0])
    for part, field in model.model_fields.items():
        if name in getattr(field.annotation, "model_fields", ()):
            return f"; did you mean {PREFIX}{part.upper()}__{name.upper()}?"
    near = get_close_matches(name, model.model_fields, n=1)
    return f"; did you mean {PREFIX}{near[0].upper()}?" if near else ""


def _is_stray(variable: Variable, model: type[BaseModel]) -> bool:
    """Whether it isn't meant as a setting; one with a section's name in it is, even if wrong."""
    return len(variable.path) == 1 and variable.path[0] not in model.model_fields


def _read_file(path: Path) -> dict[str, Any]:
    try:
        value = read_yaml(path)
    except ConfigError as error:
        raise ConfigError(*(f"{path}: {message}" for message in error.messages)) from None
    if value is not None and not isinstance(value, dict):
        raise ConfigError(f"{path}: not settings; write names with values, see the guide")
    return value or {}


_SHORT = 32
_QUOTED = (
    *("int_parsing", "float_parsing", "bool_parsing", "literal_error"),
    *("greater_than", "greater_than_equal", "less_than", "less_than_equal"),
)
"""Error types whose values are quoted; other values may be addresses with passwords."""


@final
@dataclass(frozen=True)
class SettingSources:
    """The sources of settings; the last source that sets one counts.

    With them an error names the line or the variable that sets a value. pydantic-settings joins its
    sources before it checks them, so its errors can't, and it stops at the first broken variable.

    Attributes:
        path: The file; None for none.
        value: The settings in the file.
        variables: The environment variables.
        options: The options.
    """

    path: Path | None
    value: Mapping[str, Any]
    variables: Sequence[Variable]
    options: Mapping[str, Any]


def setting_errors(
    error: ValidationError, model: type[BaseModel], sources: SettingSources
) -> list[str]:
    """The messages about invalid settings: where each is set and what is wrong.

    Args:
        error: pydantic's error.
        model: The model of the settings.
        sources: The sources of the settings.
    """
    problems = []
    for details in error.errors():
        place = details["loc"]
        sought = place[:-1] if details["type"] == "missing" else place
        is_whole = details["type"] == "value_error" and model_at(place, model) is not None
        where = _find_source(sources, sought, whole=is_whole)
        name = ".".join(map(str, place))
        of_itself = any(v.name == where and v.path == place for v in sources.variables)
        words = _describe_error(details, model)
        problems.append(f"{where}: {words}" if of_itself else f"{where}: {name}: {words}")
    return problems


def meant(name: str, known: Sequence[str]) -> str:
    """The end of a sentence: which known name may be meant; empty if none is similar."""
    close = get_close_matches(name, known, n=1)
    return f"; did you mean {close[0]}?" if close else ""


def _describe_error(details: "ErrorDetails", model: type[BaseModel]) -> str:
    if details["type"] == "extra_forbidden":
        part = model_at(details["loc"][:-1], model)
        names = [] if part is None else list(part.model_fields)
        name = str(details["loc"][-1])
        return f"no such setting; the settings are {', '.join(names)}{meant(name, names)}"
    words, got = details["msg"].removeprefix("Value error, "), details["input"]
    is_word = isinstance(got, str) and details["type"] in _QUOTED and len(got) <= _SHORT
    return f"{words}, not {got!r}" if is_word or isinstance(got, int | float) else words


def _find_source(sources: SettingSources, place: Place, *, whole: bool) -> str:
    """Where the value at a path is set: the last source, or all sources that set parts of it."""
    setters = ["the options"] if _stands(sources.options, place) else []
    setters += [v.name for v in reversed(sources.variables) if _sets(v, place)]
    if sources.path is not None and _stands(sources.value, place):
        setters.append(f"{sources.path}:{line_of(sources.path, place)}")
    return " and ".join(setters if whole else setters[:1]) or str(sources.path or "the settings")


def _sets(variable: Variable, place: Place) -> bool:
    path = variable.path
    if path[: len(place)] == place:
        return True
    within = place[: len(path)] == path
    return within and _stands(variable.value, place[len(path) :])


def _stands(value: Any, place: Place) -> bool:
    """Whether plain values have something at a path."""
    for name in place:
        named = isinstance(value, Mapping) and name in value
        numbered = isinstance(value, list | tuple) and isinstance(name, int) and name < len(value)
        if not (named or numbered):
            return False
        value = value[name]
    return True
