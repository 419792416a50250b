"""The train rows that a method can learn from, in an order of their own."""

import numpy as np

from prefill_router.predictors.fitted import Examples


def usable_rows(examples: Examples) -> Examples:
    """The rows that have a label of a learnable target, in the order of their content.

    What is fitted to them depends neither on the order of the rows nor on rows without labels.
    """
    rows = np.flatnonzero((examples.present & examples.learnable).any(axis=1))
    # Sums with 0 make one of the two zeros, which are equal and have different bytes.
    features, correct = examples.features + np.float32(0), examples.correct + 0.0
    content = [features[i].tobytes() + correct[i].tobytes() for i in rows]
    order = rows[sorted(range(len(rows)), key=content.__getitem__)]
    groups = tuple(examples.groups[i] for i in order)
    return Examples(features[order], correct[order], examples.targets, groups)


def left_out_note(examples: Examples, used: int) -> tuple[str, ...]:
    """A note of how many rows had no usable label, if any.

    Args:
        examples: All train rows.
        used: How many of them `usable_rows` has left.
    """
    left = len(examples.features) - used
    return (f"{left} queries without a usable label were left out",) if left else ()
