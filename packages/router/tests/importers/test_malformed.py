"""The report names malformed rows by file, line and reason; nothing is guessed."""

import csv
import json
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import polars as pl
import pytest
from hypothesis import given, strategies as st

from prefill_router.errors import ConfigError, DataError, FormatError
from prefill_router.importers import Columns, ImportReport, builder, import_dataset, tables, values

from .samples import routerbench_rows
from .truth import PROMPTS, write_csv, write_jsonl, write_parquet

GOOD = {"prompt": "p", "target": "a", "correct": 1}


def list_problems(report: ImportReport) -> list[tuple[int | None, str]]:
    return [(problem.line, problem.reason) for problem in report.problems]


def import_rows(path: Path, rows: Sequence[object]) -> ImportReport:
    source = write_jsonl(path / "t.jsonl", [GOOD, *rows])
    return import_dataset("long", [source], skip_malformed=True).report


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"correct": 1.5}, f"correct is 1.5; {values.LABELS}"),
        ({"correct": -0.1}, f"correct is -0.1; {values.LABELS}"),
        ({"correct": "maybe"}, f"correct is 'maybe'; {values.LABELS}"),
        ({"correct": "1_0"}, f"correct is '1_0'; {values.LABELS}"),
        ({"correct": "\u0661"}, f"correct is '\u0661'; {values.LABELS}"),
        ({"correct": [1]}, f"correct is of the type list; {values.LABELS}"),
        ({"correct": 10**400}, f"correct is a huge number; {values.LABELS}"),
        ({"correct": float("inf")}, f"correct is inf; {values.LABELS}"),
        ({"target": ""}, "target is empty"),
        ({"target": None}, "target is missing; it must be text"),
        ({"target": 5}, "target is of the type int; it must be text"),
        ({"prompt": " "}, "prompt is empty"),
        ({"prompt": None}, "prompt is missing; it must be text"),
        ({"prompt": "\ud800"}, "prompt isn't valid UTF-8; save the file as UTF-8"),
        ({"prompt": []}, "prompt is a list; it must hold one or more {role, content} messages"),
        ({"prompt": [{"role": "user"}]}, "prompt: a content is missing; it must be text"),
        ({"query_id": ""}, "query_id is empty"),
        ({"query_id": 1.5}, "query_id is of the type float; it must be text"),
        (
            {"query_id": 10**40},
            "query_id is a number of more than 30 digits; write such ids as text",
        ),
        ({"output_tokens": -1}, "output_tokens is -1; it must be finite and not negative"),
        ({"output_tokens": True}, "output_tokens is True; it must be a number"),
        ({"output_tokens": "true"}, "output_tokens is 'true'; it must be a number"),
        ({"cost": float("-inf")}, "cost is -inf; it must be finite and not negative"),
        ({"cost": "$1"}, "cost is '$1'; it must be a number"),
        ({"benchmark": 3}, "benchmark is of the type int; it must be text"),
    ],
)
def test_a_cell_that_can_not_be_understood(
    change: dict[str, object], reason: str, tmp_path: Path
) -> None:
    report = import_rows(tmp_path, [{**GOOD, "prompt": "other", **change}])
    assert list_problems(report) == [(2, reason)]
    assert report.problems[0].file == str(tmp_path / "t.jsonl")
    assert (report.rows_read, report.rows_kept, report.malformed) == (2, 1, 1)
    with pytest.raises(FormatError) as error:
        import_dataset("long", [tmp_path / "t.jsonl"], strict=True)
    assert str(error.value).startswith(f"{tmp_path / 't.jsonl'}:2: {reason}")


@pytest.mark.parametrize("missing", [None, "", " ", "nan", "NaN", "null", "None", float("nan")])
def test_a_label_that_is_missing_is_missing(missing: object, tmp_path: Path) -> None:
    row = {**GOOD, "prompt": "other", "correct": missing, "output_tokens": 3}
    dataset, report = import_dataset("long", [write_jsonl(tmp_path / "t.jsonl", [GOOD, row])])
    assert report.malformed == 0
    assert np.array_equal(dataset.correct, [[1.0], [np.nan]], equal_nan=True)
    assert dataset.output_tokens[1, 0] == 3


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        (b"nonsense", "isn't JSON: Expecting value: line 1 column 1 (char 0)"),
        (b"[1]", "is a list; each line must be a JSON object"),
        (b'{"prompt": "\xff"}', "isn't UTF-8; save the file as UTF-8"),
        (b"[" * 100_000, "isn't JSON: maximum recursion depth exceeded"),
        (b'{"prompt": "p"}', "lacks ['target', 'correct']"),
    ],
)
def test_a_line_that_is_no_record(line: bytes, reason: str, tmp_path: Path) -> None:
    path = tmp_path / "t.jsonl"
    good = json.dumps(GOOD).encode()
    path.write_bytes(b"\n".join([good, b"", line, json.dumps({**GOOD, "prompt": "q"}).encode()]))
    dataset, report = import_dataset("long", [path], skip_malformed=True)
    assert [(n, r[: len(reason)]) for n, r in list_problems(report)] == [(3, reason)]
    assert (report.rows_read, report.rows_kept, len(dataset)) == (3, 2, 2)


