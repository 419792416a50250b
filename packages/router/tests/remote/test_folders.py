"""A dataset at a URL is whole or not there, like one on the disk."""

import pickle
import shutil
from collections.abc import Sequence
from datetime import timedelta
from pathlib import Path

import fsspec
import pytest
from huggingface_hub import HfFileSystem

from packages.router.tests.fakes.hub import serve_hub
from packages.router.tests.remote.kills import kills
from prefill_router import files
from prefill_router.data import (
    Origin,
    RoutingDataset,
    check_replaceable,
    read_dataset,
    write_dataset,
)
from prefill_router.errors import ConfigError, CorruptError, DataError, StoreError
from prefill_router.progress import Progress, SilentProgress
from prefill_router.remote import (
    RemotePath,
    find_files,
    folder as folder_module,
    location,
    path as path_module,
    reading,
    replacing_folder,
)
from prefill_router.testing import make_routing_dataset

pytestmark = pytest.mark.slow

OLD, NEW, NEWER = (make_routing_dataset(queries=n) for n in (20, 30, 40))
TABLE = "queries.parquet"
AT_ONCE = timedelta(minutes=-1)
IMPORT = Origin.of("import", Path("answers.csv"))


def objects(place: RemotePath) -> dict[str, bytes]:
    system, path = fsspec.core.url_to_fs(place.url, use_listings_cache=False)
    return {name.removeprefix(f"{path}/"): system.cat_file(name) for name in system.find(path)}


def replace(place: RemotePath, suffix: str, change: bytes | None) -> None:
    """Replace or remove the object whose name has this suffix."""
    system, path = fsspec.core.url_to_fs(place.url, use_listings_cache=False)
    [name] = [name for name in system.find(path) if name.endswith(suffix)]
    system.rm(name) if change is None else system.pipe_file(name, change)


def upload(folder: Path, place: RemotePath) -> None:
    """Upload a folder as `aws s3 cp --recursive` does."""
    system, path = fsspec.core.url_to_fs(place.url, use_listings_cache=False)
    for file in folder.iterdir():
        system.put_file(str(file), f"{path}/{file.name}")


def same(first: RoutingDataset, second: RoutingDataset) -> bool:
    return first.fingerprint == second.fingerprint and first.pool == second.pool


def test_what_is_written_is_what_would_be_on_the_disk(place: RemotePath, tmp_path: Path) -> None:
    write_dataset(OLD, place, origin=IMPORT)
    write_dataset(OLD, tmp_path / "local", origin=IMPORT)
    stored = {name.rpartition("/")[2]: content for name, content in objects(place).items()}
    del stored["CURRENT"]
    assert stored == {path.name: path.read_bytes() for path in (tmp_path / "local").iterdir()}
    assert same(read_dataset(place.url), OLD)


def test_a_writer_that_is_killed_at_any_step_leaves_the_old_or_the_new(place: RemotePath) -> None:
    steps = 0
    for steps in kills(lambda: write_dataset(OLD, place)):
        if not find_files(place, [TABLE]):
            assert steps
            with pytest.raises(DataError, match="no such folder"):
                read_dataset(place)
        else:
            assert same(read_dataset(place), OLD)
    lengths = []
    for _ in kills(lambda: write_dataset(NEW, place)):
        dataset = read_dataset(place)
        lengths.append(len(dataset))
        assert same(dataset, OLD if len(dataset) == len(OLD) else NEW)
    assert lengths[0] == len(OLD)
    assert lengths[-1] == len(NEW)
    assert len(lengths) > 6


@pytest.mark.parametrize("suffix", [TABLE, "CURRENT"])
@pytest.mark.parametrize("is_missing", [False, True])
def test_an_object_that_was_changed_or_lost_is_found(
    place: RemotePath, suffix: str, is_missing: bool
) -> None:
    write_dataset(OLD, place)
    replace(place, suffix, None if is_missing else b"something else")
    with pytest.raises((CorruptError, DataError), match=str(place)):
        read_dataset(place)


def test_a_copy_in_the_cache_that_was_changed_is_fetched_again(
    place: RemotePath, cache: Path
) -> None:
    write_dataset(OLD, place)
    read_dataset(place)
    [copy] = cache.rglob(TABLE)
    copy.write_bytes(b"something else")
    assert same(read_dataset(place), OLD)


