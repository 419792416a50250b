"""The client of a pool's endpoints: each target is called with its provider's key and dialect.

Providers' keys: read from the environment, never sent over plain HTTP, redacted from texts.

A key may be sent unencrypted to this machine, and to hosts that the environment names. Redaction
is a second line of defence: it removes secrets from what is about to be written. The first is that
nothing that may hold a secret is logged.
"""

import asyncio
import json
import os
import re
from collections.abc import Iterable, Mapping
from dataclasses import replace
from functools import lru_cache
from ipaddress import IPv6Address, ip_address
from types import TracebackType
from typing import TYPE_CHECKING, Any, final
from urllib.parse import quote, urlsplit

from prefill_router.data import Message, Prompt, prompt_text
from prefill_router.endpoints.failures import failed
from prefill_router.endpoints.reply import Reply
from prefill_router.endpoints.reply_reader import ReplyReader
from prefill_router.endpoints.retries import Retries, RetryPolicy
from prefill_router.errors import ConfigError, UpstreamError
from prefill_router.targets import (
    TRAITS,
    Dialect,
    DialectTraits,
    Fields,
    Pool,
    Provider,
    RequestOptions,
    Target,
    recommended_sampling,
)

if TYPE_CHECKING:
    from prefill_router.endpoints.call import ProviderClient


MAX_TOKENS_FIELDS = ("max_tokens", "max_completion_tokens")


def request_parameters(target: Target, dialect: Dialect) -> Fields:
    """The fields of a target's requests other than the messages; `extra_body` overrides the rest.

    Raises:
        ConfigError: The target sets an option that the dialect has no field for.
    """
    traits, options = TRAITS[dialect], target.request
    model = target.model or target.name
    found: Fields = {"model": model, **_limit(traits, options)}
    found |= _reasoning(traits, target, dialect) | _sampling(traits, target, dialect)
    found |= {"stream": True, "stream_options": {"include_usage": True}, **traits.always}
    return _merged(found, options.extra_body)


def identity_parameters(target: Target, dialect: Dialect) -> Fields:
    """The fields that set a target apart from its model: how it reasons, and `extra_body`.

    Sampling, limits and messages aren't among them: the caller chooses these.

    Raises:
        ConfigError: As for `request_parameters`.
    """
    found = {**_reasoning(TRAITS[dialect], target, dialect), **TRAITS[dialect].always}
    merged = _merged(found, target.request.extra_body)
    return {name: value for name, value in merged.items() if name not in MAX_TOKENS_FIELDS}


def request_messages(target: Target, dialect: Dialect, prompt: Prompt) -> list[dict[str, str]]:
    """The messages of a request; a plain prompt becomes one user message.

    Older Nemotron models turn thinking on or off by their system prompt, which must come first.
    """
    turns = (Message("user", prompt),) if isinstance(prompt, str) else prompt
    plain = [{"role": m.role, "content": m.content} for m in turns]
    switch = _system_switch(target, dialect)
    if switch is None:
        return plain
    if plain[0]["role"] == "system":
        return [{"role": "system", "content": f"{switch}\n{plain[0]['content']}"}, *plain[1:]]
    return [{"role": "system", "content": switch}, *plain]


def _system_switch(target: Target, dialect: Dialect) -> str | None:
    on, switch = target.request.enable_thinking, TRAITS[dialect].system_switch
    return None if on is None or switch is None else switch(target.model or target.name, on)


def _limit(traits: DialectTraits, options: RequestOptions) -> Fields:
    if any(name in options.extra_body for name in MAX_TOKENS_FIELDS):
        return {}
    return {traits.max_tokens: options.max_tokens}


def _reasoning(traits: DialectTraits, target: Target, dialect: Dialect) -> Fields:
    options = target.request
    if traits.reasoning is not None:
        return traits.reasoning(target)
    if _system_switch(target, dialect) is not None:
        return {}
    found: Fields = {}
    if options.enable_thinking is not None:
        if traits.thinking is None:
            raise _lacks_field(target, dialect, "enable_thinking")
        found |= traits.thinking(options.enable_thinking)
    if options.reasoning_effort is not None:
        if traits.effort is None:
            raise _lacks_field(target, dialect, "reasoning_effort")
        for name, value in traits.effort(options.reasoning_effort).items():
            both = isinstance(value, dict) and isinstance(found.get(name), dict)
            found[name] = {**found[name], **value} if both else value
    return found


