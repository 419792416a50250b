"""How long fitting a list of routers will take, estimated before it begins.

The figures are from `compare all` on two cores: 22 routers of 115,000 labels took some 25 minutes,
and seven of 765 labels some 8 s each. Routers differ by a factor of five, so a range is given.
"""

from prefill_router.data import RoutingDataset, Split

_SECONDS_PER_FIT, _SECONDS_PER_THOUSAND = 8.0, 0.5
_LOW, _HIGH = 0.4, 1.2


def estimate_minutes(fits: int, dataset: RoutingDataset, split: Split) -> tuple[float, float]:
    """The least and the most minutes that fits are likely to take, without encoding.

    Args:
        fits: How many routers are fitted.
        dataset: Scored answers.
        split: The split.
    """
    labels = len(split["train"]) * len(dataset.pool)
    seconds = fits * (_SECONDS_PER_FIT + _SECONDS_PER_THOUSAND * labels / 1000)
    return _LOW * seconds / 60, _HIGH * seconds / 60


def describe_minutes(low: float, high: float) -> str:
    """The range in words.

    Args:
        low: The least minutes.
        high: The most minutes.
    """
    if high < 1:
        return "less than a minute"
    if high > 120:
        return f"{low / 60:.1f} to {high / 60:.1f} hours"
    return f"{max(1, round(low))} to {max(2, round(high))} minutes"
