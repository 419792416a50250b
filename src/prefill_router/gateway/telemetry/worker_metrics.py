"""The metrics of several workers as those of one gateway: counters and some gauges are added."""

from collections.abc import Collection, Iterable, Iterator
from typing import Any, final

from prometheus_client import CollectorRegistry
from prometheus_client.core import Metric
from prometheus_client.registry import Collector
from prometheus_client.samples import Sample

PlainFamily = list[Any]
"""A metric as plain values: name, description, type, and samples of name, labels and value."""
_ADDED = ("counter", "histogram")


def plain_families(metrics: Iterable[Metric]) -> list[PlainFamily]:
    """Metrics as plain values."""
    return [
        [m.name, m.documentation, m.type, [[s.name, s.labels, s.value] for s in m.samples]]
        for m in metrics
    ]


def counters_of(families: Iterable[PlainFamily]) -> list[PlainFamily]:
    """What counts on after its worker has ended, so that no sum ever falls."""
    return [family for family in families if family[2] in _ADDED]


def merged(workers: Iterable[list[PlainFamily]], *, sums: Collection[str]) -> list[PlainFamily]:
    """The metrics of several workers as those of one gateway.

    Args:
        workers: The metrics of each.
        sums: The gauges whose values are added; the largest counts of the others.
    """
    heads: dict[str, PlainFamily] = {}
    values: dict[str, dict[tuple[str, tuple[tuple[str, str], ...]], float]] = {}
    for name, description, kind, samples in (family for one in workers for family in one):
        heads.setdefault(name, [name, description, kind])
        found = values.setdefault(name, {})
        for sample, labels, value in samples:
            place = sample, tuple(sorted(labels.items()))
            is_added = kind in _ADDED or name in sums
            had = found.get(place)
            found[place] = value if had is None else had + value if is_added else max(had, value)
    return [
        [*head, [[sample, dict(labels), n] for (sample, labels), n in values[name].items()]]
        for name, head in heads.items()
    ]


def registry_of(families: Iterable[PlainFamily]) -> CollectorRegistry:
    """A registry with these metrics."""
    registry = CollectorRegistry()
    registry.register(_Plain(list(families)))
    return registry


@final
class _Plain(Collector):
    def __init__(self, families: list[PlainFamily]) -> None:
        self._families = families

    def collect(self) -> Iterator[Metric]:
        for name, description, kind, samples in self._families:
            metric = Metric(name, description, kind)
            metric.samples = [Sample(*sample) for sample in samples]
            yield metric
