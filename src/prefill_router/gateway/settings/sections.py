"""The sections of the settings, each with its defaults."""

from typing import Annotated, Literal, final

from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator

from prefill_router.gateway.types import Scored
from prefill_router.yaml_files import Number, WholeNumber

Share = Annotated[Number, Field(ge=0, le=1)]
Seconds = Annotated[Number, Field(gt=0, le=86_400)]
Count = Annotated[WholeNumber, Field(ge=1, le=10_000_000)]


class SettingsSection(BaseModel):
    """Settings that belong together; names that aren't known are refused."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)


@final
class ListenSettings(SettingsSection):
    """Where the gateway listens.

    Attributes:
        host: An address of this machine; anything but loopback needs keys.
        port: 0 takes a free one.
        hosts: Names that clients may call it by, in their `Host` header, beside its address.
        unready_seconds: When it is to end, it answers on for so long while `/ready` says that it
            ends, so that whoever balances loads sends no more; not where nobody asks `/ready`.
        drain_seconds: Then requests under way have so long to end.
    """

    host: str = "127.0.0.1"
    port: Annotated[WholeNumber, Field(ge=0, le=65_535)] = 8080
    hosts: tuple[str, ...] = ()
    unready_seconds: Annotated[Number, Field(ge=0, le=86_400)] = 5.0
    drain_seconds: Annotated[Number, Field(ge=0, le=86_400)] = 30.0


@final
class RoutingSettings(SettingsSection):
    """How targets are chosen.

    Attributes:
        lam: The trade-off where a request names none.
        names: Further model names that route, each with its lam, such as `cheap: 0.2`.
        scored: What of a request the encoder reads.
        deadline_seconds: A forecast that takes longer is not waited for.
        max_queue: At most so many requests wait for a forecast.
        max_batch: At most so many are encoded together.
        cache_entries: So many forecasts are remembered; 0 for none.
        reuse_bytes: How much a causal encoder keeps of the beginnings that prompts share, so as not
            to compute them again; 0 for nothing. On a GPU nothing is kept, since batches pay more.
        fallback: Who decides without a forecast: `prior`, the same policy with every target's
            share of correct answers on the train rows; `best` or `cheapest` of these; or a target.
        novelty: A request above this quantile of the train rows counts as unlike them; 1 for never.
    """

    lam: Share = 0.5
    names: dict[str, Share] = Field(default_factory=dict)
    scored: Scored = "last_user"
    deadline_seconds: Seconds = 1.0
    max_queue: Count = 256
    max_batch: Count = 32
    cache_entries: Annotated[WholeNumber, Field(ge=0, le=10_000_000)] = 4096
    reuse_bytes: Annotated[WholeNumber, Field(ge=0, le=2**40)] = 2**28
    fallback: str = "prior"
    novelty: Share = 1.0


@final
class SessionSettings(SettingsSection):
    """How conversations keep their target.

    Attributes:
        known_by: `header`: by the session header alone; `conversation`: without one, also by its
            first turns; `none` decides every request afresh.
        seconds: A conversation that was silent for longer is forgotten.
        cache_seconds: How long providers keep a prompt in their cache.
        margin: A switch must gain more than this in score, beyond the value of the cache.
        most: So many conversations are remembered.
    """

    known_by: Literal["conversation", "header", "none"] = "conversation"
    seconds: Seconds = 3600.0
    cache_seconds: Seconds = 300.0
    margin: Annotated[Number, Field(ge=0, le=2)] = 0.0
    most: Count = 100_000


@final
class FailureSettings(SettingsSection):
    """What is done when a target fails.

    Attributes:
        retries: So many further calls of the same target.
        targets: So many targets at most are asked for one request.
        backoff_seconds: Before the first retry; doubled for each further one, with some chance.
        connect_seconds: In place of the provider's own limit; so are the next three.
        first_token_seconds: Until the first event of a stream; by default the provider's own where
            the pool file sets it, else 60.
        silence_seconds: Between two pieces of a stream.
        answer_seconds: For the whole answer.
        breaker_failures: So many failures in a row open a target's breaker.
        breaker_seconds: So long it stays open, before one request tries again.
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
    """Dollars that may be spent.

    Attributes:
        dollars: How many.
        per: In each hour or day (UTC).
        key: The name of the key it is for; None for the whole gateway.
        soften_from: From this share on, lam falls in a straight line, to 0 where all is spent.
        stop: Whether requests are refused once all is spent; else the cheapest target answers.
    """

    dollars: Annotated[Number, Field(gt=0)]
    per: Literal["hour", "day"]
    key: str | None = None
    soften_from: Annotated[Number, Field(ge=0, lt=1)] = 0.5
    stop: bool = False


@final
class TrafficSettings(SettingsSection):
    """Which share of the traffic is routed.

    Attributes:
        share: Of conversations, that the router decides on; 0 only records what it would decide.
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
    """Where receipts go.

    Attributes:
        url: `sqlite:///FILE`, or `postgresql://...`, whose password may come from `PGPASSWORD`.
        prompts: Whether the text that the encoder read is kept too.
        keep_days: Older receipts are deleted, with their feedback; None keeps all.
        wait_seconds: How long the end of an answer waits for its receipt to be kept.
        max_queue: At most so many wait to be written; what comes then is lost, and counted.
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
                "must be at least 1: at the start, spending and conversations of the last day are "
                "read from them"
            )
        return days


@final
class LimitSettings(SettingsSection):
    """How much clients may ask at once.

    Attributes:
        body_bytes: Of a request's body.
        body_items: Texts, objects and lists in it: reading very many would hold up everybody else.
        header_bytes: Of a request's headers.
        connections: Open at once.
        waiting_per_address: Connections of one address that have sent no whole request's headers;
            further ones are closed at once.
        requests: Under way at once, streams among them; more are refused with 503.
        streams: Streams at once; more are refused with 503.
        held_bytes: Of the bodies of all requests that still need theirs: until an answer begins.
            What finds no room is refused with 503.
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
    """How the log is written, to standard error.

    Attributes:
        form: `json`, one object a line; `text`, for people; `auto`: text on a terminal, else JSON.
        level: The least that is written.
    """

    form: Literal["auto", "json", "text"] = "auto"
    level: Literal["debug", "info", "warning", "error"] = "info"


@final
class StreamSettings(SettingsSection):
    """How streams are forwarded.

    Attributes:
        usage: `ask` has targets report their token counts and leaves that one event out where the
            client didn't ask for it; `leave` sends exactly what the client sent.
    """

    usage: Literal["ask", "leave"] = "ask"
