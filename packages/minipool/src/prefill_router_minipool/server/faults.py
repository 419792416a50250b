"""Fault injection: rules that say what goes wrong with which requests.

A persona is a provider's dialect, which decides how reasoning and usage are reported. A rate limit
can also be a real one, in requests per second.

A file of faults is YAML::

    seed: 0
    rules:
      - {kind: rate_limit, share: 0.1, retry_after: 0.5, form: ms}
      - {kind: status, status: 503, attempts: 1}         # the first attempt at every prompt
      - {kind: break, model: atlas, after: 2, requests: [0, 3]}
    personas:
      atlas: {style: deepseek, reasoning: 12}

One rule as text is its kind and its fields: `rate_limit,share=0.1,retry_after=0.5,form=ms`.
"""

import hashlib
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from http import HTTPStatus
from pathlib import Path
from typing import Any, ClassVar, Literal, final, get_args

from pydantic import ConfigDict, TypeAdapter, ValidationError

from prefill_router.endpoints import TokenBucket
from prefill_router.errors import ConfigError, FormatError
from prefill_router.targets import Dialect
from prefill_router.yaml_files import DistinctLoader, NotYamlError, parse_yaml

_THOUGHTS = ("let ", "me t", "hink", ". ", "well", ", ", "so ", "it i", "s. ")
_TEXT_FIELD: dict[Dialect, str] = {"vllm": "reasoning", "openrouter": "reasoning"}
"""The field of reasoning; in other dialects it is `reasoning_content`."""
_REPORTS_REASONING_TOKENS = frozenset({"openai", "deepseek", "qwen", "openrouter"})
_REPORTS_NO_DETAILS = frozenset({"anthropic", "vllm", "sglang", "nemotron"})


@final
@dataclass(frozen=True, kw_only=True)
class Persona:
    """A provider's dialect.

    Attributes:
        style: The dialect. `openai` hides its reasoning and counts it, `anthropic` hides it and
            doesn't count it apart, `nemotron` writes it into the answer between `<think>` and
            `</think>`, the others send it in a field of its own.
        reasoning: Tokens of made-up reasoning before each answer, unless the request turns it off.
        cached: Input tokens to report as cached, at most as many as the prompt has.
        cost: US dollars per answer that `openrouter` reports.
    """

    __pydantic_config__: ClassVar[ConfigDict] = ConfigDict(extra="forbid")

    style: Dialect = "openai"
    reasoning: int = 0
    cached: int = 0
    cost: float = 0.0

    def __post_init__(self) -> None:
        if min(self.reasoning, self.cached, self.cost) < 0:
            raise ConfigError("a persona's reasoning, cached and cost can't be negative")

    @property
    def shows_reasoning(self) -> bool:
        """Whether its reasoning is sent at all."""
        return self.style not in ("openai", "anthropic")

    @property
    def opening(self) -> bytes:
        """The bytes before a stream's first event, such as OpenRouter's keep-alive comment."""
        return b": OPENROUTER PROCESSING\n\n" if self.style == "openrouter" else b""

    @property
    def joins_usage(self) -> bool:
        """Whether a stream's usage is in the chunk of the finish reason, not in one of its own."""
        return self.style == "deepseek"

    def thoughts(self, tokens: int) -> list[str]:
        """Made-up reasoning of this many tokens."""
        return [_THOUGHTS[i % len(_THOUGHTS)] for i in range(tokens)]

    def reasoning_delta(self, text: str) -> dict[str, Any]:
        """The fields with reasoning, of a chunk or of a message."""
        if self.style == "nemotron":
            return {"content": text}
        delta: dict[str, Any] = {_TEXT_FIELD.get(self.style, "reasoning_content"): text}
        if self.style == "openrouter":
            detail = {"type": "reasoning.text", "text": text, "format": "unknown", "index": 0}
            delta["reasoning_details"] = [detail]
        return delta

    def extra(self) -> dict[str, Any]:
        """Further fields of a reply."""
        return {"provider": "minipool"} if self.style == "openrouter" else {}

    def usage(self, prompt: int, completion: int, reasoning: int) -> dict[str, Any]:
        """The token counts of an answer; `completion` includes `reasoning`."""
        cached = min(self.cached, prompt)
        counts: dict[str, Any] = {
            "prompt_tokens": prompt,
            "completion_tokens": completion,
            "total_tokens": prompt + completion,
        }
        if self.style not in _REPORTS_NO_DETAILS:
            counts["prompt_tokens_details"] = {"cached_tokens": cached}
        elif self.style != "anthropic":
            counts["prompt_tokens_details"] = {"cached_tokens": cached} if cached else None
        if self.style in _REPORTS_REASONING_TOKENS:
            counts["completion_tokens_details"] = {"reasoning_tokens": reasoning}
        if self.style == "deepseek":
            counts["prompt_cache_hit_tokens"] = cached
            counts["prompt_cache_miss_tokens"] = prompt - cached
        if self.style == "openrouter":
            counts["cost"] = self.cost
        return counts


