"""The store: what is written is read, and nothing else ever is."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings, strategies as st
from safetensors.torch import load_file, save_file

from prefill_router.activations import (
    ROUNDINGS,
    ActivationStore,
    Rounding,
    Site,
    round_states,
    store as store_module,
)
from prefill_router.activations.shard import Layout
from prefill_router.activations.store import prepare_store
from prefill_router.data import RoutingDataset
from prefill_router.encoders import encode_dataset
from prefill_router.errors import (
    CorruptError,
    ProvenanceError,
    StoreError,
)
from prefill_router.testing import FakeEncoder, make_routing_dataset

pytestmark = pytest.mark.slow

ENCODER = FakeEncoder(num_layers=2, hidden_size=8, planted_layer=1)
SITES = [Site(layer, p) for layer in (1, 2) for p in ("last", "mean")]


@pytest.fixture(scope="module")
def dataset() -> RoutingDataset:
    return make_routing_dataset(queries=40)


@pytest.fixture
def store(dataset: RoutingDataset, tmp_path: Path) -> ActivationStore:
    return encode_dataset(dataset, ENCODER, tmp_path / "s", sites=SITES, chunk_tokens=600)


@pytest.mark.parametrize("rounding", ROUNDINGS)
def test_the_states_come_back_as_a_request_would_see_them(
    rounding: Rounding, dataset: RoutingDataset, tmp_path: Path
) -> None:
    store = encode_dataset(
        dataset, ENCODER, tmp_path / "s", sites=SITES, chunk_tokens=600, rounding=rounding
    )
    live = ENCODER.encode(dataset.queries, SITES, rounding=store.rounding)
    assert store.sites == live.sites == tuple(sorted(SITES))
    assert store.provenance == ENCODER.provenance
    for site in SITES:
        np.testing.assert_array_equal(
            store.read(site, dataset.prompt_keys), live.read(site, dataset.prompt_keys)
        )
    np.testing.assert_array_equal(
        store.tokens(dataset.prompt_keys), live.tokens(dataset.prompt_keys)
    )


def test_rows_follow_the_keys_not_the_disk(store: ActivationStore, dataset: RoutingDataset) -> None:
    keys = list(dataset.prompt_keys)
    shuffled = np.random.default_rng(0).permutation(len(keys)).tolist()
    asked_keys = [keys[i] for i in shuffled] + keys[:3]
    rows = store.read(SITES[0], keys)
    np.testing.assert_array_equal(store.read(SITES[0], asked_keys), rows[[*shuffled, 0, 1, 2]])
    assert store.read(SITES[0], []).shape == (0, 8)


def test_shards_are_plain_safetensors(store: ActivationStore) -> None:
    for path in (store.path / "shards").glob("*.safetensors"):
        keys = json.loads(path.with_suffix(".json").read_text())["keys"]
        tensors = load_file(path)
        assert set(tensors) == {site.name for site in SITES}
        for site in SITES:
            assert tensors[site.name].dtype == torch.bfloat16
            np.testing.assert_array_equal(
                tensors[site.name].float().numpy(), store.read(site, keys)
            )


def test_one_site_is_read_without_the_others(
    store: ActivationStore, dataset: RoutingDataset
) -> None:
    for path in (store.path / "shards").glob("*.safetensors"):
        content = bytearray(path.read_bytes())
        content[-1] ^= 1  # in the last site of the file
        path.write_bytes(bytes(content))
    again = ActivationStore.open(store.path)
    first, last = again.sites[0], again.sites[-1]
    assert again.read(first, dataset.prompt_keys).shape == (40, 8)
    with pytest.raises(CorruptError, match=rf"tensor {last.name} isn't what was written"):
        again.read(last, dataset.prompt_keys)


def test_missing_prompts_and_sites_are_named(store: ActivationStore) -> None:
    assert store.missing([store.keys[0], "x"]) == ["x"]
    with pytest.raises(StoreError, match="lacks the states of 1 of 2 queries"):
        store.read(SITES[0], [store.keys[0], "x"])
    with pytest.raises(ProvenanceError, match=r"lacks the site last\.0; it holds"):
        store.read(Site(0, "last"), store.keys)


def _read_everything(path: Path, dataset: RoutingDataset) -> list[bytes]:
    store = ActivationStore.open(path)
    return [store.read(site, dataset.prompt_keys).tobytes() for site in store.sites]


@pytest.fixture(scope="module")
def small(dataset: RoutingDataset, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("small") / "s"
    encode_dataset(dataset.queries[:9], ENCODER, path, sites=SITES, chunk_tokens=200)
    return path


@settings(max_examples=150, deadline=None)
@given(data=st.data())
def test_any_flipped_bit_of_any_file_is_refused(
    data: st.DataObject, small: Path, dataset: RoutingDataset
) -> None:
    part = dataset.select(dataset.query_ids[:9])
    path = data.draw(st.sampled_from(sorted(p for p in small.rglob("*") if p.is_file())))
    content = path.read_bytes()
    place = data.draw(st.integers(0, len(content) - 1))
    flipped = bytearray(content)
    flipped[place] ^= 1 << data.draw(st.integers(0, 7))
    path.write_bytes(bytes(flipped))
    try:
        with pytest.raises(CorruptError, match=path.stem):
            _read_everything(small, part)
    finally:
        path.write_bytes(content)
    _read_everything(small, part)


@pytest.mark.parametrize("suffix", [".safetensors", ".json"])
@pytest.mark.parametrize("keep", [0, 1, 7, 100, -1])
def test_a_file_that_was_cut_short_is_refused(
    suffix: str, keep: int, store: ActivationStore, dataset: RoutingDataset
) -> None:
    path = next((store.path / "shards").glob(f"*{suffix}"))
    path.write_bytes(path.read_bytes()[:keep])
    with pytest.raises(CorruptError, match=path.name):
        _read_everything(store.path, dataset)


def test_a_missing_file_is_refused(store: ActivationStore, dataset: RoutingDataset) -> None:
    path = next((store.path / "shards").glob("*.safetensors"))
    path.unlink()
    with pytest.raises(CorruptError, match=rf"{path.name} is missing"):
        ActivationStore.open(store.path)
    with pytest.raises(CorruptError, match=rf"{path.name} is missing"):
        store.read(SITES[0], dataset.prompt_keys)
    path.with_suffix(".json").unlink()
    with pytest.raises(StoreError, match=r"lacks the states of \d+ of 40"):
        _read_everything(store.path, dataset)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda t: {k: v[:, :4].contiguous() for k, v in t.items()}, "shape"),
        (lambda t: {k: v[:-1] for k, v in t.items()}, "shape"),
        (lambda t: {k: v.half() for k, v in t.items()}, "F16"),
        (lambda t: {k.replace("last", "first"): v for k, v in t.items()}, "tensors"),
        (lambda t: {k: v for k, v in t.items() if k != "last.1"}, "tensors"),
    ],
)
def test_tensors_of_another_shape_type_or_name_are_refused_with_the_reason(
    change: Callable[[dict], dict], reason: str, store: ActivationStore, dataset: RoutingDataset
) -> None:
    path = next((store.path / "shards").glob("*.safetensors"))
    save_file(change(load_file(path)), path)
    with pytest.raises(CorruptError, match=reason):
        _read_everything(store.path, dataset)


def test_files_that_were_never_finished_are_ignored(
    store: ActivationStore, dataset: RoutingDataset
) -> None:
    states, shards = _read_everything(store.path, dataset), store.path / "shards"
    (shards / ".abc.safetensors.x1.tmp").write_bytes(b"half")
    (shards / ".abc.json.x2.tmp").write_bytes(b"{")
    (shards / "abc.safetensors").write_bytes(b"not committed")
    assert _read_everything(store.path, dataset) == states


def test_what_is_no_store_is_refused(tmp_path: Path, dataset: RoutingDataset) -> None:
    with pytest.raises(StoreError, match="doesn't exist"):
        ActivationStore.open(tmp_path / "none")
    with pytest.raises(StoreError, match="isn't a store"):
        ActivationStore.open(tmp_path)
    (tmp_path / "letter.txt").write_text("dear")
    with pytest.raises(StoreError, match="exists and isn't a store"):
        encode_dataset(dataset, ENCODER, tmp_path, sites=SITES)
    with pytest.raises(StoreError, match="is a file"):
        encode_dataset(dataset, ENCODER, tmp_path / "letter.txt", sites=SITES)
    assert (tmp_path / "letter.txt").read_text() == "dear"


def test_processes_may_make_the_store_at_the_same_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, find_files = tmp_path / "s", store_module.find_files
    arguments = (path, ENCODER.provenance, Layout(tuple(SITES), 8, "bfloat16"))

    def before_the_other(*_: object) -> set[str]:
        monkeypatch.setattr(store_module, "find_files", find_files)
        prepare_store(*arguments)
        return set()

    monkeypatch.setattr(store_module, "find_files", before_the_other)
    prepare_store(*arguments)
    assert len(ActivationStore.open(path)) == 0


@pytest.mark.parametrize("text", ["", "{}", "[]", "null", "nonsense", '{"sha256": 3}'])
def test_a_manifest_that_is_none_is_refused(text: str, store: ActivationStore) -> None:
    (store.path / "manifest.json").write_text(text)
    with pytest.raises(CorruptError, match="manifest"):
        ActivationStore.open(store.path)


def test_a_store_of_another_encoder_is_left_alone(
    store: ActivationStore, dataset: RoutingDataset
) -> None:
    other = FakeEncoder(num_layers=2, hidden_size=8, planted_layer=1, name="other")
    with pytest.raises(ProvenanceError, match="encoder is 'fake', not 'other'"):
        encode_dataset(dataset, other, store.path, sites=SITES)
    with pytest.raises(ProvenanceError, match=r"holds last\.1, mean\.1, last\.2, mean\.2"):
        encode_dataset(dataset, ENCODER, store.path, sites=SITES[:1])
    with pytest.raises(ProvenanceError, match="as bfloat16, not "):
        encode_dataset(dataset, ENCODER, store.path, sites=SITES, rounding="float32")


def test_of_two_that_begin_a_store_at_once_the_second_must_want_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mine, other = FakeEncoder(), FakeEncoder(max_tokens=20)
    layout = Layout((Site(1, "last"),), mine.hidden_size, "bfloat16")

    def lock_after_another(*arguments: Any, **options: Any) -> Any:
        monkeypatch.undo()
        store_module.prepare_store(tmp_path / "s", other.provenance, layout)
        return store_module.writer_lock(*arguments, **options)

    monkeypatch.setattr(store_module, "writer_lock", lock_after_another)
    with pytest.raises(ProvenanceError, match="max_tokens is 20, not 256"):
        store_module.prepare_store(tmp_path / "s", mine.provenance, layout)
    assert [path.name for path in (tmp_path / "s").iterdir()] == [store_module.MANIFEST]


finite = st.floats(allow_nan=False, allow_infinity=False, width=32)


@given(numbers=st.lists(finite.filter(lambda x: abs(x) < 3e38), min_size=1))
def test_bfloat16_is_rounded_as_torch_rounds_it(numbers: list[float]) -> None:
    states = np.array([numbers], dtype=np.float32)
    expected = torch.from_numpy(states).to(torch.bfloat16).float().numpy()
    np.testing.assert_array_equal(round_states(states, "bfloat16"), expected)
    np.testing.assert_array_equal(round_states(expected, "bfloat16"), expected)
    np.testing.assert_array_equal(round_states(states, "float32"), states)


@given(number=finite)
def test_float16_is_rounded_or_refused(number: float) -> None:
    states = np.array([[1.0, number]], dtype=np.float32)
    if abs(number) < 65_520:
        np.testing.assert_array_equal(round_states(states, "float16"), states.astype(np.float16))
    else:
        with pytest.raises(StoreError, match="beyond the range of float16"):
            round_states(states, "float16")


def test_bfloat16_beyond_its_range_is_refused() -> None:
    largest = np.array([[np.finfo(np.float32).max]], dtype=np.float32)
    with pytest.raises(StoreError, match="beyond the range of bfloat16"):
        round_states(largest, "bfloat16")
