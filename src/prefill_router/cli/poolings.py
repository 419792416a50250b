"""The option that says which poolings are meant."""

from prefill_router.activations import POOLINGS, Pooling
from prefill_router.cli.usage import UsageError


def parse_poolings(text: str) -> list[Pooling]:
    """The poolings of an option such as `last,mean`, or `both`.

    Raises:
        UsageError: It names something else.
    """
    asked = list(POOLINGS) if text == "both" else [name.strip() for name in text.split(",")]
    if not set(asked) <= set(POOLINGS):
        raise UsageError(f"--pooling is {text!r}; give last, mean or both")
    return [pooling for pooling in POOLINGS if pooling in asked]
