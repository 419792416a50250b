"""Small files and texts that were made to take much time or memory are refused at once.

No time is measured: each of these took minutes or gigabytes while it was read without a bound.
"""

import json
from pathlib import Path

import polars as pl
import pytest

from prefill_router.errors import ConfigError, DataError, FormatError
from prefill_router.grading.judge import read_verdict
from prefill_router.grading.text import extract_number
from prefill_router.importers import (
    Columns,
    Scale,
    builder,
    import_dataset,
    own_tables,
    values,
)
from prefill_router.importers.builder import MOST_TARGETS
from prefill_router.importers.tables import MAX_COLUMNS, columns_of
from prefill_router.importers.values import cell_amount
from prefill_router.targets import read_pool
from prefill_router.yaml_files import line_of, read_yaml

VERDICT = '{"correct": "yes"}'


def billions(start: str, step: str, *, levels: int = 30) -> str:
    """Each line is ten times the one before."""
    lines = (step.format(n=n, before=",".join([f"*a{n - 1}"] * 10)) for n in range(1, levels))
    return "\n".join([start, *lines]) + "\n"


BOMBS = {
    "lists": billions("a0: &a0 [1, 2]", "a{n}: &a{n} [{before}]"),
    "merged mappings": billions("a0: &a0 {x: 1}", "a{n}: &a{n} {{<<: [{before}]}}"),
    "a part of itself": "a: &a [*a]\n",
    "a part of its own key": "? &a {x: *a}\n: 1\n",
    "a long text": f"a: &a {'x' * 1000}\nb: [{','.join(['*a'] * 1000)}]\n",
}


@pytest.mark.parametrize("name", BOMBS)
def test_aliases_repeat_a_bounded_amount(name: str, tmp_path: Path) -> None:
    file = tmp_path / "pool.yaml"
    file.write_text(BOMBS[name])
    for read in (read_pool, read_yaml):
        with pytest.raises((FormatError, ConfigError), match="aliases repeat too much"):
            read(file)
    with pytest.raises(ConfigError):
        line_of(file, ["a"])


def test_a_few_aliases_are_what_they_stand_for(tmp_path: Path) -> None:
    (tmp_path / "a.yaml").write_text("a: &a {x: 1}\nb: *a\nc: {<<: *a, y: [*a, *a]}\n")
    shared = {"x": 1}
    assert read_yaml(tmp_path / "a.yaml") == {
        "a": shared,
        "b": shared,
        "c": {**shared, "y": [shared, shared]},
    }


@pytest.mark.parametrize("number", ["1" + ":59" * 10**4, "1:0.5" + "0" * 10**4])
def test_numbers_have_a_bounded_length(number: str, tmp_path: Path) -> None:
    (tmp_path / "a.yaml").write_text(f"a: {number}\n")
    with pytest.raises(ConfigError, match="a value is malformed"):
        read_yaml(tmp_path / "a.yaml")


def test_brackets_are_nested_to_a_bounded_depth(tmp_path: Path) -> None:
    (tmp_path / "a.yaml").write_text("a:\n  " + "[" * 100 + "]" * 100)
    value = read_yaml(tmp_path / "a.yaml")["a"]
    for _ in range(99):
        (value,) = value
    assert value == []
    (tmp_path / "a.yaml").write_text("a:\n  " + "[{b: " * 10**5)
    with pytest.raises(ConfigError, match="line 2: not YAML: it is nested too deeply"):
        read_yaml(tmp_path / "a.yaml")


@pytest.mark.slow
def test_tables_have_a_bounded_number_of_columns(tmp_path: Path) -> None:
    names = [f"c{n}" for n in range(10**5)]
    (tmp_path / "wide.csv").write_text(",".join(names) + "\n")
    with pytest.raises(FormatError, match="has 100,000 columns; at most 10,000"):
        columns_of(tmp_path / "wide.csv")
    fewer = {name: [1] for name in names[: MAX_COLUMNS + 1]}
    pl.DataFrame(fewer).write_parquet(tmp_path / "wide.parquet")
    with pytest.raises(FormatError, match="has 10,001 columns"):
        columns_of(tmp_path / "wide.parquet")
    (tmp_path / "fit.csv").write_text(",".join(names[:MAX_COLUMNS]) + "\n")
    assert len(columns_of(tmp_path / "fit.csv")) == MAX_COLUMNS
    (tmp_path / "twice.csv").write_text(",".join([*names[: MAX_COLUMNS - 1], "c7"]) + "\n")
    with pytest.raises(FormatError, match=r"names the columns \['c7'\] more than once"):
        columns_of(tmp_path / "twice.csv")