def _sampling(traits: DialectTraits, target: Target, dialect: Dialect) -> Fields:
    options = target.request
    if options.top_k is not None and not traits.top_k:
        raise _lacks_field(target, dialect, "top_k")
    chosen = {n: getattr(options, n) for n in ("temperature", "top_p", "top_k")}
    chosen = {name: value for name, value in chosen.items() if value is not None}
    if traits.recommends and not chosen and options.enable_thinking is not None:
        chosen = recommended_sampling(target.model or target.name, thinking=options.enable_thinking)
    return chosen | ({"seed": options.seed} if traits.seed and options.seed is not None else {})


def _merged(found: Fields, extra: Mapping[str, Any]) -> Fields:
    """The user's fields override ours; `chat_template_kwargs` are merged."""
    merged = {**found, **extra}
    ours, theirs = found.get("chat_template_kwargs"), extra.get("chat_template_kwargs")
    if isinstance(ours, dict) and isinstance(theirs, dict):
        merged["chat_template_kwargs"] = {**ours, **theirs}
    return merged


def _lacks_field(target: Target, dialect: Dialect, option: str) -> ConfigError:
    return ConfigError(
        f"target {target.name!r} sets {option}, for which the dialect {dialect!r} has no field; "
        "leave it out, or give the endpoint's own field in extra_body"
    )


NO_KEY = "none"
"""The key sent to a provider that needs none: some servers require a non-empty one."""
_USUAL_VARIABLE = re.compile(r"[A-Z_][A-Z0-9_]{0,63}")
_KEY = re.compile(r"[!-~]+")


def provider_keys(
    providers: Pool | Iterable[Provider], environment: Mapping[str, str]
) -> dict[Provider, str]:
    """Each provider's key; `NO_KEY` where it names no variable.

    Args:
        providers: The providers, or a pool, which stands for all that serve its targets.
        environment: The variables that hold the keys.

    Raises:
        ConfigError: A key isn't set or isn't valid, would be sent over plain http to another
            machine, or a target of the pool has no endpoint.
    """
    whose = _serving(providers) if isinstance(providers, Pool) else set(providers)
    named = {p: p.api_key_env for p in whose}
    lacking = sorted({n for n in named.values() if n is not None and not environment.get(n)})
    if lacking:
        theirs = sorted(p.name for p, n in named.items() if n in lacking)
        raise ConfigError(
            f"no key for {', '.join(theirs)}: set the environment variable "
            f"{', '.join(map(_variable_name, lacking))}"
        )
    keys = {p: NO_KEY if n is None else environment[n].strip() for p, n in named.items()}
    odd = sorted(str(named[p]) for p, key in keys.items() if not _KEY.fullmatch(key))
    if odd:
        shown = ", ".join(map(_variable_name, odd))
        raise ConfigError(
            f"the environment variable {shown} can't be a key: it has blanks or non-ASCII "
            "characters; set it to the key"
        )
    for provider, name in named.items():
        if name is not None or provider.secrets:
            the_key = f"the key of provider {provider.name!r}"
            check_encrypted(provider.base_url, environment, whose=the_key)
    return keys


def _serving(pool: Pool) -> set[Provider]:
    return {pool.deployed.provider_of(name) for name in pool.deployed.names}


def _variable_name(variable: str) -> str:
    """A variable's name, unless it looks like a key that was put in its place."""
    return variable if _USUAL_VARIABLE.fullmatch(variable) else "that api_key_env names"


PLAIN_HTTP = "PREFILL_ROUTER_PLAIN_HTTP"
"""The variable that names the hosts, separated by commas, to which keys may go over plain HTTP."""


