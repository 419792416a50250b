"""Sampled requests, side answers and labels in the database of receipts."""

import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from prefill_router.errors import CorruptError, DataError
from prefill_router_gateway.receipts import (
    AnswerLabel,
    SampledRequest,
    SideAnswer,
    open_learning,
    open_store,
    read_learning,
    write_learning,
)

SAMPLE = SampledRequest(
    id="pr_1",
    at=10.0,
    share=0.1,
    endpoint="chat",
    body={"messages": [{"role": "user", "content": "Zwölf?\ud800"}]},
    answer="x" * 3000,
)
ANSWERS = [SideAnswer(id="pr_1", target=f"t{i}", at=11.0, propensity=0.5) for i in range(501)]
LABEL = AnswerLabel(
    id="pr_1", target="t1", source="judge:j", at=12.0, score=1, error=0.1, cost=2e-6
)


def test_rows_are_read_as_written_once_each_over_any_number_of_pages(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/r.sqlite"
    with closing(open_learning(url)) as store:
        write_learning(store, [SAMPLE, LABEL, *ANSWERS])
        write_learning(store, [SAMPLE, LABEL])
    assert list(read_learning(url, SampledRequest)) == [SAMPLE]
    assert sorted(a.target for a in read_learning(url, SideAnswer)) == sorted(
        a.target for a in ANSWERS
    )
    assert list(read_learning(url, AnswerLabel, since=12.0)) == [LABEL]
    assert list(read_learning(url, AnswerLabel, since=12.5)) == []


def test_a_database_without_these_tables_has_no_rows_and_can_get_them(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/r.sqlite"
    open_store(url).close()
    assert list(read_learning(url, SampledRequest)) == []
    for _ in range(2):
        with closing(open_learning(url)) as store:
            write_learning(store, [SAMPLE])
    assert list(read_learning(url, SampledRequest)) == [SAMPLE]


def test_neither_prompts_nor_answers_are_in_a_representation() -> None:
    assert "Zwölf" not in repr(SAMPLE)
    assert "xxx" not in repr(SAMPLE)


def test_damaged_rows_are_an_error_that_quotes_no_text(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/r.sqlite"
    with closing(open_learning(url)) as store:
        write_learning(store, [SAMPLE])
    with closing(sqlite3.connect(tmp_path / "r.sqlite")) as file, file:
        file.execute("UPDATE receipt_samples SET body = '{\"secret'")
    with pytest.raises(CorruptError, match="pr_1") as caught:
        list(read_learning(url, SampledRequest))
    assert "secret" not in str(caught.value)


@pytest.mark.parametrize("changes", [{"score": 1.5}, {"error": 0.5}])
def test_labels_that_tell_nothing_are_refused(changes: dict[str, float]) -> None:
    with pytest.raises(DataError, match="must be in"):
        AnswerLabel(**{**vars(LABEL), **changes})
