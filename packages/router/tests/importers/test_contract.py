"""What holds for every format."""

from pathlib import Path

import numpy as np
import pytest

from packages.router.tests.part_cases import check_cases
from prefill_router.data import RoutingDataset, read_dataset, write_dataset
from prefill_router.errors import ConfigError, DataError, FormatError
from prefill_router.importers import FORMATS, Columns, Imported, import_dataset

from .samples import SAMPLES, Sample
from .truth import CELLS, COSTS, LABELS, PROMPTS, VOTES, tokens


@pytest.fixture(params=SAMPLES)
def sample(request: pytest.FixtureRequest) -> Sample:
    return SAMPLES[request.param]


def import_sample(sample: Sample, sources: list[Path], *, strict: bool = False) -> Imported:
    return import_dataset(sample.format, sources, columns=sample.columns, strict=strict)


def table_of(dataset: RoutingDataset, name: str) -> dict[tuple[str, str], float]:
    """What isn't missing, by prompt and the last part of the target's name."""
    table = getattr(dataset, name)
    return {
        (str(query.prompt), target.rsplit("/", 1)[-1]): float(table[row, column])
        for row, query in enumerate(dataset.queries)
        for column, target in enumerate(dataset.pool.names)
        if not np.isnan(table[row, column])
    }


def truth(sample: Sample, values: dict[tuple[int, int], float]) -> dict[tuple[str, str], float]:
    return {(sample.prompt(PROMPTS[q]), ("alpha", "beta")[t]): v for (q, t), v in values.items()}


def test_every_format_has_a_sample() -> None:
    formats = {sample.format for sample in SAMPLES.values()}
    to = "SAMPLES in packages/router/tests/importers/samples.py"
    check_cases(FORMATS.own, formats, add="a sample", to=to, guide="formats.md")


def test_the_truth_is_read(sample: Sample, tmp_path: Path) -> None:
    dataset, report = import_sample(sample, sample.write(tmp_path), strict=True)
    assert len(dataset) == len(PROMPTS)
    labels = {c: LABELS[c[0]][c[1]] for c in CELLS} if sample.labels else {}
    if sample.votes:
        labels = {(q, t): VOTES[q][t] for q in VOTES for t in range(2)}
    assert table_of(dataset, "correct") == truth(sample, labels)
    if sample.costs:
        assert table_of(dataset, "recorded_cost") == truth(
            sample, {c: COSTS[c[0]][c[1]] for c in CELLS}
        )
    else:
        assert np.isnan(dataset.recorded_cost).all()
    if sample.tokens:
        counts = table_of(dataset, "output_tokens")
        assert truth(sample, {c: tokens(*c) for c in CELLS}).items() <= counts.items()
    else:
        assert np.isnan(dataset.output_tokens).all()
    assert (report.rows_read, report.rows_kept) == (sample.rows, sample.rows)
    assert (report.malformed, report.duplicates, report.problems) == (0, 0, ())
    assert not report.files_skipped
    assert all("has no label at all" in note for note in report.notes)
    assert len(report.notes) == (0 if sample.labels else 2)


def test_what_is_imported_can_be_written_and_read(sample: Sample, tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    dataset, _ = import_sample(sample, sample.write(tmp_path / "in"))
    write_dataset(dataset, tmp_path / "out")
    again = read_dataset(tmp_path / "out")
    assert again.fingerprint == dataset.fingerprint
    assert [q.benchmark for q in again.queries] == [q.benchmark for q in dataset.queries]
    assert np.array_equal(again.recorded_cost, dataset.recorded_cost, equal_nan=True)


def test_the_same_source_twice_adds_nothing(sample: Sample, tmp_path: Path) -> None:
    sources = sample.write(tmp_path)
    once, first = import_sample(sample, sources)
    twice, second = import_sample(sample, sources + sources)
    assert twice.fingerprint == once.fingerprint
    assert second.malformed == 0
    assert second.rows_kept == first.rows_kept
    assert second.duplicates == sample.rows or "older" in str(second.files_skipped)


def test_a_source_that_does_not_exist_is_an_error(sample: Sample, tmp_path: Path) -> None:
    with pytest.raises(FormatError, match="no such file or folder"):
        import_sample(sample, [tmp_path / "nowhere"])


def test_an_empty_folder_is_an_error(sample: Sample, tmp_path: Path) -> None:
    with pytest.raises(FormatError, match="holds no file whose name ends in"):
        import_sample(sample, [tmp_path])


def files_of(sources: list[Path]) -> list[Path]:
    return [
        file
        for source in sources
        for file in ([source] if source.is_file() else sorted(source.rglob("*")))
        if file.is_file()
    ]


@pytest.mark.parametrize("content", [b"", b"\0" * 50, b"{", b"\xff\xfe\x00a", b"[[[[[" * 10_000])
def test_a_file_that_is_something_else_is_named(
    sample: Sample, content: bytes, tmp_path: Path
) -> None:
    sources = sample.write(tmp_path)
    for file in files_of(sources):
        file.write_bytes(content)
    with pytest.raises(FormatError, match="holds nothing that can be imported") as error:
        import_sample(sample, sources)
    assert str(tmp_path) in str(error.value)
    with pytest.raises(DataError):
        import_sample(sample, sources, strict=True)


def test_one_broken_file_of_several_is_reported_and_the_rest_is_read(tmp_path: Path) -> None:
    for name in ("llmrouterbench tree", "mmlu_pro zip", "mmlu_pro json", "routerarena"):
        folder = tmp_path / name
        folder.mkdir()
        sources = SAMPLES[name].write(folder)
        broken = files_of(sources)[0]
        broken.write_bytes(broken.read_bytes()[:-20])
        dataset, report = import_sample(SAMPLES[name], sources)
        assert [problem.file.startswith(str(broken)) for problem in report.problems] == [True]
        assert len(dataset.pool) == 1
        assert any("only one target" in note for note in report.notes)
        with pytest.raises(FormatError):
            import_sample(SAMPLES[name], sources, strict=True)


def test_unknown_formats_and_foreign_columns_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="the formats are llmrouterbench"):
        import_dataset("routerbunch", [tmp_path])
    with pytest.raises(ConfigError, match=r"leave out \['prompt'\]"):
        import_dataset("nvidia", [tmp_path], columns=Columns(prompt="x"))
    with pytest.raises(ConfigError, match=r"leave out \['targets'\]"):
        import_dataset("long", [tmp_path], columns=Columns(targets=("x",)))
    with pytest.raises(ConfigError, match="no source"):
        import_dataset("long", [])
