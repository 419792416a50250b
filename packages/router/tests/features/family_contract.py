"""What every family of features must do, whatever it reads."""

import copy
import json
from collections.abc import Callable, Collection, Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load as load_tensors, save as save_tensors

from packages.router.tests.fakes.planted_signal import states_of
from prefill_router.activations import Activations, MemoryActivations
from prefill_router.data import prompt_key
from prefill_router.errors import CorruptError, ProvenanceError, StoreError
from prefill_router.features import Family, PromptStates
from prefill_router.features.base import load_family
from prefill_router.testing import FakeEncoder, make_routing_dataset

Load = Callable[[Any, Any], Family]
_ALONE = 5
_DEEP = 3
_REPORTS = ("selection", "report")
"""Fields of a configuration that say how it came about; what they hold is free."""


def check_family(
    family: Family,
    reading: PromptStates,
    *,
    load: Load = load_family,
    may_lack: Collection[str] = (),
) -> None:
    """Put a fitted family through all checks.

    Args:
        family: What was fitted.
        reading: Of three or more distinct queries, with the states of all that the family reads;
            best not only of the queries that it was fitted on.
        load: Makes the family of its `to_dict` and `tensors`.
        may_lack: Plain values that older files don't have, and that so have a default.
    """
    in_memory = replace(reading, states=_in_memory(family, reading))
    for check in (
        _check_columns,
        _check_rows,
        _check_determinism,
        _check_sources,
        _check_missing,
        _check_rounding,
    ):
        check(family, in_memory)
    _check_round_trip(family, in_memory, load)
    _check_corrupt_tensors(family, load)
    _check_corrupt_config(family, load, may_lack)


def _check_columns(family: Family, reading: PromptStates) -> None:
    for rows in (range(len(reading)), range(0)):
        result = family.read(_some(reading, list(rows)))
        assert result.shape == (len(rows), family.width)
        assert result.dtype == np.float32
        assert np.isfinite(result).all()


def _check_rows(family: Family, reading: PromptStates) -> None:
    """A row depends on its query alone: not on the others, nor their order, nor repetitions."""
    all_rows = family.read(reading)
    close = {"rtol": 1e-4, "atol": 1e-4 * max(1e-3, float(np.abs(all_rows).max(initial=0)))}
    alone = [family.read(_some(reading, [row])) for row in range(min(_ALONE, len(reading)))]
    np.testing.assert_allclose(np.concatenate(alone), all_rows[: len(alone)], **close)
    order = np.random.default_rng(0).permutation(len(reading))
    for rows in (order.tolist(), [2, 0, 2]):
        np.testing.assert_allclose(family.read(_some(reading, rows)), all_rows[rows], **close)


def _check_determinism(family: Family, reading: PromptStates) -> None:
    states, tensors = copy.deepcopy(_arrays(reading)), copy.deepcopy(family.tensors())
    first = family.read(reading)
    assert np.array_equal(first, family.read(reading))
    assert all(map(np.array_equal, states, _arrays(reading)))
    assert family.tensors().keys() == tensors.keys()
    assert all(np.array_equal(tensors[name], v) for name, v in family.tensors().items())


def _check_sources(family: Family, reading: PromptStates) -> None:
    """The family names the states that it reads, and ignores others."""
    other = states_of(make_routing_dataset(queries=3), encoder=FakeEncoder(name="another"))
    assert family.sites_of(other.provenance) == ()
    assert len(set(family.sources)) == len(family.sources)
    for source in family.sources:
        sites = family.sites_of(source.provenance)
        assert sites
        assert list(sites) == sorted(set(sites))
    more = replace(reading, states=(other, *reading.states[::-1]))
    assert np.array_equal(family.read(more), family.read(reading))


def _check_missing(family: Family, reading: PromptStates) -> None:
    """States that are missing, or were made differently, are reported, never made up."""
    for number, store in enumerate(_memory(reading)):
        rest = [s for i, s in enumerate(reading.states) if i != number]
        changed = replace(store, made_by=replace(store.made_by, revision="another"))
        fewer = replace(
            store,
            keys=store.keys[1:],
            states={site: rows[1:] for site, rows in store.states.items()},
            counts=store.counts[1:],
        )
        for states, error in (
            (rest, ProvenanceError),
            ([*rest, changed], ProvenanceError),
            ([*rest, replace(store, states={})], ProvenanceError),
            ([*rest, fewer], StoreError),
        ):
            with pytest.raises(error):
                family.read(replace(reading, states=tuple(states)))