Refusal = Literal[
    "status", "rate_limit", "rate", "unauthorized", "context_length", "unsupported_field"
]
Cut = Literal["break", "truncate", "hang", "error_event"]
Kind = Literal[
    "delay",
    "stall",
    "slow",
    Refusal,
    Cut,
    "usage",
    "bad_json",
    "bad_sse",
    "empty",
    "wrong_model",
    "finish",
]
REFUSALS = frozenset(get_args(Refusal))
CUTS = frozenset(get_args(Cut))


@final
@dataclass(frozen=True, kw_only=True)
class Rule:
    """A fault, and the requests that it happens to.

    Attributes:
        kind: The fault.

            - `delay`: a wait of `seconds` before the headers.
            - `stall`: a wait of `seconds` after the headers, before the first token.
            - `slow`: a wait of `seconds` before each further chunk.
            - `status`: the HTTP status `status`.
            - `rate_limit`: 429 with `retry_after` seconds, in the form `form`.
            - `rate`: the same for requests beyond `per_second`, after a burst of `burst`.
            - `unauthorized`: 401; `context_length`: 400 as for a prompt that is too long.
            - `unsupported_field`: 400 where the request has the field `field`.
            - `break`: the connection is closed after `after` chunks of text.
            - `truncate`: the HTTP reply ends regularly after `after` chunks, without final events.
            - `hang`: nothing more is sent after `after` chunks.
            - `error_event`: an error is sent as an event of the stream after `after` chunks.
            - `bad_json`, `bad_sse`: the chunk after `after` others is malformed.
            - `usage`: the token counts are missing or wrong, as `usage` says.
            - `empty`: the answer has no text; the generated tokens are billed all the same.
            - `wrong_model`: the reply names the model `reply_model`.
            - `finish`: the finish reason is `finish`.
        model: The model that it happens to; `*` for every model.
        share: The probability in [0, 1], drawn for each attempt at each prompt.
        attempts: Only this many first attempts at each prompt.
        requests: Only these requests to the model, numbered from 0.
        contains: Only if the last turn contains this text.
        times: At most this many times altogether.
        seconds: The time to wait.
        status: An HTTP status, 400 to 599.
        retry_after: Seconds to ask for; None for no such header.
        form: The header: `Retry-After` in seconds or as a date, or `retry-after-ms`.
        per_second: Requests per second that `rate` admits.
        burst: Requests that `rate` admits at once.
        after: Chunks of text that are sent before; fewer if the answer is shorter.
        usage: Missing, all zero, a thousand times too large, negative, null, or text.
        finish: The finish reason to report.
        reply_model: The model's name to report.
        field: The field to refuse.
    """

    __pydantic_config__: ClassVar[ConfigDict] = ConfigDict(extra="forbid")

    kind: Kind
    model: str = "*"
    share: float = 1.0
    attempts: int | None = None
    requests: tuple[int, ...] | None = None
    contains: str | None = None
    times: int | None = None
    seconds: float = 1.0
    status: int = 500
    retry_after: float | None = None
    form: Literal["seconds", "date", "ms"] = "seconds"
    per_second: float = 10.0
    burst: int = 1
    after: int = 1
    usage: Literal["omit", "zero", "huge", "negative", "null", "text"] = "omit"
    finish: Literal["length", "content_filter"] = "length"
    reply_model: str = "another-model"
    field: str = "max_tokens"

    def __post_init__(self) -> None:
        if not 0 <= self.share <= 1:
            raise ConfigError(f"a fault has the share {self.share}; shares lie in [0, 1]")
        if self.status not in set(HTTPStatus) or not 400 <= self.status <= 599:
            raise ConfigError(f"a fault has the status {self.status}; errors are 400 to 599")
        if self.per_second <= 0 or self.burst < 1:
            raise ConfigError("per_second must be above 0, and burst at least 1")
        if min(self.seconds, self.retry_after or 0, self.after) < 0:
            raise ConfigError("seconds, retry_after and after can't be negative")


@final
@dataclass(frozen=True, kw_only=True)
class Faults:
    """The faults to inject, and the dialect of each model.

    Attributes:
        rules: All rules that match a request apply, except that only the first refusal does, and
            only the first fault that cuts the reply off.
        seed: The seed of the shares. A draw depends on the rule, the model, the prompt and the
            number of the attempt at it, and not on the order of requests.
        personas: The dialects of models, by name; `*` for every other model.
    """

    __pydantic_config__: ClassVar[ConfigDict] = ConfigDict(extra="forbid")

    rules: Sequence[Rule] = ()
    seed: int = 0
    personas: Mapping[str, Persona] = field(default_factory=dict)

    def persona_of(self, model: str) -> Persona:
        """The dialect of a model."""
        return self.personas.get(model) or self.personas.get("*") or Persona()

    def check_models(self, names: Sequence[str]) -> None:
        """Check that all models in the rules are served.

        Raises:
            ConfigError: One isn't.
        """
        rule_models = {*(rule.model for rule in self.rules), *self.personas}
        unknown = sorted(rule_models - {"*", *names})
        if unknown:
            raise ConfigError(f"faults name the models {unknown}; those served are {list(names)}")


