"""What a shift trains on and tests on: benchmarks or domains, and the splits that follow."""

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, final

from prefill_router.data import Part, Query, RoutingDataset, Split, split
from prefill_router.errors import ConfigError, DataError

Arm = Literal["reference", "shifted", "equal"]
"""Trained on the whole train part; on the shift's part of it; on as many queries of the whole."""
PRESETS: Mapping[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "mmlu-pro-stem": (
        ("biology", "chemistry", "computer science", "engineering", "math", "physics"),
        ("history", "law", "philosophy", "economics", "psychology"),
    )
}
"""What is trained on and tested on. The paper doesn't list the categories of its STEM, humanities
and social sciences; these follow MMLU's own grouping (Hendrycks et al., 2021), whose fourth group
(business, health, other) is in neither."""
_LEAST = 2


@final
@dataclass(frozen=True)
class Shift:
    """A shift by name.

    Attributes:
        train_on: Benchmarks or domains that are trained on.
        test_on: Those that are tested on.

    Raises:
        ConfigError: One of them is empty, or they share a name.
    """

    train_on: tuple[str, ...]
    test_on: tuple[str, ...]

    def __post_init__(self) -> None:
        both = sorted(set(self.train_on) & set(self.test_on))
        if both or not self.train_on or not self.test_on:
            raise ConfigError(
                f"train on {list(self.train_on)} and test on {list(self.test_on)}: name at least "
                "one of each, and none in both"
            )

    @classmethod
    def preset(cls, name: str) -> "Shift":
        """One of the shifts of the paper.

        Raises:
            ConfigError: There is none of this name.
        """
        if name not in PRESETS:
            raise ConfigError(f"there is no preset {name!r}; there are {list(PRESETS)}")
        return cls(*PRESETS[name])

    @classmethod
    def hold_out(cls, dataset: RoutingDataset, held: Sequence[str]) -> "Shift":
        """Test on these benchmarks or domains and train on all others of the same kind.

        Raises:
            ConfigError: One is unknown, or nothing is left to train on.
        """
        for kind in ("benchmark", "domain"):
            known = sorted({getattr(query, kind) for query in dataset.queries} - {""})
            if set(held) <= set(known):
                rest = tuple(name for name in known if name not in held)
                if not rest:
                    raise ConfigError(
                        f"{list(held)} is every {kind} there is; nothing is left to train on"
                    )
                return cls(rest, tuple(held))
        raise ConfigError(
            f"{list(held)} are no benchmarks, and no domains, of the dataset; {_known(dataset)}"
        )

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON."""
        return {"train_on": list(self.train_on), "test_on": list(self.test_on)}


@final
@dataclass(frozen=True)
class ShiftArms:
    """The splits of a shift; all have the same test part.

    Attributes:
        splits: By arm.
        sizes: Train queries by arm.
        domains: How many test queries each benchmark or domain tested on has.
    """

    splits: Mapping[Arm, Split]
    sizes: Mapping[Arm, int]
    domains: Mapping[str, int]


def arms(dataset: RoutingDataset, drawn: Split, shift: Shift, *, seed: int = 0) -> ShiftArms:
    """The splits to train on.

    A query counts for a name that is its benchmark, its domain or `benchmark/domain`. One that
    counts for both sides is only tested on.

    Args:
        dataset: Scored answers.
        drawn: The whole split; its test part alone is tested on.
        shift: What is trained on and tested on.
        seed: Of the draw for the reference of equal size.

    Raises:
        ConfigError: A name is unknown.
        DataError: Too few queries are left to train on, or none to test on.
    """
    test_on, train_on = (_members(dataset, names) for names in (shift.test_on, shift.train_on))
    train_on -= test_on
    test = tuple(i for i in drawn["test"] if i in test_on)
    shifted = _only(drawn, train_on, test)
    if not test or len(shifted["train"]) < _LEAST:
        raise DataError(
            f"{len(shifted['train'])} queries of the train part are left to train on and "
            f"{len(test)} of the test part to test on; name larger benchmarks or domains"
        )
    splits: dict[Arm, Split] = {
        "reference": _only(drawn, set(dataset.query_ids), test),
        "shifted": shifted,
        "equal": _thinned(dataset, drawn, shifted, test, seed),
    }
    named = Counter(_label(query, shift.test_on) for query in dataset.select(test).queries)
    sizes = {arm: len(one["train"]) for arm, one in splits.items()}
    return ShiftArms(splits, sizes, dict(sorted(named.items())))


def _only(drawn: Split, members: set[str], test: tuple[str, ...]) -> Split:
    parts: dict[Part, tuple[str, ...]] = {
        part: tuple(i for i in ids if i in members) for part, ids in drawn.parts.items()
    }
    return Split({**parts, "test": test}, drawn.seed, drawn.merged)


def _thinned(
    dataset: RoutingDataset, drawn: Split, like: Split, test: tuple[str, ...], seed: int
) -> Split:
    """As many train and calibration queries as another split has, drawn from the whole parts."""
    parts: dict[Part, tuple[str, ...]] = {}
    for part, ids in drawn.parts.items():
        share = len(like[part]) / max(len(ids), 1)
        parts[part] = _some(dataset.select(ids), share, seed) if share < 1 else ids
    return Split({**parts, "test": test}, drawn.seed, drawn.merged)


def _some(part: RoutingDataset, share: float, seed: int) -> tuple[str, ...]:
    """A stratified share of the queries; queries with the same prompt stay together."""
    if not share or math.isclose(share, 1):
        return part.query_ids if share else ()
    return split(part, seed=seed, fractions={"train": share, "test": 1 - share})["train"]


def _members(dataset: RoutingDataset, names: Sequence[str]) -> set[str]:
    found: dict[str, set[str]] = {name: set() for name in names}
    for query in dataset.queries:
        for name in _names(query) & set(names):
            found[name].add(query.id)
    unknown = [name for name, members in found.items() if not members]
    if unknown:
        raise ConfigError(f"no query is of {unknown}; {_known(dataset)}")
    return set().union(*found.values())


def _names(query: Query) -> set[str]:
    return {query.benchmark, query.domain, f"{query.benchmark}/{query.domain}"} - {""}


def _label(query: Query, wanted: Sequence[str]) -> str:
    return next(name for name in wanted if name in _names(query))


def _known(dataset: RoutingDataset) -> str:
    benchmarks = sorted({query.benchmark for query in dataset.queries} - {""})
    domains = sorted({query.domain for query in dataset.queries} - {""})
    return f"it has the benchmarks {_few(benchmarks)} and the domains {_few(domains)}"


def _few(names: Sequence[str]) -> str:
    return f"{list(names[:30])}" + (" and others" if len(names) > 30 else "")
