"""Files and folders are found whole, whatever happens to the process that writes them."""

import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings, strategies as st

from packages.router.tests.programs import run_program
from prefill_router import files
from prefill_router.errors import ConfigError, CorruptError

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[3]
KINDS = {"file": ("file",), "folder": ("folder/one", "folder/two", "folder/deep/three")}


@pytest.mark.parametrize("kind", KINDS)
def test_dying_at_any_step_leaves_the_old_or_the_new(kind: str, tmp_path: Path) -> None:
    program = [sys.executable, "-m", "packages.router.tests.crashes", tmp_path, kind]
    process = subprocess.run(program, capture_output=True, text=True, check=False, cwd=ROOT)
    assert process.returncode == 0, process.stderr
    assert int(process.stdout) > {"file": 8, "folder": 20}[kind]  # steps at which it died


def test_a_careless_write_is_caught(tmp_path: Path) -> None:
    program = [sys.executable, "-m", "packages.router.tests.crashes", tmp_path, "careless"]
    process = subprocess.run(program, capture_output=True, text=True, check=False, cwd=ROOT)
    assert "torn at step" in process.stderr


@pytest.mark.parametrize("kind", KINDS)
def test_killing_at_random_moments_leaves_the_old_or_the_new(kind: str, tmp_path: Path) -> None:
    chance = random.Random(0)
    for _ in range(6):
        program = [sys.executable, "-m", "packages.router.tests.rewriting", tmp_path, kind]
        with run_program(program, stdout=subprocess.PIPE, text=True, cwd=ROOT) as process:
            assert process.stdout is not None
            for _ in range(chance.randrange(1, 6)):
                assert process.stdout.readline() == "written\n"
            time.sleep(chance.uniform(0, 0.02))
            process.send_signal(signal.SIGKILL)
        texts = {(tmp_path / name).read_text() for name in KINDS[kind]}
        assert len(texts) == 1
        (text,) = texts
        assert text in ("a" * 5000, "b" * 5000)


def fail_writing(path: Path) -> None:
    with files.replacing_file(path / "file") as temporary:
        temporary.write_text("new")
        raise RuntimeError


def fail_filling(path: Path) -> None:
    with files.replacing_folder(path / "folder") as temporary:
        (temporary / "x").write_text("new")
        raise RuntimeError


