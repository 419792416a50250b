"""Prompts in batches of similar length."""

from collections.abc import Iterator, Sequence

from prefill_router.errors import ConfigError


def batches(lengths: Sequence[int], budget: int) -> Iterator[list[int]]:
    """Positions in batches of similar length, the longest first, each within the budget.

    A prompt that is longer than the budget is a batch of its own.

    Raises:
        ConfigError: The budget isn't positive.
    """
    if budget < 1:
        raise ConfigError(f"the budget of tokens per batch is {budget}; it must be positive")
    order = sorted(range(len(lengths)), key=lambda i: (-lengths[i], i))
    while order:
        count = max(1, budget // lengths[order[0]])
        yield order[:count]
        order = order[count:]
