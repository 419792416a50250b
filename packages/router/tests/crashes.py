"""Dies at every step of a write, one step after another, and says what is found afterwards.

Run as `python -m packages.router.tests.crashes FOLDER file|folder`. Each attempt is a fork that
ends itself, without any clean-up, right before the n-th thing that it asks of the system.
"""

import os
import shutil
import sys
from collections.abc import Callable
from pathlib import Path

from prefill_router import files

SIZE = 5000
NAMES = ("one", "two", "deep/three")


def write_file(path: Path, letter: str) -> None:
    files.write_text(path / "file", letter * SIZE)


def write_folder(path: Path, letter: str) -> None:
    with files.replacing_folder(path / "folder") as temporary:
        (temporary / "deep").mkdir()
        for name in NAMES:
            (temporary / name).write_text(letter * SIZE)


def write_carelessly(path: Path, letter: str) -> None:
    """Write without a temporary file: the negative control."""
    (path / "file").write_text("")
    (path / "file").write_text(letter * SIZE)


def read_file(path: Path) -> str:
    return (path / "file").read_text()


def read_folder(path: Path) -> str:
    return "".join((path / "folder" / name).read_text() for name in NAMES)


KINDS: dict[str, tuple[Callable[[Path, str], None], Callable[[Path], str], int]] = {
    "file": (write_file, read_file, SIZE),
    "careless": (write_carelessly, read_file, SIZE),
    "folder": (write_folder, read_folder, SIZE * len(NAMES)),
}


def die_at(step: int) -> None:
    """End this process right before its `step`-th request of the system."""
    steps_left = step

    def hook(event: str, arguments: object) -> None:
        del arguments
        nonlocal steps_left
        if event.partition(".")[0] in ("open", "os", "shutil", "tempfile", "ctypes"):
            steps_left -= 1
            if steps_left == 0:
                os._exit(9)

    sys.addaudithook(hook)


def main() -> None:
    folder, kind = Path(sys.argv[1]), sys.argv[2]
    write, read, size = KINDS[kind]
    write(folder, "a")
    before, step, code = "a", 0, 9
    while code == 9:
        step += 1
        after = "b" if before == "a" else "a"
        child = os.fork()
        if child == 0:
            die_at(step)
            write(folder, after)
            os._exit(0)
        code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        now = read(folder)
        if now not in (before * size, after * size):
            sys.exit(f"torn at step {step}")
        if code == 0 and now != after * size:
            sys.exit("a write that ended well left the old content")
        before = now[0]
        for path in folder.glob(".*"):  # leftovers would make the next write longer
            shutil.rmtree(path) if path.is_dir() else path.unlink()
    sys.stdout.write(f"{step}\n")


if __name__ == "__main__":
    main()
