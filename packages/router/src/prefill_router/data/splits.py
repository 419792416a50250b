"""Train, calibration and test parts, saved by query id.

Stratified on (benchmark or domain) x consensus regime (section 4.2 of the paper). Queries with the
same prompt go to the same part, since their states are the same and would leak, and so do the turns
of a conversation. The part of a query depends on the seed and the ids, not on the order of the
rows.
"""

import hashlib
import json
import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, TypeVar, final

import numpy as np
from numpy.typing import NDArray

from prefill_router import files
from prefill_router.data.dataset import RoutingDataset, regimes
from prefill_router.errors import ConfigError, DataError, FormatError
from prefill_router.short_repr import short_repr

_Key = TypeVar("_Key")
Part = Literal["train", "calibration", "test"]
PARTS: tuple[Part, ...] = ("train", "calibration", "test")
FRACTIONS: Mapping[Part, float] = {"train": 0.85, "test": 0.15}
WITH_CALIBRATION: Mapping[Part, float] = {"train": 0.75, "calibration": 0.10, "test": 0.15}


@short_repr
@final
@dataclass(frozen=True)
class Split:
    """Which queries belong to which part.

    Attributes:
        parts: The ids of each part, sorted.
        seed: The seed it was drawn with.
        merged: The sizes of strata that were too small to split and were merged.
    """

    parts: Mapping[Part, tuple[str, ...]]
    seed: int
    merged: Mapping[str, int]

    def __getitem__(self, part: Part) -> tuple[str, ...]:
        if part not in self.parts:
            raise ConfigError(f"the split has no part {part!r}; it has {list(self.parts)}")
        return self.parts[part]

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON."""
        parts = {part: list(ids) for part, ids in self.parts.items()}
        return {"seed": self.seed, "merged": dict(self.merged), "parts": parts}


def split(
    dataset: RoutingDataset, *, seed: int = 0, fractions: Mapping[Part, float] = FRACTIONS
) -> Split:
    """Draw a stratified split.

    Args:
        dataset: The queries and their labels.
        seed: The seed of the random draw.
        fractions: The share of each part; they add up to one.

    Raises:
        ConfigError: The fractions aren't positive or don't add up to one.
        DataError: There are fewer distinct prompts than parts.
    """
    if any(share <= 0 for share in fractions.values()) or not math.isclose(
        sum(fractions.values()), 1
    ):
        raise ConfigError(f"fractions are {dict(fractions)}; they must be positive and add up to 1")
    groups = _group_ids(dataset)
    if len(groups) < len(fractions):
        raise DataError(
            f"{len(groups)} distinct prompts can't fill {len(fractions)} parts; add queries"
        )
    if set(fractions) != set(PARTS):
        return _draw_parts(dataset, groups, fractions, seed)
    # The test part first: it is the same whether or not there is a calibration part.
    kept = 1 - fractions["test"]
    first = _draw_parts(dataset, groups, {"train": kept, "test": fractions["test"]}, seed)
    shares = {part: fractions[part] / kept for part in PARTS[:2]}
    rest = dataset.select(first["train"])
    left = _group_ids(rest)
    if len(left) < len(shares):
        return _draw_parts(dataset, groups, fractions, seed)
    second = _draw_parts(rest, left, shares, seed)
    merged = {**first.merged, **second.merged}
    return Split({**second.parts, "test": first["test"]}, seed, merged)


def split_by_time(dataset: RoutingDataset, *, fractions: Mapping[Part, float] = FRACTIONS) -> Split:
    """Split by the order of the rows, which is that of time: the newest are the test part.

    A prompt or conversation that came before belongs to the part of its first row, so none is in
    two parts.

    Args:
        dataset: The queries, in order of time.
        fractions: The share of each part, about; they add up to one.

    Raises:
        DataError: There are too few distinct prompts for all parts.
    """
    shares = {part: fractions[part] for part in PARTS if part in fractions}
    ends, total = {}, 0.0
    for part, share in shares.items():
        total += share
        ends[part] = round(total * len(dataset))
    parts: dict[Part, list[str]] = {part: [] for part in shares}
    of_group: dict[str, Part] = {}
    for row, (name, key) in enumerate(zip(dataset.query_ids, _group_keys(dataset), strict=True)):
        later: Part = next((part for part, end in ends.items() if row < end), "test")
        parts[of_group.setdefault(key, later)].append(name)
    if not all(parts.values()):
        raise DataError(
            f"{len(of_group)} distinct prompts are too few to split by time: a part would be "
            "empty; collect more"
        )
    return Split({part: tuple(sorted(ids)) for part, ids in parts.items()}, 0, {})


def _draw_parts(
    dataset: RoutingDataset,
    groups: Mapping[str, Sequence[str]],
    fractions: Mapping[Part, float],
    seed: int,
) -> Split:
    strata, merged = _stratify(dataset, groups, least=math.ceil(1 / min(fractions.values())))
    parts: dict[Part, list[str]] = {part: [] for part in fractions}
    for name in sorted(strata):
        _deal_groups(_shuffle_ids(strata[name], seed), fractions, parts, groups)
    _fill_empty(parts, groups, seed)
    return Split({part: tuple(sorted(ids)) for part, ids in parts.items()}, seed, merged)


def stratified_folds(
    dataset: RoutingDataset, *, count: int = 5, seed: int = 0
) -> NDArray[np.int64]:
    """The fold of each query, for cross-validation, by the rules of `split`.

    Args:
        dataset: The train rows.
        count: The number of folds.
        seed: The seed of the random draw.

    Returns:
        The fold of each query, from 0 to count - 1.

    Raises:
        DataError: There are fewer distinct prompts than folds.
    """
    groups = _group_ids(dataset)
    if len(groups) < count:
        raise DataError(f"{len(groups)} distinct prompts can't fill {count} folds; add queries")
    strata, _ = _stratify(dataset, groups, least=count)
    parts: dict[int, list[str]] = {fold: [] for fold in range(count)}
    for name in sorted(strata):
        _deal_groups(
            _shuffle_ids(strata[name], seed), dict.fromkeys(parts, 1 / count), parts, groups
        )
    result = np.empty(len(dataset), dtype=np.int64)
    for fold, ids in parts.items():
        result[dataset.rows(ids)] = fold
    return result


def save_split(value: Split, path: Path) -> None:
    """Write a split as JSON, whole or not at all."""
    files.write_json(path, value.to_dict())


def load_split(path: Path) -> Split:
    """Read a split.

    Raises:
        FormatError: The file is missing, malformed, or puts an id into two parts.
    """
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
        return split_from_dict(value, source=path)
    except FileNotFoundError:
        raise FormatError("no such file; make one with: prefill-router split", file=path) from None
    except (ValueError, RecursionError) as error:  # covers bad JSON and bad UTF-8
        raise FormatError(f"not JSON: {error}", file=path) from None


def split_from_dict(value: Any, *, source: Path | str) -> Split:
    """A split from plain values, as `Split.to_dict` returns them.

    Args:
        value: The seed, the merged parts and the parts' query ids.
        source: Where the values are from, for errors.

    Raises:
        FormatError: The values aren't a split, or put a query into more than one part.
    """
    try:
        seed, merged, named = value["seed"], value["merged"], value["parts"]
        parts: dict[Part, tuple[str, ...]] = {
            part: tuple(_check_ids(named[part])) for part in PARTS if part in named
        }
        if not parts or len(parts) != len(named) or not isinstance(seed, int):
            raise TypeError(f"parts {sorted(named)} and seed {seed!r}")
        result = Split(parts, seed, dict(merged))
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise FormatError(f"not a split: {error!r} is missing or malformed", file=source) from None
    repeated = [i for i, n in Counter(i for ids in parts.values() for i in ids).items() if n > 1]
    if repeated:
        raise FormatError(f"puts {repeated[0]!r} into more than one part", file=source)
    return result


def _check_ids(value: Any) -> list[str]:
    if not isinstance(value, list) or not all(isinstance(i, str) for i in value):
        raise TypeError("a part that isn't a list of query ids")
    return value


def find_unseen(dataset: RoutingDataset, learned_ids: Iterable[str]) -> list[str]:
    """The ids of queries that share neither a prompt nor a conversation with the learned ones.

    Args:
        dataset: The queries.
        learned_ids: The queries that something was learned from; ids of other datasets are
            ignored.
    """
    names, turns = set(learned_ids), dataset.conversations or dataset.query_ids
    rows = list(zip(dataset.query_ids, dataset.prompt_keys, turns, strict=True))
    prompts = {prompt for name, prompt, _ in rows if name in names}
    conversations = {turn for name, _, turn in rows if name in names}
    return [
        name for name, prompt, turn in rows if prompt not in prompts and turn not in conversations
    ]


def _group_ids(dataset: RoutingDataset) -> dict[str, list[str]]:
    """Groups of ids that share a prompt or a conversation, by the smallest id of each."""
    by_key: dict[str, list[str]] = defaultdict(list)
    for query_id, key in zip(dataset.query_ids, _group_keys(dataset), strict=True):
        by_key[key].append(query_id)
    for ids in by_key.values():
        ids.sort()
    return {ids[0]: ids for ids in by_key.values()}


def _group_keys(dataset: RoutingDataset) -> Sequence[str]:
    """A key for each query, the same for all that prompts and conversations connect."""
    if dataset.conversations is None:
        return dataset.prompt_keys
    parents: dict[str, str] = {}

    def find_top(key: str) -> str:
        while (upper := parents.get(key, key)) != key:
            parents[key] = parents.get(upper, upper)
            key = upper
        return key

    for prompt, conversation in zip(dataset.prompt_keys, dataset.conversations, strict=True):
        parents[find_top(conversation)] = find_top(prompt)
    return [find_top(prompt) for prompt in dataset.prompt_keys]


def _stratify(
    dataset: RoutingDataset, groups: Mapping[str, Sequence[str]], *, least: int
) -> tuple[dict[str, list[str]], dict[str, int]]:
    """Groups by stratum; strata with fewer than `least` are merged with others of their regime."""
    by_kind: dict[tuple[str, str], list[str]] = defaultdict(list)
    regime, domains = regimes(dataset.correct).tolist(), dataset.domains
    for group, row in zip(groups, dataset.rows(groups), strict=True):
        by_kind[domains[row], regime[row]].append(group)
    strata = defaultdict(list, {" | ".join(kind): names for kind, names in by_kind.items()})
    merged = {name: len(members) for name, members in strata.items() if len(members) < least}
    for name in sorted(merged):
        strata[f"(small strata) | {name.rsplit(' | ', 1)[1]}"] += strata.pop(name)
    return strata, merged


def _shuffle_ids(ids: Sequence[str], seed: int) -> list[str]:
    """An order that depends on the seed and each id alone, not on the order given."""
    return sorted(
        ids, key=lambda i: hashlib.sha256(f"{seed}\n{i}".encode("utf-8", "surrogatepass")).digest()
    )


def _deal_groups(
    order: Sequence[str],
    fractions: Mapping[_Key, float],
    parts: dict[_Key, list[str]],
    groups: Mapping[str, Sequence[str]],
) -> None:
    """Assign each group to the part that is furthest below its share over all strata so far."""
    shares, into = list(fractions.values()), [parts[part] for part in fractions]
    sizes = [len(ids) for ids in into]
    total = sum(sizes)
    for group in order:
        ids = groups[group]
        total += len(ids)
        lacking = [share * total - size for share, size in zip(shares, sizes, strict=True)]
        part = lacking.index(max(lacking))
        into[part] += ids
        sizes[part] += len(ids)


def _fill_empty(
    parts: dict[_Key, list[str]], groups: Mapping[str, Sequence[str]], seed: int
) -> None:
    """Move one group of the largest part to each part that a tiny dataset left empty."""
    for part in parts:
        if not parts[part]:
            owned = {p: [group for group in groups if group in ids] for p, ids in parts.items()}
            donor = max(owned, key=lambda p: len(owned[p]))
            moved = groups[_shuffle_ids(owned[donor], seed)[0]]
            parts[donor] = [i for i in parts[donor] if i not in moved]
            parts[part] = list(moved)