Effects = dict[str, Rule]
"""The rules that apply to one request, by kind, in their order."""


@final
class FaultInjector:
    """Decides which faults each request gets; counts the requests."""

    def __init__(self, faults: Faults, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._faults = faults
        self._requests: Counter[str] = Counter()
        self._attempts: Counter[tuple[str, bytes]] = Counter()
        self._times: Counter[int] = Counter()
        self._clock = clock
        self._buckets = [_make_bucket(rule, clock()) for rule in faults.rules]

    def next(self, model: str, prompt: str, fields: Mapping[str, Any]) -> tuple[Effects, float]:
        """The faults of the next request, and the seconds that a `rate` asks to wait."""
        request, key = self._requests[model], (model, _digest(prompt))
        attempt = self._attempts[key]
        self._requests[model] += 1
        self._attempts[key] += 1
        effects: Effects = {}
        wait = 0.0
        for place, rule in enumerate(self._faults.rules):
            if _is_excluded(rule, effects):
                continue
            if not self._matches(place, rule, model, prompt, request):
                continue
            if rule.attempts is not None and attempt >= rule.attempts:
                continue
            if self._draw(place, key, attempt) >= rule.share:
                continue
            if rule.kind == "unsupported_field" and fields.get(rule.field) is None:
                continue
            if rule.kind == "rate" and not (wait := self._take(place)):
                continue
            self._times[place] += 1
            effects[rule.kind] = rule
        if REFUSALS & effects.keys():
            effects = {k: rule for k, rule in effects.items() if k in REFUSALS or k == "delay"}
        return effects, wait

    def _matches(self, place: int, rule: Rule, model: str, prompt: str, request: int) -> bool:
        return (
            rule.model in ("*", model)
            and (rule.requests is None or request in rule.requests)
            and (rule.contains is None or rule.contains in prompt)
            and (rule.times is None or self._times[place] < rule.times)
        )

    def _take(self, place: int) -> float:
        """Admit a request and return 0, or return the seconds until one can be admitted."""
        wait = self._buckets[place].wait(1, self._clock())
        if not wait:
            self._buckets[place].take(1)
        return wait

    def _draw(self, place: int, key: tuple[str, bytes], attempt: int) -> float:
        """A pseudo-random number in [0, 1) that depends only on these values and the seed."""
        text = f"{self._faults.seed}/{place}/{key[0]}/{attempt}/".encode() + key[1]
        return int.from_bytes(hashlib.sha256(text).digest()[:6]) / 2**48


def _make_bucket(rule: Rule, now: float) -> TokenBucket:
    """A bucket that admits the burst, and then `per_second` requests each second."""
    return TokenBucket(60 * rule.per_second + rule.burst - 1, burst=rule.burst, now=now)


def _digest(prompt: str) -> bytes:
    return hashlib.sha256(prompt.encode("utf-8", "surrogatepass")).digest()


def _is_excluded(rule: Rule, effects: Effects) -> bool:
    """Whether an earlier rule excludes this one."""
    if rule.kind in REFUSALS:
        return bool(REFUSALS & effects.keys())
    return rule.kind in effects or (rule.kind in CUTS and bool(CUTS & effects.keys()))


def read_faults(path: Path) -> Faults:
    """Read a file of faults.

    Raises:
        FormatError: The file is missing or isn't YAML, or has an unknown field or value.
    """
    try:
        value = parse_yaml(path.read_text(encoding="utf-8-sig"), DistinctLoader)
        return TypeAdapter(Faults).validate_python({} if value is None else value)
    except FileNotFoundError:
        raise FormatError("no such file; faults are a YAML file with rules", file=path) from None
    except (UnicodeDecodeError, NotYamlError):
        raise FormatError("not YAML; faults are a YAML file with rules", file=path) from None
    except ValidationError as error:
        raise FormatError(_describe_error(error, "faults"), file=path) from None
    except ConfigError as error:
        raise FormatError(str(error), file=path) from None


def parse_rule(text: str) -> Rule:
    """A rule from text such as `status,share=0.2,status=503`.

    Raises:
        ConfigError: The text has another form, or an unknown kind or field.
    """
    kind, *rest = text.split(",")
    pairs = [part.partition("=") for part in rest]
    malformed = [name for name, sign, _ in pairs if not sign]
    if malformed:
        raise ConfigError(f"the fault {text!r}: {malformed[0]!r} isn't of the form field=value")
    value: dict[str, Any] = {name.strip(): content.strip() for name, _, content in pairs}
    if "requests" in value:
        value["requests"] = value["requests"].split()
    try:
        return TypeAdapter(Rule).validate_python({**value, "kind": kind.strip()})
    except ValidationError as error:
        raise ConfigError(f"the fault {text!r}: {_describe_error(error, 'fault')}") from None


def _describe_error(error: ValidationError, whole: str) -> str:
    first = error.errors()[0]
    return f"{'.'.join(map(str, first['loc'])) or whole}: {first['msg']}"
