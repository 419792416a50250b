"""The sections of the settings, each with its defaults."""

from typing import Annotated, Literal, final

from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator

from prefill_router.gateway.types import Scored
from prefill_router.yaml_files import Number, WholeNumber

Share = Annotated[Number, Field(ge=0, le=1)]
Seconds = Annotated[Number, Field(gt=0, le=86_400)]
Count = Annotated[WholeNumber, Field(ge=1, le=10_000_000)]


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
        unready_seconds: At shutdown, how long it still answers while `/ready` reports that it is
            ending, so that load balancers stop sending requests; skipped if `/ready` was never
            requested.
        drain_seconds: After that, how long requests in flight have to end.
    """

    host: str = "127.0.0.1"
    port: Annotated[WholeNumber, Field(ge=0, le=65_535)] = 8080
    hosts: tuple[str, ...] = ()
    unready_seconds: Annotated[Number, Field(ge=0, le=86_400)] = 5.0
    drain_seconds: Annotated[Number, Field(ge=0, le=86_400)] = 30.0


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
    dollars_per_second: Annotated[Number, Field(ge=0, le=1000)] = 0.0
    until: Literal["answer", "first_token"] = "answer"
    keep: Share = 1.0


@final
class RoutingSettings(SettingsSection):
    """The settings of the choice of targets.

    Attributes:
        lam: The trade-off of requests that give none; where it isn't set, a version has its own.
        names: Further model names that route, each with its lam, for example `cheap: 0.2`.
        options: Further names of targets for questions to decision models, for example
            `SIMPLE: small`.
        scored: The part of a request that the encoder reads.
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
    options: dict[str, str] = Field(default_factory=dict)
    scored: Scored = "last_user"
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
class FailureSettings(SettingsSection):
    """The settings for failures of targets.

    Attributes:
        retries: The most retries of the same target.
        targets: The most targets that are called for one request.
        backoff_seconds: The wait before the first retry; doubled for each further one, with jitter.
        connect_seconds: The time limit for connecting, which overrides the provider's, like the
            next three.
        first_token_seconds: The time limit for the first event of a stream; by default the
            provider's where the pool file sets it, otherwise 60.
        silence_seconds: The time limit between two pieces of a stream.
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

    dollars: Annotated[Number, Field(gt=0)]
    per: Literal["hour", "day"]
    key: str | None = None
    soften_from: Annotated[Number, Field(ge=0, lt=1)] = 0.5
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
    """The settings by which savings are told.

    Attributes:
        baseline: The target that the gateway is compared with; None for the target with the highest
            train accuracy.
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
    lease: Annotated[Number, Field(gt=0, le=1)] = 0.02
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
    """

    usage: Literal["ask", "leave"] = "ask"
