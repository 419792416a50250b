"""The URLs of receipts that are refused, and the file of SQLite."""

import subprocess
import sys
from contextlib import closing
from pathlib import Path

import pytest

from packages.gateway.tests.receipts.example_receipts import example_receipt, receipt_id
from prefill_router.errors import ConfigError, StoreError
from prefill_router_gateway.receipts import insert_rows, open_store, read_receipts
from prefill_router_gateway.receipts.rows import to_row


@pytest.mark.parametrize(
    "url", ["mysql://here/db", "http://s3cret@here", "sqlite:///", "sqlite://x"]
)
def test_urls_that_are_none(url: str) -> None:
    with pytest.raises(ConfigError, match="URL") as caught:
        open_store(url)
    assert "s3cret" not in str(caught.value)


def test_a_file_that_is_no_database_is_told(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("these are no receipts" * 100)
    for create in (True, False):
        with pytest.raises(StoreError, match=r"notes\.txt"):
            open_store(f"sqlite:///{tmp_path}/notes.txt", create=create)
    assert (tmp_path / "notes.txt").read_text().startswith("these")


def test_what_cannot_be_a_file_is_told(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    for path in (tmp_path, tmp_path / "file" / "a.sqlite"):
        with pytest.raises(StoreError, match="can't be opened for writing"):
            open_store(str(path))


def test_receipts_are_for_their_owner_alone(tmp_path: Path) -> None:
    with closing(open_store(f"{tmp_path}/a.sqlite")) as store:
        insert_rows(store, [to_row(example_receipt(1))], [])
    assert (tmp_path / "a.sqlite").stat().st_mode & 0o077 == 0


def test_a_file_that_was_moved_away_is_begun_again(tmp_path: Path) -> None:
    with closing(open_store(f"{tmp_path}/a.sqlite")) as store:
        insert_rows(store, [to_row(example_receipt(1))], [])
        (tmp_path / "a.sqlite").rename(tmp_path / "old.sqlite")
        insert_rows(store, [to_row(example_receipt(2))], [])
    assert [r.choice.id for r in read_receipts(f"{tmp_path}/a.sqlite")] == [receipt_id(2)]
    assert [r.choice.id for r in read_receipts(f"{tmp_path}/old.sqlite")] == [receipt_id(1)]


@pytest.mark.slow
def test_a_second_connection_of_the_process_keeps_the_first_ones_locks(tmp_path: Path) -> None:
    """Without the locks, another process that closes the file would remove the journal in use."""
    url = f"{tmp_path}/a.sqlite"
    reads = (
        "import sys; from prefill_router_gateway.receipts import read_receipts; "
        "print(sum(1 for _ in read_receipts(sys.argv[1])))"
    )

    def count_in_process() -> int:
        line = [sys.executable, "-c", reads, url]
        return int(subprocess.run(line, capture_output=True, check=True, text=True).stdout)

    with closing(open_store(url)) as store:
        insert_rows(store, [to_row(example_receipt(1))], [])
        open_store(url).close()
        assert count_in_process() == 1
        insert_rows(store, [to_row(example_receipt(2))], [])
        assert count_in_process() == 2
