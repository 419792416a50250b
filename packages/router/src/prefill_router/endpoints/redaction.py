"""Removes keys from texts, replies and forwarded bytes.

It is the second line of defence: the first is that nothing that may hold a secret is logged.
"""

import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import replace
from functools import lru_cache
from typing import Any, final
from urllib.parse import quote

from prefill_router.endpoints.reply import Reply

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
