"""The time of a comparison, estimated before it begins."""

from prefill_router.comparison import describe_minutes, estimate_minutes
from prefill_router.data import split
from prefill_router.testing import make_routing_dataset


def test_more_work_takes_longer() -> None:
    small, large = (make_routing_dataset(queries=count) for count in (40, 400))
    base = estimate_minutes(22, small, split(small))
    assert base[0] < base[1]
    assert estimate_minutes(44, small, split(small))[1] == 2 * base[1]
    assert estimate_minutes(22, large, split(large))[0] > base[0]


def test_the_range_is_in_units_that_people_use() -> None:
    assert describe_minutes(0.1, 0.4) == "less than a minute"
    assert describe_minutes(9.7, 29.2) == "10 to 29 minutes"
    assert describe_minutes(60, 180) == "1.0 to 3.0 hours"