def _check_rounding(family: Family, reading: PromptStates) -> None:
    """Exact states are rounded as the train rows' were; those rounded otherwise are refused."""
    expected, random = family.read(reading), np.random.default_rng(0)
    for number, store in enumerate(_memory(reading)):
        rest = [s for i, s in enumerate(reading.states) if i != number]
        refused = {"bfloat16", "float16"} - {store.rounding}
        for rounding in sorted(refused):
            with pytest.raises(ProvenanceError):
                family.read(replace(reading, states=(*rest, replace(store, rounded_to=rounding))))
        if store.rounding != "float32":
            finer = {  # far less than half a step of either type
                site: rows * (1 + random.uniform(-1e-5, 1e-5, rows.shape)).astype(np.float32)
                for site, rows in store.states.items()
            }
            exact = replace(store, states=finer, rounded_to="float32")
            again = family.read(replace(reading, states=(*rest, exact)))
            assert np.array_equal(again, expected)


def _check_round_trip(family: Family, reading: PromptStates, load: Load) -> None:
    config = json.loads(json.dumps(family.to_dict(), allow_nan=False))
    assert config["kind"] == family.kind
    again = load(config, load_tensors(save_tensors(family.tensors())))
    assert type(again) is type(family)
    assert again.to_dict() == family.to_dict()
    assert (again.width, again.sources) == (family.width, family.sources)
    for source in family.sources:
        assert again.sites_of(source.provenance) == family.sites_of(source.provenance)
    assert np.array_equal(again.read(reading), family.read(reading))


def _check_corrupt_tensors(family: Family, load: Load) -> None:
    config, tensors = family.to_dict(), family.tensors()
    for case in [{"surplus": np.zeros(1, np.float32)}, *_corrupt(tensors)]:
        changed = {k: v for k, v in (tensors | case).items() if v is not None}
        with pytest.raises(CorruptError):
            load(config, changed)


def _corrupt(tensors: dict[str, Any]) -> Iterator[dict[str, Any]]:
    for name, array in tensors.items():
        yield {name: None}
        yield {name: None, f"{name}.x": array}
        yield {name: np.concatenate([array.ravel(), array.ravel()[:1]])}
        yield {name: array[None]}
        yield {name: array.astype(np.complex64)}
        if array.dtype.kind == "f":
            yield {name: np.full_like(array, np.nan)}
            yield {name: np.full_like(array, np.inf)}


def _check_corrupt_config(family: Family, load: Load, may_lack: Collection[str]) -> None:
    config, tensors = json.loads(json.dumps(family.to_dict())), family.tensors()
    cases = [{**config, "surplus": 1}, {**config, "kind": "nonsense"}, {}]
    cases += [case for case in _wrong(config) if isinstance(case, dict)]
    needed = [name for name in config if name not in may_lack]
    cases += [{k: v for k, v in config.items() if k != name} for name in needed]
    for case in cases:
        with pytest.raises(CorruptError):
            load(case, tensors)


def _wrong(value: Any) -> Iterator[Any]:
    """The value with one place of another type, for each place."""
    if isinstance(value, dict):
        yield 7
        for name in [name for name in value if name not in _REPORTS]:
            yield from ({**value, name: wrong} for wrong in _wrong(value[name]))
    elif isinstance(value, list):
        yield 7
        for i in range(min(_DEEP, len(value))):
            yield from ([*value[:i], wrong, *value[i + 1 :]] for wrong in _wrong(value[i]))
    else:
        yield {"no": "such"}


def _some(reading: PromptStates, rows: list[int]) -> PromptStates:
    return PromptStates.of([reading.prompts[row] for row in rows], reading.states)


def _in_memory(family: Family, reading: PromptStates) -> tuple[Activations, ...]:
    """The states that the family reads, of every query of the reading."""
    keys = tuple(dict.fromkeys(reading.keys))
    assert len(keys) == len(reading) > 2, "give three or more distinct queries"
    assert reading.keys == tuple(map(prompt_key, reading.prompts))
    stores = {store.provenance: store for store in reading.states}
    return tuple(
        MemoryActivations(
            source.provenance,
            keys,
            {
                site: stores[source.provenance].read(site, keys)
                for site in family.sites_of(source.provenance)
            },
            stores[source.provenance].tokens(keys),
            stores[source.provenance].rounding,
        )
        for source in family.sources
    )


def _memory(reading: PromptStates) -> list[MemoryActivations]:
    return [store for store in reading.states if isinstance(store, MemoryActivations)]


def _arrays(reading: PromptStates) -> list[np.ndarray]:
    return [array for store in _memory(reading) for array in store.states.values()]
