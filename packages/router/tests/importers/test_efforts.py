"""Reasoning efforts in tables: a column, or names that end in one."""

from pathlib import Path

import pytest

from prefill_router.data import read_dataset, write_dataset
from prefill_router.errors import FormatError
from prefill_router.importers import Columns, guess_source, import_dataset
from prefill_router.targets import Pool, Target, write_pool

HEAD = "prompt,target,{effort},correct,output_tokens\n"
ROWS = "a,m,low,1,5\na,m,4096,1,90\na,s,,0,3\nb,m,low,0,6\nb,m,4096,1,80\nb,s,,1,2\n"


def table(folder: Path, effort: str = "reasoning_effort") -> Path:
    place = folder / "answers.csv"
    place.write_text(HEAD.format(effort=effort) + ROWS)
    return place


def test_a_column_of_efforts_makes_targets(tmp_path: Path) -> None:
    dataset, _ = import_dataset("long", [table(tmp_path)])
    assert dataset.pool.names == ("m:low", "m:4096", "s")
    assert [t.effort for t in dataset.pool] == ["low", "4096", None]
    assert dataset.correct.tolist() == [[1, 1, 0], [0, 1, 1]]
    assert dataset.pool.efforts_of == {"m": ("m:low", "m:4096")}


def test_another_column_is_named(tmp_path: Path) -> None:
    columns = Columns(effort="thinking")
    dataset, _ = import_dataset("long", [table(tmp_path, "thinking")], columns=columns)
    assert dataset.pool.names == ("m:low", "m:4096", "s")


def test_one_price_list(tmp_path: Path) -> None:
    listed = Pool(tuple(Target(name=n, input_price=1.0, output_price=2.0) for n in ("m", "s")))
    write_pool(listed, tmp_path / "pool.yaml")
    dataset, report = import_dataset("long", [table(tmp_path)], prices=tmp_path / "pool.yaml")
    assert [t.output_price for t in dataset.pool] == [2.0] * 3
    assert dataset.pool.names == ("m:low", "m:4096", "s")
    assert not [note for note in report.notes if "price" in note]


def test_an_effort_in_the_name_and_the_column_is_one(tmp_path: Path) -> None:
    place = table(tmp_path)
    place.write_text(place.read_text().replace(",m,low", ",m:low,low").replace(",,", ",default,"))
    dataset, _ = import_dataset("long", [place])
    assert dataset.pool.names == ("m:low", "m:4096", "s")
    write_dataset(dataset, tmp_path / "dataset")
    assert read_dataset(tmp_path / "dataset").pool == dataset.pool
    place.write_text(place.read_text().replace(",m:low,low", ",m:high,low"))
    with pytest.raises(FormatError, match="'m:high' has the effort 'low'"):
        import_dataset("long", [place], strict=True)


def test_a_price_list_that_names_budgets_keeps_them(tmp_path: Path) -> None:
    (tmp_path / "prices.csv").write_text(
        "target,usd_per_million_input_tokens,usd_per_million_output_tokens\nm:4096,1,2\nm:low,1,2\n"
    )
    dataset, _ = import_dataset("long", [table(tmp_path)], prices=tmp_path / "prices.csv")
    assert [t.effort for t in dataset.pool] == ["low", "4096", None]
    assert dataset.pool["m:4096"].input_price == 1


def test_a_table_of_one_model_at_several_efforts_is_guessed(tmp_path: Path) -> None:
    rows = [f"question {i},m,{e},{i % 2}" for i in range(30) for e in ("low", "4096")]
    place = tmp_path / "one.csv"
    place.write_text("\n".join(["prompt,model,effort,correct", *rows]))
    guess = guess_source([place])
    assert guess.columns.effort == "effort"
    assert guess.columns.repeats is None


def test_an_unknown_effort_is_malformed(tmp_path: Path) -> None:
    place = table(tmp_path)
    place.write_text(place.read_text().replace("4096", "lots"))
    with pytest.raises(FormatError, match="reasoning_effort is 'lots'; an effort is one of none"):
        import_dataset("long", [place], strict=True)