def test_csv_lines_are_counted_as_an_editor_counts_them(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    path.write_bytes(
        b"prompt,target,correct\r\n"
        b'"two\r\nlines",a,1\r\n'
        b"short,a\r\n"
        b"\r\n"
        b"long,a,1,1\r\n"
        b"bad \xff byte,a,1\r\n"
        b"fine,a,0\r\n"
        b'"quoted"x,a,0\r\n'
        b"fine too,a,2\r\n"
        b'"never closed,a,1\r\n'
    )
    dataset, report = import_dataset("long", [path], skip_malformed=True)
    assert [query.prompt for query in dataset.queries] == ["two\r\nlines", "fine"]
    assert list_problems(report) == [
        (4, "has 2 cells; the header has 3"),
        (6, "has 4 cells; the header has 3"),
        (7, "prompt isn't valid UTF-8; save the file as UTF-8"),
        (9, "isn't CSV: ',' expected after '\"'"),
        (10, f"correct is '2'; {values.LABELS}"),
        (11, "isn't CSV: unexpected end of data"),
    ]
    assert report.rows_read == 8


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"", "is empty; a CSV starts with a line of column names"),
        (b"prompt,prompt\n", "names the columns ['prompt'] more than once"),
        (b"prompt,\xfftarget,correct\n", "isn't UTF-8; save it as UTF-8"),
        ("prompt,target,correct\n".encode("utf-16")[:-1], "isn't valid UTF-16; save it as UTF-8"),
        (b"a,b\n1,2\n", "lacks the columns ['prompt', 'target', 'correct']; it has ['a', 'b']"),
        (b"prompt,target,correct\n", "0 rows read"),
    ],
)
def test_a_table_without_what_is_needed(content: bytes, reason: str, tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_bytes(content)
    with pytest.raises(FormatError) as error:
        import_dataset("long", [tmp_path / "t.csv"])
    assert reason in str(error.value)


def test_a_byte_order_mark_is_no_part_of_the_first_name(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    path.write_text("prompt,target,correct\nx,a,1\n", encoding="utf-8-sig")
    assert import_dataset("long", [path], strict=True).dataset.queries[0].prompt == "x"


def test_long_prompts_are_read_and_the_limit_of_csv_is_as_it_was(tmp_path: Path) -> None:
    before = csv.field_size_limit()
    path = write_csv(tmp_path / "t.csv", [{**GOOD, "prompt": "long " * 200_000}])
    dataset, _ = import_dataset("long", [path], strict=True)
    assert len(dataset.queries[0].prompt) == 1_000_000
    assert csv.field_size_limit() == before


def test_a_line_without_end_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tables, "MAX_LINE", 1000)
    for name in ("t.csv", "t.jsonl"):
        (tmp_path / name).write_text("x" * 1001)
        with pytest.raises(FormatError, match="a line of more than 1,000 characters"):
            import_dataset("long", [tmp_path / name])


def test_rows_that_repeat_and_rows_that_contradict(tmp_path: Path) -> None:
    rows = routerbench_rows()
    other_score = {**rows[1], "beta": 0.25, "prompt": rows[1]["prompt"]}
    other_prompt = {**rows[2], "prompt": "['something else']"}
    path = write_csv(tmp_path / "t.csv", [*rows, rows[0], other_score, other_prompt, rows[0]])
    dataset, report = import_dataset("routerbench", [path], skip_malformed=True)
    assert (report.rows_read, report.rows_kept, report.duplicates) == (9, 5, 2)
    assert [line for line, _ in list_problems(report)] == [8, 9]
    assert (
        "query 'made-up.val.1' and target 'beta' have another outcome at "
        in list_problems(report)[0][1]
    )
    assert f"{path}:3, which is kept" in list_problems(report)[0][1]
    assert "query 'made-up.val.2' has another text than at " in list_problems(report)[1][1]
    assert dataset.correct[1, 1] == 1
    with pytest.raises(FormatError, match="have another outcome"):
        import_dataset("routerbench", [path], strict=True)


def test_an_outcome_is_added_to_a_known_query(tmp_path: Path) -> None:
    rows = [GOOD, {**GOOD, "target": "b", "correct": 0}]
    dataset, report = import_dataset("long", [write_parquet(tmp_path / "t.parquet", rows)])
    assert dataset.correct.tolist() == [[1.0, 0.0]]
    assert report.duplicates == 0


def test_the_list_of_problems_ends_and_the_count_does_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(builder, "LISTED_PROBLEMS", 3)
    report = import_rows(tmp_path, [{"prompt": "x"}] * 5)
    assert (report.malformed, len(report.problems)) == (5, 3)


def test_notes_on_labels_of_one_class_and_on_none(tmp_path: Path) -> None:
    rows = [
        {"prompt": str(q), "target": t, "correct": None if t == "c" else int(t == "b" and q > 0)}
        for q in range(3)
        for t in "abc"
    ]
    report = import_dataset("long", [write_jsonl(tmp_path / "t.jsonl", rows)]).report
    assert report.notes == (
        "target 'a' has the label 0 on every query",
        "target 'c' has no label at all",
    )


def test_pickles_are_not_loaded(tmp_path: Path) -> None:
    path = tmp_path / "routerbench_0shot.pkl"
    path.write_bytes(b"\x80\x04cos\nsystem\n(S'touch pwned'\ntR.")
    with pytest.raises(FormatError, match=r"loading a pickle can run any code.*to_csv"):
        import_dataset("routerbench", [path])


def test_prompts_of_routerbench(tmp_path: Path) -> None:
    cells = [
        ("['one']", "one"),
        ('["it\'s \\d"]', "it's \\d"),
        ("plain", "plain"),
        ("[INST] plain too", "[INST] plain too"),
        ("['one', 'two']", None),
        ("['cut", None),
        ("[" + "'" * 3, None),
        ("['']", None),
        ("[" + '["' * 500, None),
    ]
    rows = [
        {**routerbench_rows()[0], "sample_id": f"s{n}", "prompt": cell}
        for n, (cell, _) in enumerate(cells)
    ]
    source = write_csv(tmp_path / "t.csv", rows)
    dataset, report = import_dataset("routerbench", [source], skip_malformed=True)
    prompts = {query.id: query.prompt for query in dataset.queries}
    texts = {f"s{n}": text for n, (_, text) in enumerate(cells) if text is not None}
    assert prompts.items() >= texts.items()
    assert report.malformed + len(prompts) == len(cells)


def test_routerbench_without_costs_or_answers_takes_every_other_column(tmp_path: Path) -> None:
    rows = [{"sample_id": "s", "prompt": "['p']", "eval_name": "e", "a": 0.5, "b/c": 1}]
    dataset, _ = import_dataset("routerbench", [write_csv(tmp_path / "t.csv", rows)])
    assert dataset.pool.names == ("a", "b/c")
    assert dataset.correct.tolist() == [[0.5, 1]]
    assert dataset.queries[0].benchmark == "e"


def test_chat_prompts_and_whole_numbers_as_ids(tmp_path: Path) -> None:
    chat = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hi"}]
    rows = [{**GOOD, "prompt": chat, "query_id": 7}]
    for path in (
        write_jsonl(tmp_path / "t.jsonl", rows),
        write_parquet(tmp_path / "t.parquet", rows),
    ):
        (query,) = import_dataset("long", [path], strict=True).dataset.queries
        assert query.id == "7"
        assert [(m.role, m.content) for m in query.prompt] == [  # type: ignore[union-attr]
            ("system", "Be brief."),
            ("user", "Hi"),
        ]


def test_columns_that_were_named_must_be_there(tmp_path: Path) -> None:
    path = write_csv(tmp_path / "t.csv", [GOOD])
    with pytest.raises(FormatError, match=r"lacks the columns \['usd'\]"):
        import_dataset("long", [path], columns=Columns(cost="usd"))
    with pytest.raises(ConfigError, match=r"--target-columns a,b,c.* has the columns \['prompt'"):
        import_dataset("wide", [path])
    with pytest.raises(ConfigError, match=r"it must contain {target}"):
        import_dataset("wide", [path], columns=Columns(targets=("a", "b"), cost="usd"))
    with pytest.raises(FormatError, match=r"lacks the columns \['b'\]"):
        import_dataset("wide", [path], columns=Columns(targets=("target", "b")))


def test_parquet_of_other_types(tmp_path: Path) -> None:
    path = tmp_path / "t.parquet"
    frame = pl.DataFrame({"prompt": ["p", "q"], "target": ["a", "a"], "correct": [True, False]})
    frame.with_columns(
        pl.lit(None).alias("cost"), pl.date(2026, 1, 1).alias("output_tokens")
    ).write_parquet(path)
    with pytest.raises(FormatError, match="output_tokens is of the type date; it must be a number"):
        import_dataset("long", [path], strict=True)


@given(st.floats(0, 1))
def test_labels_are_read_as_they_are_written(label: float) -> None:
    assert values.label(repr(label), "x") == label
    assert values.label(label, "x") == label


@given(st.text(max_size=8))
def test_texts_are_numbers_as_python_reads_them_or_refused(text: str) -> None:
    try:
        amount = values.cell_amount(text, "x")
    except DataError:
        return
    if amount is None:
        assert text.strip().lower() in ("", "null", "nan", "none")
    else:
        assert amount == float(text.strip())


def test_prompts_of_the_samples_differ() -> None:
    assert len(set(PROMPTS)) == len(PROMPTS)
