"""The policies by kind."""

from collections.abc import Mapping
from typing import Any

from prefill_router.errors import CorruptError
from prefill_router.policy.base import Policy
from prefill_router.policy.cascade import Cascade
from prefill_router.policy.policies import Argmax, Lambda, Threshold, Tiered, Tolerance

_OF_KIND: Mapping[str, type[Policy]] = {
    "lambda": Lambda,
    "argmax": Argmax,
    "tolerance": Tolerance,
    "threshold": Threshold,
    "tiered": Tiered,
    "cascade": Cascade,
}
KINDS: tuple[str, ...] = tuple(_OF_KIND)


def from_dict(value: Mapping[str, Any]) -> Policy:
    """The policy of `Policy.to_dict`.

    Raises:
        CorruptError: The kind is unknown, or an option is unknown or of the wrong type.
        ConfigError: The options contradict each other.
    """
    kind = value.get("kind")
    if not isinstance(kind, str) or kind not in _OF_KIND:
        raise CorruptError(
            f"the policy is of the kind {kind!r}; known are {list(KINDS)}; "
            "it may need a newer version of prefill-router"
        )
    return _OF_KIND[kind].from_dict(value)
