"""The policies by kind."""

from collections.abc import Mapping
from typing import Any

from prefill_router.policy.base import Policy
from prefill_router.serialization import Kinds

_POLICIES = Kinds[type[Policy]](
    "policy",
    "prefill_router.policy",
    {
        "lambda": "policies:Lambda",
        "argmax": "policies:Argmax",
        "tolerance": "policies:Tolerance",
        "threshold": "policies:Threshold",
        "tiered": "policies:Tiered",
        "cascade": "cascade:Cascade",
    },
)
KINDS = _POLICIES.names


def from_dict(value: Mapping[str, Any]) -> Policy:
    """The policy that `Policy.to_dict` describes.

    Raises:
        CorruptError: The kind is unknown, or an option is unknown or of the wrong type.
        ConfigError: The options contradict each other.
    """
    return _POLICIES.of_saved(value).parse(value)
