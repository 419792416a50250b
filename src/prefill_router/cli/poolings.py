"""The option that says which poolings are meant."""

from typing import TYPE_CHECKING

from prefill_router.cli.usage import UsageError

if TYPE_CHECKING:
    from prefill_router.activations import Pooling


def parse_poolings(text: str) -> list["Pooling"]:
    """The poolings of an option such as `last,mean`, or `both`.

    Raises:
        UsageError: It names something else.
    """
    from prefill_router.activations import POOLINGS

    asked = list(POOLINGS) if text == "both" else [name.strip() for name in text.split(",")]
    if not set(asked) <= set(POOLINGS):
        raise UsageError(f"--pooling is {text!r}; give last, mean or both")
    return [pooling for pooling in POOLINGS if pooling in asked]
