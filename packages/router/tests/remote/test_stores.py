"""A store at a URL holds the same bytes as one on the disk, and loses nothing when writers die."""

import pickle
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from packages.router.tests.remote.kills import KilledError, kill_before
from packages.router.tests.remote.test_folders import objects, replace, upload
from prefill_router.activations import ActivationStore, Site
from prefill_router.data import QueryFile, folder, open_queries, write_dataset
from prefill_router.encoders import (
    EncoderSource,
    TokenizedPrompt,
    encode_dataset,
    plan_encoding,
    run_encoding,
    run_encoding_on,
    workers,
)
from prefill_router.engines import RayEngine
from prefill_router.errors import CorruptError, FormatError, ProvenanceError, StoreError
from prefill_router.remote import RemotePath
from prefill_router.testing import FakeEncoder, make_routing_dataset

pytestmark = pytest.mark.slow

ENCODER = FakeEncoder(num_layers=2, hidden_size=16)
SITES = [Site(1, "last"), Site(2, "mean")]
DATA = make_routing_dataset(queries=30)


def encode(
    place: RemotePath | Path, encoder: FakeEncoder = ENCODER, sites: Sequence[Site] = SITES
) -> ActivationStore:
    return encode_dataset(DATA, encoder, place, sites=sites, chunk_tokens=800)


def read_everything(store: ActivationStore) -> list[np.ndarray]:
    keys = [prompt.key for prompt in ENCODER.tokenize(DATA.queries)]
    return [store.read(site, keys) for site in store.sites]


@pytest.fixture
def local(tmp_path: Path) -> Path:
    encode(tmp_path / "local")
    return tmp_path / "local"


def test_its_objects_are_the_files_of_a_store_on_the_disk(place: RemotePath, local: Path) -> None:
    store = encode(place)
    files = {str(p.relative_to(local)): p.read_bytes() for p in local.rglob("*") if p.is_file()}
    assert len(files) > 5
    assert objects(place) == files
    pairs = zip(read_everything(store), read_everything(ActivationStore.open(local)), strict=True)
    assert all(np.array_equal(a, b) for a, b in pairs)
    store.verify()


def test_a_store_that_another_tool_uploaded_is_read(place: RemotePath, local: Path) -> None:
    upload(local / "shards", place / "shards")
    (place / "manifest.json").exchange((local / "manifest.json").read_bytes(), None)
    assert read_everything(ActivationStore.open(place.url))[1].shape == (30, 16)


