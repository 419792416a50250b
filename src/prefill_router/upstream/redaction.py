"""A second line of defence: secrets are taken out of what is about to be written.

The first is that nothing that may hold one is given to a log, and that no answer should quote one.
"""

import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import replace
from functools import lru_cache
from typing import Any, final
from urllib.parse import quote

from prefill_router.upstream.reply import Reply

REDACTED = "[redacted]"
_LEAST = 4  # characters: shorter ones would garble every line, and keep nothing secret
_LEAST_KEPT = 6
_A_WORD = re.compile(r"[A-Za-z]{1,12}")
_LOOKS_SECRET = re.compile(r"\b(Bearer +|Basic +|sk-|pr-)[A-Za-z0-9_\-.=+/]{16,}", re.IGNORECASE)


@lru_cache(maxsize=256)
def forms_of_key(key: str | None) -> tuple[bytes, ...]:
    """How JSON may quote a key; nothing of what isn't secret, such as `none` or `dummy`."""
    if key is None or len(key) < _LEAST_KEPT or _A_WORD.fullmatch(key):
        return ()
    escaped = json.dumps(key)[1:-1]
    return tuple({form.encode() for form in (key, escaped, escaped.replace("/", "\\/"))})


def without_key(data: bytes, forms: Iterable[bytes]) -> bytes:
    """Bytes of JSON in which no such form is; the very same where none was."""
    for form in forms:
        if form in data:
            data = data.replace(form, REDACTED.encode())
    return data


@final
class Redaction:
    """Replaces secrets in texts: those that are known, and what looks like a key.

    Args:
        secrets: Known ones, such as the values of the targets' keys. They are looked for as they
            are, and as JSON and addresses would write them.
    """

    def __init__(self, secrets: Iterable[str] = ()) -> None:
        forms = {
            form
            for secret in secrets
            if len(secret) >= _LEAST
            for form in (secret, json.dumps(secret)[1:-1], quote(secret, safe=""))
        }
        longest_first = sorted(forms, key=len, reverse=True)
        self._known = re.compile("|".join(map(re.escape, longest_first))) if forms else None

    @classmethod
    def of_keys(cls, keys: Iterable[str]) -> "Redaction":
        """Replaces the keys of targets in what is kept of answers.

        What isn't secret stays, such as `none` or `dummy`: it would garble answers.
        """
        return cls(k for k in keys if len(k) >= _LEAST_KEPT and not _A_WORD.fullmatch(k))

    def __call__(self, text: str) -> str:
        """The text without secrets, and without what looks like one."""
        text = self.known(text)
        return _LOOKS_SECRET.sub(lambda found: found[1] + REDACTED, text)

    def known(self, text: str) -> str:
        """The text without secrets that are known; anything else is as it was."""
        return text if self._known is None else self._known.sub(REDACTED, text)

    def reply(self, reply: Reply) -> Reply:
        """A reply in which no known secret is quoted."""
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
