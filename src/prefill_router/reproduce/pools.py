"""The paper's pools in a dataset: which targets correspond to the paper's."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Literal, final

import numpy as np
import yaml

from prefill_router.data import RoutingDataset
from prefill_router.short_repr import short_repr

PoolName = Literal["frontier", "small", "mixed"]
Bench = Literal["llmrouterbench", "nvidia-v1", "mmlu-pro"]
POOLS: tuple[PoolName, ...] = ("frontier", "small", "mixed")
OF_BENCH: Mapping[str, tuple[PoolName, ...]] = {
    "llmrouterbench": ("frontier", "small"),
    "nvidia-v1": ("mixed",),
    "mmlu-pro": (),
}
"""The paper's pools for each source of data."""
LEAST = 2
"""The fewest targets of a pool."""


@short_repr
@final
@dataclass(frozen=True, eq=False)
class PaperPool:
    """A pool in the data.

    Attributes:
        pool: The paper's pool whose numbers are shown beside ours.
        title: The name of our pool in tables.
        dataset: Its scored answers.
        names: The paper's name of each target; empty where the targets aren't the paper's, so that
            its numbers are shown for context only.
        absent: The paper's targets that the data lack.
    """

    pool: PoolName
    title: str
    dataset: RoutingDataset
    names: Mapping[str, str]
    absent: tuple[str, ...] = ()

    @property
    def is_counterpart(self) -> bool:
        """Whether these are the paper's targets."""
        return bool(self.names)

    def paper_name(self, target: str) -> str:
        """The paper's name of a target; its own name where it isn't one of the paper's."""
        return self.names.get(target, target)


def find_pools(bench: str, dataset: RoutingDataset) -> list[PaperPool]:
    """The paper's pools in the data, or all targets as one pool where there are none.

    Args:
        bench: The source of the data.
        dataset: Scored answers.
    """
    found = []
    for pool in OF_BENCH[bench]:
        names = matched(pool, dataset.pool.names)
        if len(names) >= LEAST:
            absent = tuple(name for name in known_names()[pool] if name not in names.values())
            part = _measured(dataset.select(targets=list(names)))
            found.append(PaperPool(pool, f"{pool.capitalize()} pool", part, names, absent))
    return found or [PaperPool("mixed", "All targets", _measured(dataset), {})]


def matched(pool: str, targets: Sequence[str]) -> dict[str, str]:
    """The targets that belong to a pool, in the paper's order, with the paper's names."""
    by_key = {_key(target): target for target in reversed(targets)}
    result: dict[str, str] = {}
    for name, aliases in known_names()[pool].items():
        held = [by_key[_key(alias)] for alias in aliases if _key(alias) in by_key]
        if held and held[0] not in result:
            result[held[0]] = name
    return result


@cache
def known_names() -> Mapping[str, Mapping[str, Sequence[str]]]:
    """The possible names of each target of the paper's pools, by pool and the paper's name."""
    text = (files("prefill_router.reproduce") / "pools.yaml").read_text(encoding="utf-8")
    known: Mapping[str, Mapping[str, Sequence[str]]] = yaml.safe_load(text)
    return known


def _key(name: str) -> str:
    return re.sub(r"[^a-z0-9]", "", name.rsplit("/", 1)[-1].lower())


def _measured(dataset: RoutingDataset) -> RoutingDataset:
    """The queries on which any of the targets was measured."""
    rows = np.flatnonzero(~np.isnan(dataset.correct).all(axis=1))
    return dataset.select([dataset.query_ids[row] for row in rows])
