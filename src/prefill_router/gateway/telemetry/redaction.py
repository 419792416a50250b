"""A second line of defence: secrets are taken out of what is about to be written.

The first is that nothing that may hold one is given to the log.
"""

import json
import re
from collections.abc import Iterable
from typing import final
from urllib.parse import quote

REDACTED = "[redacted]"
_LEAST = 4  # characters: shorter ones would garble every line, and keep nothing secret
_LOOKS_SECRET = re.compile(r"\b(Bearer +|Basic +|sk-|pr-)[A-Za-z0-9_\-.=+/]{16,}", re.IGNORECASE)


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

    def __call__(self, text: str) -> str:
        """The text without secrets."""
        if self._known is not None:
            text = self._known.sub(REDACTED, text)
        return _LOOKS_SECRET.sub(lambda found: found[1] + REDACTED, text)
