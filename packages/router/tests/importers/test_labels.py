"""What a user's own table means: words, scores on a scale, targets that are guessed."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

from packages.router.tests.commands import check_refused, run_ok
from prefill_router.data import read_dataset
from prefill_router.errors import ConfigError, FormatError
from prefill_router.importers import Columns, Imported, Scale, import_dataset

from .truth import write_csv, write_jsonl, write_parquet

TARGETS = ("a", "b")


def score_rows(scores: Sequence[object]) -> list[dict[str, object]]:
    """A row per score, for two targets in turn."""
    return [
        {"prompt": f"{n // 2}?", "target": TARGETS[n % 2], "correct": score}
        for n, score in enumerate(scores)
    ]


def labels(path: Path, scores: Sequence[object], scale: Scale | None = None) -> list[float]:
    source = write_jsonl(path / "t.jsonl", score_rows(scores))
    result = import_dataset("long", [source], columns=Columns(scale=scale), strict=True)
    return result.dataset.correct.ravel().tolist()


def test_scores_from_1_to_5_are_not_read_as_all_right(tmp_path: Path) -> None:
    scores = [1 + n % 5 for n in range(100)]
    source = write_csv(tmp_path / "t.csv", score_rows(scores))
    message = check_refused(
        "80 of 100 rows are malformed", "import", "long", source, "--out", tmp_path / "o"
    )
    for piece in ("scores go from 1 to 5", "--scale 1-5", "--threshold 4", "--skip-malformed"):
        assert piece in message
    assert not (tmp_path / "o").exists()
    run_ok("import", "long", source, "--out", tmp_path / "o", "--scale", "1-5")
    values = read_dataset(tmp_path / "o").correct.ravel()
    assert values.tolist() == [(score - 1) / 4 for score in scores]


@pytest.mark.parametrize("bad", [1, 2])
def test_one_row_in_a_hundred_may_be_malformed(bad: int, tmp_path: Path) -> None:
    rows = score_rows([*[0.5] * (100 - bad), *["?"] * bad])
    source = write_jsonl(tmp_path / "t.jsonl", rows)
    if bad > 1:
        with pytest.raises(FormatError, match="2 of 100 rows are malformed"):
            import_dataset("long", [source])
    report = import_dataset("long", [source], skip_malformed=bad > 1).report
    assert (report.malformed, report.rows_kept) == (bad, 100 - bad)


def test_every_row_outside_the_scale_is_told_with_the_scale(tmp_path: Path) -> None:
    source = write_jsonl(tmp_path / "t.jsonl", score_rows([2, 10]))
    with pytest.raises(FormatError, match=r"holds nothing .* --scale 2-10"):
        import_dataset("long", [source])
    with pytest.raises(FormatError, match=r":1: correct is 2; .* --scale"):
        import_dataset("long", [source], strict=True)


def test_formats_of_others_are_offered_no_scale(tmp_path: Path) -> None:
    rows = [{"question": f"{n}", "model": "m", "isCorrect": n} for n in range(9)]
    with pytest.raises(FormatError, match="malformed") as error:
        import_dataset("nvidia", [write_csv(tmp_path / "t.csv", rows)])
    assert "--scale" not in str(error.value)


def test_strict_and_skip_malformed_contradict_each_other(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="contradict each other"):
        import_dataset("long", [tmp_path], strict=True, skip_malformed=True)


@pytest.mark.parametrize(
    ("right", "wrong"),
    [("yes", "no"), ("pass", "fail"), ("true", "false"), (" PASSED", "Failed "), (True, False)],
)
def test_words_are_labels_on_every_scale(right: object, wrong: object, tmp_path: Path) -> None:
    for scale in (None, Scale(ends=(1, 5)), Scale(threshold=3), Scale(ends=(6, 1), threshold=2)):
        assert labels(tmp_path, [right, wrong, wrong, right], scale) == [1, 0, 0, 1]


@pytest.mark.parametrize(
    ("text", "threshold", "scores", "expected"),
    [
        ("1-5", None, [1, 2, 5, 3], [0, 0.25, 1, 0.5]),
        ("0-100", None, [50, 100, 0, 1], [0.5, 1, 0, 0.01]),
        ("-1:1", None, [-1, 0, 1, 0.5], [0, 0.5, 1, 0.75]),
        ("6-1", None, [1, 6, 3.5, 2], [1, 0, 0.5, 0.8]),
        ("6-1", 2, [1, 2, 2.5, 6], [1, 1, 0, 0]),
        ("1-5", 4, [3.9, 4, 5, 1], [0, 1, 1, 0]),
        (None, 4, [3.9, 4, 500, -3], [0, 1, 1, 0]),
        (None, 0.5, [0.5, 0.4, 1, 0], [1, 0, 1, 0]),
    ],
)
def test_scales(
    text: str | None,
    threshold: float | None,
    scores: list[float],
    expected: list[float],
    tmp_path: Path,
) -> None:
    assert labels(tmp_path, scores, Scale.parse(text, threshold)) == pytest.approx(expected)


def test_what_is_missing_is_missing_on_every_scale(tmp_path: Path) -> None:
    values = labels(tmp_path, [None, "", "nan", 5], Scale(threshold=4))
    assert np.isnan(values[:3]).all()
    assert values[3] == 1


@pytest.mark.parametrize(
    ("text", "threshold", "reason"),
    [
        ("1..5", None, "write its worst and best score"),
        ("5", None, "write its worst and best score"),
        ("5-5", None, "worst and best score are both 5"),
        ("1-5", 6, "the threshold 6 must be better"),
        ("1-5", 1, "the threshold 1 must be better"),
        (None, float("nan"), "finite"),
    ],
)
def test_scales_that_make_no_sense(text: str | None, threshold: float | None, reason: str) -> None:
    with pytest.raises(ConfigError, match=reason):
        Scale.parse(text, threshold)


def test_a_score_outside_the_scale_is_malformed(tmp_path: Path) -> None:
    with pytest.raises(FormatError, match="correct is 6; a score is from 1 to 5"):
        labels(tmp_path, [1, 6], Scale(ends=(5, 1)))


def test_a_column_model_names_the_targets(tmp_path: Path) -> None:
    rows = [{**row, "model": row["target"]} for row in score_rows([1, 0])]
    for row in rows:
        del row["target"]
    for path in (
        write_csv(tmp_path / "t.csv", rows),
        write_jsonl(tmp_path / "t.jsonl", rows),
        write_parquet(tmp_path / "t.parquet", rows),
    ):
        assert import_dataset("long", [path], strict=True).dataset.pool.names == TARGETS
    with pytest.raises(FormatError, match=r"lacks the columns \['target'\]"):
        import_dataset("long", [tmp_path / "t.csv"], columns=Columns(target="target"))


def test_a_column_target_goes_before_a_column_model(tmp_path: Path) -> None:
    path = write_csv(tmp_path / "t.csv", [{**row, "model": "m"} for row in score_rows([1, 0])])
    assert import_dataset("long", [path]).dataset.pool.names == TARGETS


WIDE = [
    {
        "prompt": f"{n}?",
        "query_id": n,
        "small": ("yes", "no")[n % 2],
        "large": 1,
        "small_cost": 0.1,
        "large tokens": 1,
        "notes": "x",
        "lang": 7,
        "cost": 0.5,
    }
    for n in range(4)
]


def guess_targets(path: Path, columns: Columns | None = None) -> Imported:
    return import_dataset("wide", [path], columns=columns)


def test_targets_of_a_wide_table_are_guessed_and_told(tmp_path: Path) -> None:
    for path in (
        write_csv(tmp_path / "t.csv", WIDE),
        write_jsonl(tmp_path / "t.jsonl", WIDE),
        write_parquet(tmp_path / "t.parquet", WIDE),
    ):
        dataset, report = guess_targets(path)
        assert dataset.pool.names == ("small", "large")
        assert any("small, large; name others" in note for note in report.notes)
        assert dataset.correct[:, 0].tolist() == [1, 0, 1, 0]
    output = run_ok("import", "wide", tmp_path / "t.csv", "--out", tmp_path / "out")
    assert "used as the targets, since they hold labels: small, large" in output


def test_guessed_targets_follow_the_template_of_labels_and_the_scale(tmp_path: Path) -> None:
    rows = [{"prompt": f"{n}?", "ok a": 4, "ok b": 1, "usd of a": 1, "c": 1} for n in range(2)]
    path = write_csv(tmp_path / "t.csv", rows)
    columns = Columns(correct="ok {target}", cost="usd of {target}", scale=Scale(threshold=3))
    with pytest.raises(FormatError, match=r"lacks the columns \['usd of b'\]"):
        guess_targets(path, columns)
    dataset, _ = guess_targets(path, Columns(correct="ok {target}", scale=Scale(threshold=3)))
    assert dataset.pool.names == TARGETS
    assert dataset.correct[0].tolist() == [1, 0]


def test_where_no_column_holds_labels_the_targets_must_be_named(tmp_path: Path) -> None:
    path = write_csv(tmp_path / "t.csv", [{"prompt": "p", "a": 3}, {"prompt": "q", "a": 1}])
    with pytest.raises(ConfigError, match=r"--target-columns a,b,c.*'a'.* --scale"):
        guess_targets(path)
    assert guess_targets(path, Columns(scale=Scale(ends=(1, 3)))).dataset.pool.names == ("a",)


@pytest.mark.parametrize(
    ("column", "value", "reason"),
    [
        ("output_tokens", 2e9, "more than 1,000,000,000"),
        ("cost", 1e6, "more than 100,000 "),
        ("cost", True, "cost is True; it must be a number"),
        ("input_tokens", "yes", "input_tokens is 'yes'; it must be a number"),
    ],
)
def test_counts_and_costs_are_no_booleans_and_not_absurd(
    column: str, value: object, reason: str, tmp_path: Path
) -> None:
    rows = [{**row, column: value} for row in score_rows([1])]
    with pytest.raises(FormatError, match=reason):
        import_dataset("long", [write_jsonl(tmp_path / "t.jsonl", rows)], strict=True)


def test_repeated_answers_are_runs_where_that_is_said(tmp_path: Path) -> None:
    labels = {("p", "a"): [1, 1, 0], ("p", "b"): [1, 1], ("q", "a"): ["", 1], ("q", "b"): [0]}
    rows = [
        {"prompt": prompt, "target": target, "correct": label, "cost": 1 + run}
        for (prompt, target), run_labels in labels.items()
        for run, label in enumerate(run_labels)
    ]
    source, to = write_csv(tmp_path / "t.csv", rows), tmp_path / "o"
    check_refused("--repeats mean averages them", "import", "long", source, "--out", to)
    run_ok("import", "long", source, "--out", to, "--repeats", "mean")
    dataset = read_dataset(to)
    assert dataset.correct == pytest.approx(np.array([[2 / 3, 1], [1, 0]]))
    assert dataset.runs is not None
    assert dataset.runs.tolist() == [[3, 2], [1, 1]]
    assert dataset.recorded_cost.tolist() == [[2, 1.5], [1.5, 1]]


def test_rows_of_a_wide_table_are_runs_too(tmp_path: Path) -> None:
    rows = [{"prompt": "p", "a": 1, "b": 0}, {"prompt": "p", "a": 0, "b": 0}]
    source = write_csv(tmp_path / "t.csv", rows)
    result = import_dataset("wide", [source], columns=Columns(repeats="mean", targets=TARGETS))
    assert result.dataset.correct.tolist() == [[0.5, 0]]
    assert "2 labels are the mean of two runs or more" in result.report.notes
    assert (result.report.rows_kept, result.report.duplicates) == (2, 0)


def test_formats_of_others_take_no_repeats(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="repeats"):
        import_dataset("nvidia", [tmp_path], columns=Columns(repeats="mean"))
