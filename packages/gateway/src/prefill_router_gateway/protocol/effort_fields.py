"""Bodies of requests with the effort of the target that they go to.

The effort takes the place of what the client says of it: the router has chosen the target with its
effort, or the client named it so.
"""

import json
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import final

from prefill_router.endpoints import effort_changes
from prefill_router.targets import Endpoint, Fields
from prefill_router_gateway.protocol.envelope import Splicer, read_envelope, read_fields


@final
@dataclass(frozen=True, kw_only=True)
class EffortRule:
    """How the effort of a target is said in a body.

    Attributes:
        fields: The fields that say it, by endpoint.
        refused: The fields of a client that a model with this effort refuses.
    """

    fields: Mapping[Endpoint, Fields]
    refused: Collection[str] = ()


def effort_splicer(endpoint: Endpoint, body: bytes, rule: EffortRule) -> Splicer:
    """Makes the bodies for a target with an effort.

    The values of other fields keep their bytes.

    Args:
        endpoint: The protocol, one that can say the effort.
        body: The body, which was read.
        rule: How the effort is said.
    """
    return read_envelope(endpoint, _with_effort(endpoint, body, rule)).splicer


def _with_effort(endpoint: Endpoint, body: bytes, rule: EffortRule) -> bytes:
    text = body.decode()
    fields = read_fields(text)
    changes = effort_changes(endpoint, fields.value, rule.fields[endpoint], rule.refused)
    texts = {name: text[start:end] for name, (start, end) in fields.spans.items()}
    texts |= {name: json.dumps(value) for name, value in changes.items()}
    written = (n for n in texts if n not in changes or changes[n] is not None)
    return b"{%b}" % ",".join(f"{json.dumps(n)}:{texts[n]}" for n in written).encode()