def test_a_reader_finds_one_content_however_often_it_is_replaced_meanwhile(
    place: RemotePath, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_dataset(OLD, place)
    monkeypatch.setattr(folder_module, "ABANDONED_AFTER", AT_ONCE)
    fetch, writes = RemotePath.get, [NEW, NEWER]

    def fetch_meanwhile(self: RemotePath, *arguments: object) -> None:
        while writes:
            write_dataset(writes.pop(0), place)
        fetch(self, *arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(RemotePath, "get", fetch_meanwhile)
    assert same(read_dataset(place), NEWER)


def test_the_content_before_stays_readable_until_the_next_write(place: RemotePath) -> None:
    write_dataset(OLD, place)
    with reading(place, []):
        before = set(objects(place))
        write_dataset(NEW, place)
        assert before <= set(objects(place))


def test_leftovers_of_killed_writers_are_removed_once_they_are_old(
    place: RemotePath, monkeypatch: pytest.MonkeyPatch
) -> None:
    for step in kills(lambda: write_dataset(OLD, place)):
        if step == 5:
            break
    leftovers = set(objects(place))
    assert leftovers
    write_dataset(OLD, place)
    assert leftovers <= set(objects(place))
    monkeypatch.setattr(folder_module, "ABANDONED_AFTER", AT_ONCE)
    write_dataset(NEW, place)
    write_dataset(NEWER, place)
    assert not leftovers & set(objects(place))
    generations = {name.split("/")[1] for name in objects(place) if name != "CURRENT"}
    assert len(generations) == 2


@pytest.mark.parametrize("is_new", [True, False])
def test_of_two_writers_the_later_one_is_told_and_its_files_are_kept(
    place: RemotePath, is_new: bool
) -> None:
    if not is_new:
        write_dataset(OLD, place)
    slow = replacing_folder(place)
    (slow.__enter__() / "file").write_text("slow")
    write_dataset(NEW, place)
    with pytest.raises(StoreError, match=r"by another process meanwhile.* are in ") as raised:
        slow.__exit__(None, None, None)
    assert same(read_dataset(place), NEW)
    folder = Path(str(raised.value).rpartition(" are in ")[2])
    assert (folder / "file").read_text() == "slow"
    (folder / "file").unlink()
    folder.rmdir()


@pytest.mark.usefixtures("s3")
def test_only_the_pointer_of_what_was_read_is_replaced() -> None:
    place = RemotePath("s3://bucket/race/CURRENT")
    before = place.read()
    assert place.exchange(b"1", before)
    before = place.read()
    fsspec.filesystem("s3").pipe_file("bucket/race/CURRENT", b"2")
    assert not place.exchange(b"3", before)
    assert not place.exchange(b"3", None)
    assert place.read()[0] == b"2"  # type: ignore[index]


def test_a_folder_that_another_tool_uploaded_is_read_checked_and_replaced(
    place: RemotePath, tmp_path: Path, cache: Path
) -> None:
    write_dataset(OLD, tmp_path / "local", origin=IMPORT)
    upload(tmp_path / "local", place)
    assert same(read_dataset(place), OLD)
    with pytest.raises(DataError, match=r"made by import from answers\.csv, which would be lost"):
        check_replaceable(place, origin=Origin.of("import", Path("others.csv")))
    replace(place, TABLE, b"something else")
    shutil.rmtree(cache)
    with pytest.raises(CorruptError, match=f"{place}/{TABLE} isn't what was written"):
        read_dataset(place)
    write_dataset(NEW, place)
    assert same(read_dataset(place), NEW)
    assert f"{TABLE}" not in objects(place)


def test_a_dataset_on_a_hub_is_read_at_a_commit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_dataset(OLD, tmp_path / "local")
    with serve_hub() as hub:
        monkeypatch.setattr("huggingface_hub.constants.ENDPOINT", hub.url)
        template = f"{hub.url}/{{repo_id}}/resolve/{{revision}}/{{filename}}"
        monkeypatch.setattr("huggingface_hub.constants.HUGGINGFACE_CO_URL_TEMPLATE", template)
        monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", False)
        files_ = {path.name: path.read_bytes() for path in (tmp_path / "local").iterdir()}
        hub.repositories["you/answers"] = files_
        pinned = f"hf://datasets/you/answers@{hub.commit('you/answers')}"
        for place in (pinned, "hf://datasets/you/answers"):
            assert same(read_dataset(place), OLD)
        with pytest.raises((DataError, ConfigError), match="hf://datasets/you/nothing"):
            read_dataset("hf://datasets/you/nothing")
        files_[TABLE] = b"of a later commit"
        HfFileSystem.clear_instance_cache()
        with pytest.raises((DataError, ConfigError), match="answers@"):  # this hub forgets commits
            read_dataset(pinned)
        HfFileSystem.clear_instance_cache()


def test_a_generation_is_an_ordinary_folder(place: RemotePath, tmp_path: Path) -> None:
    write_dataset(OLD, place)
    for name, content in objects(place).items():
        (tmp_path / name.rpartition("/")[2]).write_bytes(content)
    files.verify_checksums(tmp_path, [TABLE, "outcomes.parquet", "pool.yaml"])
    assert same(read_dataset(tmp_path), OLD)


def test_what_is_no_dataset_is_never_replaced(place: RemotePath) -> None:
    (place / "notes.txt").exchange(b"mine", None)
    with pytest.raises(DataError, match="exists and isn't a dataset"):
        write_dataset(OLD, place)
    (place / "below" / "notes.txt").exchange(b"mine", None)
    place.remove(["notes.txt"])
    with pytest.raises(DataError, match="exists and isn't a dataset"):
        write_dataset(OLD, place)


@pytest.mark.usefixtures("s3")
def test_a_missing_bucket_is_told_before_long_work() -> None:
    with pytest.raises(ConfigError, match="no such bucket; create it first"):
        check_replaceable("s3://no-such-bucket/answers")
    with pytest.raises(DataError, match="no such folder"):
        read_dataset("s3://no-such-bucket/answers")


def test_a_server_that_cannot_be_reached_is_told_without_its_password(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class Unreachable:
        def ls(self, *_: object, **__: object) -> None:
            raise OSError("no route to http://user:hunter2@host/bucket?key=hunter2")

        info = invalidate_cache = ls

    monkeypatch.setattr(RemotePath, "_file_system", lambda _: (Unreachable(), "bucket/answers"))
    with pytest.raises(ConfigError, match="can't read s3://bucket/answers/CURRENT") as raised:
        read_dataset("s3://bucket/answers")
    assert "hunter2" not in str(raised.value)
    assert "check the URL, the connection" in str(raised.value)
    Unreachable.info = lambda *_: (_ for _ in ()).throw(PermissionError("no"))  # type: ignore[method-assign]
    with pytest.raises(ConfigError, match=r"no permission to read .* check the credentials"):
        read_dataset("s3://bucket/answers")


@pytest.mark.parametrize(
    ("place", "reason"),
    [
        ("s3://user:hunter2@bucket/answers", "s3://bucket/answers was given with a password"),
        ("https://host/answers?token=hunter2", "a query"),
        ("file:///answers", "a path on the disk"),
        ("s3://", "names no place"),
        (Path("s3://bucket/answers"), "given as text"),
        ("nothing://bucket/answers", "Protocol not known: nothing"),
        ("abfs://bucket/answers", "Install adlfs"),
    ],
)
def test_what_cannot_be_a_place_is_refused(place: str | Path, reason: str) -> None:
    with pytest.raises(ConfigError, match=reason) as raised:
        read_dataset(place)
    assert "hunter2" not in str(raised.value)


def test_a_url_that_became_a_path_makes_no_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for write in (files.replacing_file, files.replacing_folder):
        with pytest.raises(ConfigError, match="is a URL"), write(Path("s3://bucket/answers")):
            raise AssertionError
    assert not list(tmp_path.iterdir())


def test_long_transfers_show_their_progress_and_short_ones_do_not(
    place: RemotePath, monkeypatch: pytest.MonkeyPatch
) -> None:
    tasks: list[tuple[str, float]] = []

    class RecordedProgress(Progress):
        def task(self, label: str, *, total: float):  # noqa: ANN202
            tasks.append((label, total))
            return SilentProgress().task(label, total=total)

    place_with_progress = RemotePath(place.url, RecordedProgress())
    write_dataset(OLD, place_with_progress)
    assert not tasks
    monkeypatch.setattr(path_module, "_PROGRESS_BYTES", 1000)
    write_dataset(NEW, place_with_progress)
    read_dataset(place_with_progress)
    labels: Sequence[str] = [label for label, _ in tasks]
    assert labels == [f"{doing} {place.name}, MB" for doing in ("uploading", "downloading")]
    assert tasks[0][1] >= tasks[1][1] > 0.004


def test_a_place_is_sent_to_other_processes_without_what_shows_its_progress() -> None:
    place = location("S3://bucket/answers/", progress=SilentProgress())
    copy = pickle.loads(pickle.dumps(place))
    assert copy == place == RemotePath("s3://bucket/answers")
    assert copy.resolve().name == "answers"