def test_an_encoding_that_is_killed_goes_on_with_the_rest(
    place: RemotePath, local: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    encoded: list[int] = []
    states = FakeEncoder.states

    def count_calls(self: FakeEncoder, chunk: Sequence[TokenizedPrompt], *rest: object) -> object:
        encoded.append(len(chunk))
        return states(self, chunk, *rest)  # type: ignore[arg-type]

    monkeypatch.setattr(FakeEncoder, "states", count_calls)
    with pytest.raises(KilledError), kill_before(1 + 2 * 2):  # manifest, a shard, half a shard
        encode(place)
    assert len(encoded) == 2
    store = ActivationStore.open(place)
    assert len(store) == encoded[0]
    store.verify()
    encode(place)
    assert sum(encoded) == 30 + encoded[1]
    assert len(objects(place)) == len(list(local.rglob("*.*")))


def test_every_kill_leaves_a_store_that_can_be_read(place: RemotePath) -> None:
    for step in range(2, 7):
        with pytest.raises(KilledError), kill_before(step):
            encode(place / f"{step}")
        ActivationStore.open(place / f"{step}").verify()


def test_only_the_tensors_that_are_asked_for_are_read_and_only_once(
    place: RemotePath, monkeypatch: pytest.MonkeyPatch
) -> None:
    encode(place)
    sizes: list[int] = []
    read: Callable[..., list[bytes]] = RemotePath.ranges

    def count_calls(ranges: Sequence[tuple[RemotePath, int, int]]) -> list[bytes]:
        sizes.extend(stop - start for _, start, stop in ranges)
        return read(ranges)

    monkeypatch.setattr(RemotePath, "ranges", staticmethod(count_calls))
    keys = [prompt.key for prompt in ENCODER.tokenize(DATA.queries)]
    for _ in range(2):
        ActivationStore.open(place).read(SITES[0], keys)
    assert sum(sizes) == 30 * 16 * 2


@pytest.mark.parametrize("suffix", [".safetensors", ".json"])
@pytest.mark.parametrize("change", [None, b"something else"])
def test_an_object_that_was_changed_or_lost_is_found(
    place: RemotePath, suffix: str, change: bytes | None
) -> None:
    encode_dataset(DATA, ENCODER, place, sites=SITES)
    replace(place / "shards", suffix, change)
    if suffix == ".json" and change is None:
        assert not len(ActivationStore.open(place))
        return
    with pytest.raises(CorruptError, match=f"{place}/shards/"):
        ActivationStore.open(place)


def test_a_tensor_of_the_right_size_with_other_bytes_is_found(place: RemotePath) -> None:
    encode_dataset(DATA, ENCODER, place, sites=SITES)
    [content] = [bytes_ for name, bytes_ in objects(place).items() if name.endswith("tensors")]
    replace(place, ".safetensors", content[:-1] + bytes([content[-1] ^ 1]))
    store = ActivationStore.open(place)
    keys = store.keys
    store.read(store.sites[0], keys)
    for check in (store.verify, lambda: store.read(store.sites[1], keys)):
        with pytest.raises(CorruptError, match=f"{place}/shards/.*safetensors isn't what was"):
            check()


def test_two_that_are_given_the_same_work_leave_one_store(place: RemotePath, local: Path) -> None:
    plans = [
        plan_encoding(DATA, ENCODER, place.url, sites=SITES, chunk_tokens=800) for _ in range(2)
    ]
    for plan in plans:
        run_encoding(plan, ENCODER)
    assert len(objects(place)) == len(list(local.rglob("*.*")))
    ActivationStore.open(place).verify()


def test_many_queries_at_a_url_are_read_in_blocks_from_their_copy(
    place: RemotePath, local: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(folder, "MANY", 10)
    monkeypatch.setattr(folder, "BLOCK_ROWS", 7)
    write_dataset(DATA, place / "answers")
    queries = open_queries(f"{place}/answers")
    assert isinstance(queries, QueryFile)
    assert len(queries) == 30
    plan = plan_encoding(
        *(queries, ENCODER, place / "states"),
        sites=SITES,
        chunk_tokens=800,
        cache=tmp_path / "cache",
    )
    run_encoding(plan, ENCODER)
    ours = read_everything(ActivationStore.open(place / "states"))
    pairs = zip(ours, read_everything(ActivationStore.open(local)), strict=True)
    assert all(np.array_equal(a, b) for a, b in pairs)


def test_a_lost_file_of_many_queries_is_told_by_its_url(place: RemotePath) -> None:
    with pytest.raises(FormatError, match=f"{place}/none: no such folder"):
        open_queries(place / "none")


def test_workers_of_an_engine_write_at_the_url(
    place: RemotePath, monkeypatch: pytest.MonkeyPatch
) -> None:
    def stream(_: RayEngine, make: Any, items: Iterable[Any], **__: object) -> Iterator[Any]:
        work, payload = pickle.loads(pickle.dumps((make, list(items))))
        yield from map(work("cpu"), payload)

    monkeypatch.setattr(RayEngine, "stream", stream)
    monkeypatch.setattr(workers, "load_encoder_for", lambda *_, **__: ENCODER)
    plan = plan_encoding(DATA, ENCODER, place, sites=SITES, chunk_tokens=800)
    assert run_encoding_on(RayEngine(), plan, EncoderSource(ENCODER.provenance)).prompts == 30
    keys = [prompt.key for prompt in ENCODER.tokenize(DATA.queries)]
    assert ActivationStore.open(place).missing(keys) == []


def test_states_of_another_kind_are_never_added(place: RemotePath) -> None:
    encode(place)
    with pytest.raises(ProvenanceError, match="holds"):
        encode(place, sites=SITES[:1])
    with pytest.raises(ProvenanceError):
        encode(place, encoder=FakeEncoder(num_layers=2, hidden_size=16, name="other"))
    (place / "other" / "notes.txt").exchange(b"mine", None)
    with pytest.raises(StoreError, match="exists and isn't a store"):
        encode(place / "other")
    with pytest.raises(StoreError, match=f"{place}/none doesn't exist; make it with"):
        ActivationStore.open(place / "none")
