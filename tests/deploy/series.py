"""The series that a gateway exposes, and those that a PromQL expression names."""

import re
from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from prefill_router_gateway.records import FALLBACK_REASONS, OUTCOMES, REASONS

SELECTOR = re.compile(r"\b(prefill_router_\w+)(?:\{([^}]*)\})?")
MATCHER = re.compile(r'(\w+)\s*(=~|!~|!=|=)\s*"([^"]*)"')
BY = re.compile(r"\bby\s*\(([^)]*)\)")
OF_PROMETHEUS = {"job", "instance"}
WORDS = {"outcome": set(OUTCOMES), "reason": {*REASONS, *FALLBACK_REASONS}}
"""All values of labels of which the samples show only some."""


@dataclass
class Series:
    """The labels of every metric, and the values seen of each."""

    values: dict[str, dict[str, set[str]]] = field(default_factory=lambda: defaultdict(dict))

    def add(self, name: str, labels: Mapping[str, str]) -> None:
        for label, value in labels.items():
            self.values[name].setdefault(label, set()).add(value)
        self.values[name]  # it may have no labels

    def wrong(self, expression: str) -> Iterator[str]:
        """Metrics, labels and values in an expression that no gateway has."""
        label_names = set(OF_PROMETHEUS)
        for name, matchers in SELECTOR.findall(expression):
            if name not in self.values:
                yield name
                continue
            labels = self.values[name]
            label_names |= labels.keys()
            for label, _, value in MATCHER.findall(matchers):
                if label in OF_PROMETHEUS:
                    continue
                if label not in labels:
                    yield f"{name}: {label}"
                elif label in {"kind", "stage", *WORDS}:
                    values = WORDS.get(label, set()) | labels[label]
                    yield from (f"{name}: {label}={v}" for v in value.split("|") if v not in values)
        for group in BY.findall(expression):
            yield from (label for label in re.findall(r"\w+", group) if label not in label_names)