@pytest.mark.parametrize("fail", [fail_writing, fail_filling])
def test_an_error_while_writing_leaves_the_old_and_no_rubbish(
    fail: Callable[[Path], None], tmp_path: Path
) -> None:
    files.write_text(tmp_path / "file", "old")
    with pytest.raises(RuntimeError):
        fail(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["file"]
    assert (tmp_path / "file").read_text() == "old"


def test_a_folder_takes_the_place_of_a_folder(tmp_path: Path) -> None:
    for name in ("x", "y"):
        with files.replacing_folder(tmp_path / "up" / "folder") as temporary:
            (temporary / name).write_text(name)
    assert [path.name for path in (tmp_path / "up" / "folder").iterdir()] == ["y"]
    assert [path.name for path in (tmp_path / "up").iterdir()] == ["folder"]


def test_a_folder_takes_the_place_of_a_folder_without_renameat2(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(files, "_swap_paths", lambda *_: False)
    test_a_folder_takes_the_place_of_a_folder(tmp_path)


def test_two_first_writers_of_a_folder_both_end_well(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, rename = tmp_path / "folder", Path.rename

    def after_the_other(new: Path, place: Path) -> Path:
        if place == path:
            monkeypatch.setattr(Path, "rename", rename)
            path.mkdir()
            (path / "other").touch()
        return rename(new, place)

    monkeypatch.setattr(Path, "rename", after_the_other)
    with files.replacing_folder(path) as temporary:
        (temporary / "mine").touch()
    assert [entry.name for entry in path.iterdir()] == ["mine"]
    assert list(tmp_path.iterdir()) == [path]


def test_locks_of_other_users_are_left_to_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def theirs(*_: object, **__: object) -> int:
        raise PermissionError

    (tmp_path / ".a.lock").touch()
    monkeypatch.setattr(files.os, "open", theirs)
    files.remove_stale_locks(tmp_path)
    assert (tmp_path / ".a.lock").exists()


def test_json_is_written_as_it_is_read_and_without_nan(tmp_path: Path) -> None:
    value = {"ü": [1, 2.5, None, "∑"]}
    files.write_json(tmp_path / "x.json", value)
    assert json.loads((tmp_path / "x.json").read_text(encoding="utf-8")) == value
    with pytest.raises(ValueError, match="not JSON compliant"):
        files.write_json(tmp_path / "x.json", float("nan"))
    assert json.loads((tmp_path / "x.json").read_text(encoding="utf-8")) == value


NAMES = ["a", "b.bin", "empty"]


@pytest.fixture
def checked_folder(tmp_path: Path) -> Path:
    (tmp_path / "a").write_text("text\n" * 20)
    (tmp_path / "b.bin").write_bytes(bytes(range(256)))
    (tmp_path / "empty").write_bytes(b"")
    files.write_checksums(tmp_path, NAMES)
    return tmp_path


def test_what_was_written_passes(checked_folder: Path) -> None:
    files.verify_checksums(checked_folder, NAMES)
    program = ["sha256sum", "--check", "--strict", files.CHECKSUMS]
    assert (
        subprocess.run(program, cwd=checked_folder, capture_output=True, check=False).returncode
        == 0
    )


@pytest.mark.parametrize("name", ["a", "b.bin", files.CHECKSUMS])
@settings(
    max_examples=50, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(place=st.floats(0, 1, exclude_max=True), flip=st.integers(1, 255))
def test_a_flipped_byte_anywhere_is_noticed(
    checked_folder: Path, name: str, place: float, flip: int
) -> None:
    path = checked_folder / name
    before = path.read_bytes()
    at = int(place * len(before))
    path.write_bytes(before[:at] + bytes([before[at] ^ flip]) + before[at + 1 :])
    try:
        with pytest.raises(CorruptError):
            files.verify_checksums(checked_folder, NAMES)
    finally:
        path.write_bytes(before)
    files.verify_checksums(checked_folder, NAMES)


def test_every_end_of_line_of_the_list_counts(checked_folder: Path) -> None:
    path = checked_folder / files.CHECKSUMS
    before = path.read_bytes()
    for at in (i for i, byte in enumerate(before) if byte == 10):
        for byte in b"\r\x0b\x0c\x1c\x1d\x1e\x85 \0":
            path.write_bytes(before[:at] + bytes([byte]) + before[at + 1 :])
            with pytest.raises(CorruptError):
                files.verify_checksums(checked_folder, NAMES)


def test_what_is_missing_or_cut_or_longer_is_named(checked_folder: Path) -> None:
    (checked_folder / "empty").write_bytes(b"x")
    with pytest.raises(CorruptError, match="empty isn't what was written"):
        files.verify_checksums(checked_folder, NAMES)
    (checked_folder / "empty").unlink()
    with pytest.raises(CorruptError, match="lacks the file empty"):
        files.verify_checksums(checked_folder, NAMES)
    (checked_folder / "new").write_bytes(b"x")
    with pytest.raises(CorruptError, match="doesn't list new"):
        files.verify_checksums(checked_folder, ["new"])
    (checked_folder / files.CHECKSUMS).unlink()
    with pytest.raises(CorruptError, match="lacks the file SHA256SUMS"):
        files.verify_checksums(checked_folder, ["a"])


LEFT_FILE = """
import os, sys
from pathlib import Path
from prefill_router import files
with files.replacing_file(Path(sys.argv[1])) as temporary:
    temporary.write_text("half")
    os.kill(os.getpid(), 9)
"""
LEFT_FOLDER = LEFT_FILE.replace("replacing_file", "replacing_folder").replace(
    "temporary.write", '(temporary / "x").write'
)


def leave_temporary(path: Path, program: str) -> Path:
    killed = subprocess.run([sys.executable, "-c", program, path], check=False)
    assert killed.returncode == -signal.SIGKILL
    (temporary,) = path.parent.glob(f".{path.name}.*.tmp")
    return temporary


@pytest.mark.parametrize("program", [LEFT_FILE, LEFT_FOLDER])
@pytest.mark.parametrize("after", ["check", "write"])
def test_what_a_killed_run_left_goes_with_the_next(
    program: str, after: str, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    temporary = leave_temporary(out, program)
    strangers = [tmp_path / f".{name}.abcdefgh.tmp" for name in ("outer", "ou", "out.json")]
    strangers.append(tmp_path / ".out.mine.tmp")
    for other in strangers:
        other.touch()
    if after == "check":
        files.check_place(out)
    else:
        files.write_text(out, "new")
    assert not temporary.exists()
    assert all(other.exists() for other in strangers)


@pytest.mark.parametrize("program", [LEFT_FILE, LEFT_FOLDER])
def test_what_a_killed_holder_of_the_lock_left_goes_with_the_next(
    program: str, tmp_path: Path
) -> None:
    temporary = leave_temporary(tmp_path / "out", program)
    with files.writer_lock(tmp_path, "out", wait=True):
        assert not temporary.exists()


@pytest.mark.parametrize("program", [LEFT_FILE, LEFT_FOLDER])
def test_what_a_live_writer_writes_stays(program: str, tmp_path: Path) -> None:
    out = tmp_path / "out"
    slow = program.replace("os.kill(os.getpid(), 9)", "print('half', flush=True); input()")
    line = [sys.executable, "-c", slow, out]
    with run_program(line, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as writer:
        assert writer.stdout is not None
        assert writer.stdout.readline() == b"half\n"
        files.check_place(out)
        with files.replacing_file(tmp_path / "out") as mine:  # a second one, of this process
            files.remove_abandoned(out)
            assert mine.exists()
            mine.write_text("mine")
        writer.communicate(b"\n")
    path = out if out.is_file() else out / "x"
    assert path.read_text() == "half"


def test_without_locks_only_what_is_old_goes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    temporary = leave_temporary(tmp_path / "out", LEFT_FILE)
    monkeypatch.setattr(files, "_HAS_LOCKS", False)
    files.check_place(tmp_path / "out")
    assert temporary.exists()
    os.utime(temporary, (time.time() - 7200,) * 2)
    files.check_place(tmp_path / "out")
    assert not temporary.exists()


def test_what_was_put_aside_stays_until_something_is_in_its_place(tmp_path: Path) -> None:
    aside = tmp_path / ".out.abcdefgh.old"
    (aside / "old").mkdir(parents=True)
    files.remove_abandoned(tmp_path / "out")
    assert aside.exists()
    files.write_text(tmp_path / "out", "new")
    files.remove_abandoned(tmp_path / "out")
    assert not aside.exists()


def test_a_mount_point_is_refused_before_the_work(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also one of the same file system, or with a space in its name, which `ismount` misses."""
    (tmp_path / "my out").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "my out")
    mounts = tmp_path / "mountinfo"
    there = str(tmp_path / "my out").replace(" ", "\\040")
    mounts.write_text(f"36 35 98:0 /x {there} rw,noatime master:1 - ext4 /dev/root rw\n")
    monkeypatch.setattr(files, "_MOUNTS", mounts)
    for path in (tmp_path / "my out", tmp_path / "link"):
        with pytest.raises(ConfigError, match=r"is a mount point.* such as .*my out/new"):
            files.check_place(path)
    files.check_place(tmp_path / "my out", replaced=False)
    files.check_place(tmp_path / "my out" / "new")


def test_the_mount_points_of_this_machine_are_known() -> None:
    with pytest.raises(ConfigError, match="/proc is a mount point"):
        files.check_place(Path("/proc"))