def check_encrypted(base_url: str, environment: Mapping[str, str], *, whose: str) -> None:
    """Check that a key sent to this address can't be read in transit.

    Args:
        base_url: The address that the key would be sent to.
        environment: The variables; `PLAIN_HTTP` may name the address's host.
        whose: A description of the key for the error.

    Raises:
        ConfigError: The key could be read.
    """
    parts = urlsplit(base_url)
    host = (parts.hostname or "").lower()
    allowed = {
        name.strip().lower().strip("[]") for name in environment.get(PLAIN_HTTP, "").split(",")
    }
    if parts.scheme == "https" or is_loopback(host) or host in allowed:
        return
    raise ConfigError(
        f"{whose} would be sent over plain http to {host}, and others could read it; use https://, "
        f"or allow that host by name: {PLAIN_HTTP}={host}"
    )


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach an address."""
    if host.lower() == "localhost":
        return True
    try:
        address = ip_address(host)
    except ValueError:
        return False
    if isinstance(address, IPv6Address) and address.ipv4_mapped is not None:
        return address.ipv4_mapped.is_loopback
    return address.is_loopback


REDACTED = "[redacted]"
_LEAST_SECRET = 4  # characters: redacting shorter ones would garble every line
_LEAST_KEPT = 6
_A_WORD = re.compile(r"[A-Za-z]{1,12}")
_LOOKS_SECRET = re.compile(r"\b(Bearer +|Basic +|sk-|pr-)[A-Za-z0-9_\-.=+/]{16,}", re.IGNORECASE)


@lru_cache(maxsize=256)
def forms_of_key(key: str | None) -> tuple[bytes, ...]:
    """The ways to write a key in JSON; none for placeholders such as `none` or `dummy`."""
    if key is None or len(key) < _LEAST_KEPT or _A_WORD.fullmatch(key):
        return ()
    escaped = json.dumps(key)[1:-1]
    return tuple({form.encode() for form in (key, escaped, escaped.replace("/", "\\/"))})


def without_key(data: bytes, forms: Iterable[bytes]) -> bytes:
    """JSON bytes with these forms of a key redacted; the same object where none occurs."""
    for form in forms:
        if form in data:
            data = data.replace(form, REDACTED.encode())
    return data


@final
class Redaction:
    """Redacts secrets in texts: those that are known, and whatever looks like a key.

    Args:
        secrets: The known secrets, for instance the targets' keys. They are found as they are,
            JSON-escaped and URL-encoded.
    """

    def __init__(self, secrets: Iterable[str] = ()) -> None:
        forms = {
            form
            for secret in secrets
            if len(secret) >= _LEAST_SECRET
            for form in (secret, json.dumps(secret)[1:-1], quote(secret, safe=""))
        }
        longest_first = sorted(forms, key=len, reverse=True)
        self._known = re.compile("|".join(map(re.escape, longest_first))) if forms else None

    @classmethod
    def of_keys(cls, keys: Iterable[str]) -> "Redaction":
        """A redaction of the targets' keys in stored answers.

        Placeholders such as `none` or `dummy` stay: redacting them would garble answers.
        """
        return cls(k for k in keys if len(k) >= _LEAST_KEPT and not _A_WORD.fullmatch(k))

    def __call__(self, text: str) -> str:
        """The text with known secrets, and whatever looks like one, redacted."""
        text = self.known(text)
        return _LOOKS_SECRET.sub(lambda found: found[1] + REDACTED, text)

    def known(self, text: str) -> str:
        """The text with known secrets redacted, and nothing else changed."""
        return text if self._known is None else self._known.sub(REDACTED, text)

    def reply(self, reply: Reply) -> Reply:
        """The reply with known secrets redacted."""
        if self._known is None:
            return reply
        return replace(
            reply,
            text=self.known(reply.text),
            reasoning=self.known(reply.reasoning),
            finish_reason=self._value(reply.finish_reason),
            served_by=self._value(reply.served_by),
            usage=replace(reply.usage, reported=self._value(reply.usage.reported)),
            response=self._value(reply.response),
        )

    def _value(self, value: Any) -> Any:
        if isinstance(value, str):
            return self.known(value)
        if isinstance(value, Mapping):
            return {self._value(name): self._value(item) for name, item in value.items()}
        return [self._value(item) for item in value] if isinstance(value, list | tuple) else value


_WAIT_SECONDS, _LONGEST_WAIT = 1.0, 30.0


@final
class Upstream:
    """A client of a pool's endpoints; open it with `async with`.

    Of a target with several endpoints it calls the first.

    At most `concurrency` calls to a provider are in flight at once; further ones wait.

    Args:
        pool: The targets.
        environment: The variables that hold the keys; by default the process's environment.

    Raises:
        ConfigError: A key isn't set or isn't valid, a target has no endpoint, or it sets an option
            that its dialect has no field for.
    """

    def __init__(self, pool: Pool, *, environment: Mapping[str, str] | None = None) -> None:
        pool = self._pool = pool.at_first()
        self._providers = {name: pool.provider_of(name) for name in pool.names}
        self._parameters = {
            name: request_parameters(pool[name], provider.dialect)
            for name, provider in self._providers.items()
        }
        known = os.environ if environment is None else environment
        self._keys = provider_keys(self._providers.values(), known)
        self._secrets = [*self._keys.values(), *(s for p in self._keys for s in p.secrets)]
        self._callers: dict[Provider, ProviderClient] = {}
        self._gates: dict[Provider, asyncio.Semaphore] = {}

    async def __aenter__(self) -> "Upstream":
        from prefill_router.endpoints.call import ProviderClient

        redaction = Redaction.of_keys(self._secrets)
        for provider, key in self._keys.items():
            self._callers[provider] = ProviderClient(provider, key, redaction)
            self._gates[provider] = asyncio.Semaphore(provider.concurrency)
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        callers, self._callers = self._callers, {}
        for caller in callers.values():
            await caller.close()

    def parameters(self, target: str) -> dict[str, Any]:
        """The fields of a target's requests other than the messages, as they are sent.

        Raises:
            ConfigError: The pool has no such target.
        """
        self._pool.indices([target])
        return dict(self._parameters[target])

    async def ask(self, target: str, prompt: Prompt) -> Reply:
        """Call a target once.

        Raises:
            UpstreamError: It returned no answer, or only part of one.
            ConfigError: The pool has no such target, or the client isn't open.
        """
        self._pool.indices([target])
        return await self.ask_as(self._pool[target], prompt)

    async def ask_as(self, target: Target, prompt: Prompt) -> Reply:
        """Call a target of the pool once, with the options that are given here.

        Raises:
            UpstreamError, ConfigError: As for `ask`.
        """
        self._pool.indices([target.name])
        provider = self._providers[target.name]
        caller = self._callers.get(provider)
        if caller is None:
            raise ConfigError("the client isn't open; ask within: async with Upstream(pool) as ...")
        from prefill_router.endpoints.call import EndpointRequest

        body = self._body(target, prompt)
        question = EndpointRequest(target.name, body, prompt_text(prompt))
        async with self._gates[provider]:
            return await caller.call(question, ReplyReader(provider.dialect))

    def _body(self, target: Target, prompt: Prompt) -> bytes:
        dialect = self._providers[target.name].dialect
        is_own = target is self._pool[target.name]
        told = self._parameters[target.name] if is_own else request_parameters(target, dialect)
        body = {"messages": request_messages(target, dialect, prompt), **told}
        try:
            return json.dumps(body, ensure_ascii=False, allow_nan=False).encode()
        except UnicodeEncodeError:  # a lone surrogate: no Unicode text has one
            raise failed(target.name, "refused", billed="no") from None


def ask_once(pool: Pool, target: str, prompt: Prompt, *, attempts: int = 3) -> Reply:
    """Call one target and wait for its answer; not for use where an event loop is running.

    Args:
        pool: The pool that has the target.
        target: Its name.
        prompt: The prompt.
        attempts: The most calls to make. It waits between them as long as the endpoint says, or
            with exponential backoff from one second, and gives up rather than wait over 30 s.

    Raises:
        UpstreamError: It returned no answer, or only part of one.
        ConfigError: The pool has no such target, or its settings don't allow a call.
    """

    async def ask() -> Reply:
        retries = Retries(RetryPolicy(attempts, _WAIT_SECONDS, patience=1), longest=_LONGEST_WAIT)
        async with Upstream(pool.select([target])) as upstream:
            while True:
                try:
                    return await upstream.ask(target, prompt)
                except UpstreamError as error:
                    await asyncio.sleep(retries.wait(error))

    return asyncio.run(ask())
