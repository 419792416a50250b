"""Removes keys from texts, replies and forwarded bytes.

Nothing that may hold a secret is logged; this module catches what gets through in spite of that.
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
_LEAST_KEY = 6
_A_WORD = re.compile(r"[A-Za-z]{1,12}")
_LOOKS_SECRET = re.compile(r"\b(Bearer +|Basic +|sk-|pr-)[A-Za-z0-9_\-.=+/]{16,}", re.IGNORECASE)


@lru_cache(maxsize=256)
def forms_of_key(key: str | None) -> tuple[bytes, ...]:
    """The ways to write a key in JSON; none for placeholders such as `none` or `dummy`."""
    if key is None or len(key) < _LEAST_KEY or _A_WORD.fullmatch(key):
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
        self._secrets = re.compile("|".join(map(re.escape, longest_first))) if forms else None

    @classmethod
    def of_keys(cls, keys: Iterable[str]) -> "Redaction":
        """A redaction of the targets' keys in stored answers.

        Placeholders such as `none` or `dummy` stay: redacting them would garble answers.
        """
        return cls(k for k in keys if len(k) >= _LEAST_KEY and not _A_WORD.fullmatch(k))

    def __call__(self, text: str) -> str:
        """The text with known secrets, and whatever looks like one, redacted."""
        text = self.redact_known(text)
        return _LOOKS_SECRET.sub(lambda match: match[1] + REDACTED, text)

    def redact_known(self, text: str) -> str:
        """The text with known secrets redacted, and nothing else changed."""
        return text if self._secrets is None else self._secrets.sub(REDACTED, text)

    def redact_reply(self, reply: Reply) -> Reply:
        """The reply with known secrets redacted."""
        if self._secrets is None:
            return reply
        return replace(
            reply,
            text=self.redact_known(reply.text),
            reasoning=self.redact_known(reply.reasoning),
            finish_reason=self._redact_value(reply.finish_reason),
            served_by=self._redact_value(reply.served_by),
            usage=replace(reply.usage, reported=self._redact_value(reply.usage.reported)),
            response=self._redact_value(reply.response),
        )

    def _redact_value(self, value: Any) -> Any:
        if isinstance(value, str):
            return self.redact_known(value)
        if isinstance(value, Mapping):
            return {
                self._redact_value(name): self._redact_value(item) for name, item in value.items()
            }
        if isinstance(value, list | tuple):
            return [self._redact_value(item) for item in value]
        return value
