"""Batches of prompts of similar length, with little padding or none."""

from collections.abc import Callable, Iterator, Sequence

from prefill_router.errors import ConfigError

MOST_PADDING = 0.1
"""The share of a batch that may be padding."""
SMALL_BATCH = 128
"""Tokens of a batch in which padding costs nothing: a processor reads its weights as long."""


def batches(
    lengths: Sequence[int], budget: int, *, small: int = SMALL_BATCH
) -> Iterator[list[int]]:
    """Group positions into batches of similar length, longest first, each within the budget.

    A prompt that is longer than the budget becomes its own batch. Prompts are padded to the longest
    of their batch, and at most a tenth of that is padding, except in a small batch.

    Args:
        lengths: The number of tokens of each prompt.
        budget: The most tokens in a batch, padding included.
        small: The tokens up to which a batch may have any padding.

    Raises:
        ConfigError: The budget isn't positive.
    """

    def fits(batch: list[int], tokens: int) -> bool:
        size = (len(batch) + 1) * lengths[batch[0]]
        return size <= budget and (size <= small or size - tokens <= MOST_PADDING * size)

    return _group(lengths, budget, fits)


def packed_batches(lengths: Sequence[int], budget: int) -> Iterator[list[int]]:
    """Group positions into batches without padding, longest first, each within the budget.

    A prompt that is longer than the budget becomes its own batch.

    Raises:
        ConfigError: The budget isn't positive.
    """
    return _group(lengths, budget, lambda _, tokens: tokens <= budget)


def _group(
    lengths: Sequence[int], budget: int, fits: Callable[[list[int], int], bool]
) -> Iterator[list[int]]:
    """Fill one batch after another, longest first.

    Args:
        lengths: The number of tokens of each prompt.
        budget: The budget of tokens per batch.
        fits: Whether a batch can have one more prompt, by the number of tokens with it.
    """
    if budget < 1:
        raise ConfigError(f"the budget of tokens per batch is {budget}; it must be positive")
    batch: list[int] = []
    tokens = 0
    for number in sorted(range(len(lengths)), key=lambda i: (-lengths[i], i)):
        tokens += lengths[number]
        if batch and not fits(batch, tokens):
            yield batch
            batch, tokens = [], lengths[number]
        batch.append(number)
    if batch:
        yield batch