@pytest.mark.slow
def test_records_have_a_bounded_number_of_fields(tmp_path: Path) -> None:
    fields = {f"c{n}": 1 for n in range(10**5)}
    complete, parts = tmp_path / "whole.jsonl", tmp_path / "parts.jsonl"
    complete.write_text(json.dumps({"prompt": "p", **fields}))
    names = list(fields)
    lines = [names[n : n + 5000] for n in range(0, 10**5, 5000)]
    parts.write_text("\n".join(json.dumps({"prompt": "p", **dict.fromkeys(n, 1)}) for n in lines))
    for table in (complete, parts):
        with pytest.raises(FormatError, match="at most 10,000 are supported"):
            import_dataset("wide", [table])


def test_targets_are_bounded_and_so_are_their_tables(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = [f"p{n},t{n},1" for n in range(MOST_TARGETS + 1)]
    table = tmp_path / "long.csv"
    table.write_text("\n".join(["prompt,target,correct", *rows]))
    with pytest.raises(ConfigError, match="more than 1,000 targets, such as 't1000'"):
        import_dataset("long", [table])
    table.write_text("\n".join(["prompt,target,correct", *rows[:20]]))
    assert import_dataset("long", [table])[0].correct.shape == (20, 20)
    monkeypatch.setattr(builder, "MOST_CELLS", 399)
    with pytest.raises(ConfigError, match="20 queries of 20 targets are 400 labels"):
        import_dataset("long", [table])


@pytest.mark.parametrize(
    "filler", ["{" * 10**5, '{"a": ' * 10**5, "{ x\n" * 10**5, '{"correct" ' * 10**5]
)
def test_braces_that_begin_no_object_are_given_up(filler: str) -> None:
    assert read_verdict(filler, soft=False) is None
    assert read_verdict(filler + VERDICT, soft=False) is None


def test_a_reply_may_have_braces() -> None:
    verdict = read_verdict("{ x; {} }\n" * 500 + VERDICT, soft=False)
    assert verdict is not None
    assert verdict.score == 1.0


@pytest.mark.parametrize("filler", ["111," * 10**5, "1,111," * 10**5, "$ " * 10**5, "1*" * 10**5])
def test_numbers_are_found_behind_a_long_list(filler: str) -> None:
    number = extract_number(f"{filler} The answer is 1,234.")
    assert number is not None
    assert number.value == 1234


@pytest.mark.parametrize("text", ["1" * 10**5 + "x", "1." + "1" * 10**5 + "x", "9" * 10**5 + "e"])
def test_long_digits_that_are_no_number_are_looked_at_once(text: str) -> None:
    with pytest.raises(DataError, match="it must be a number"):
        cell_amount(text, "cost")
    with pytest.raises(ConfigError, match="the scale is"):
        Scale.parse(text, None)
    assert read_verdict(json.dumps({"score": text}), soft=True) is None


def test_columns_that_only_some_records_have_are_looked_at_there(tmp_path: Path) -> None:
    looked = 0
    names = [f"k{n}" for n in range(400)]
    lines = [json.dumps({"prompt": f"p{n}", name: 1}) for n, name in enumerate(names)]
    (tmp_path / "a.jsonl").write_text("\n".join(lines))

    def label(value: object, name: str) -> float | None:
        nonlocal looked
        looked += 1
        return original(value, name)

    original = values.label
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(values, "label", label)
        assert own_tables._guess_targets(tmp_path / "a.jsonl", Columns()) == tuple(names)
    assert looked == len(names)


def test_a_verdict_that_is_nested_too_deeply_to_be_written_is_read() -> None:
    deep = "[" * 980 + "]" * 980
    verdicts = [read_verdict(f'{{"correct": "yes", "extracted": {deep[n:-n]}}}', soft=False)
             for n in range(1, 60)]  # fmt: skip
    assert {verdict.extracted for verdict in verdicts if verdict} - {""}
    assert all(verdict is None or verdict.score == 1.0 for verdict in verdicts)


def test_numbers_that_a_dictionary_would_all_look_at_are_no_names(tmp_path: Path) -> None:
    same_hash = "\n".join(f"{n * (2**61 - 1)}: 1" for n in range(1, 100))
    (tmp_path / "a.yaml").write_text(same_hash)
    with pytest.raises(ConfigError, match="a name is a number of 19 digits"):
        read_yaml(tmp_path / "a.yaml")
    (tmp_path / "a.yaml").write_text("1234567890: 1\n'2305843009213693951': 1\n")
    assert read_yaml(tmp_path / "a.yaml") == {1234567890: 1, "2305843009213693951": 1}
