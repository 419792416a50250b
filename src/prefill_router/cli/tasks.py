"""`prefill-router tasks`: the tasks of a benchmark or a file, as JSON Lines."""

from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from prefill_router.cli.app import app, err, out, print_json
from prefill_router.cli.options import Overwrite, replacing
from prefill_router.cli.usage import check_suffix
from prefill_router.files import check_place

if TYPE_CHECKING:
    from prefill_router.harness.records import Task

BENCHMARKS = {
    "mmlu_pro": "MMLU-Pro, multiple choice; shots=5 adds solved questions",
    "hle": "Humanity's Last Exam, the questions without images",
    "livecodebench": "LiveCodeBench, programming; release=release_v5, from=2024-08-01, "
    "to=2025-01-01",
}
"""As the registry has them, written out so that the help needn't import it."""
_LISTING = "  \n".join(f"{name}: {summary}" for name, summary in BENCHMARKS.items())


@app.command(
    help=(
        "Write the tasks of a benchmark or of a file of your own as JSON Lines, to look at or edit."
        "\n\nSPEC is a file of questions, or one of these, whose files come from the Hugging Face "
        "hub or, with NAME=FOLDER, from a copy. Options stand after commas.\n\n"
        f"{_LISTING}\n\n"
        "Example: prefill-router tasks mmlu_pro,shots=5 --sample 500 --out tasks.jsonl"
    )
)
def tasks(
    spec: Annotated[str, typer.Argument(metavar="SPEC", help="A benchmark, or a file.")],
    to: Annotated[Path, typer.Option("--out", help="The file to write.")],
    sample: Annotated[int | None, typer.Option(help="Draw so many.")] = None,
    seed: Annotated[int, typer.Option(help="Of the draw.")] = 0,
    revision: Annotated[
        str | None, typer.Option(help="Branch, tag or commit of the hub's repository.")
    ] = None,
    overwrite: Overwrite = False,
    json: Annotated[bool, typer.Option("--json", help="Print one JSON document.")] = False,
) -> None:
    """Write the tasks of a benchmark or a file as JSON Lines."""
    from prefill_router.harness.benchmarks import LoadReport, load_tasks, sample_tasks, write_tasks

    check_suffix("--out", to, (".jsonl", ".ndjson"))
    check_place(to)
    report, kinds = LoadReport(), Counter[str]()
    found: Iterable[Task] = load_tasks(spec, revision=revision, report=report)
    with replacing(to, overwrite=overwrite) as temporary, err.status(f"reading {spec}"):
        if sample is not None:
            found = sample_tasks(found, sample, seed=seed)
        count = write_tasks(_counted(found, kinds), temporary)
    if json:
        print_json(
            {
                "out": str(to),
                "source": report.source,
                "tasks": count,
                "graders": dict(kinds),
                "skipped": dict(report.skipped),
            }
        )
        return
    graders = ", ".join(f"{number:,} {name}" for name, number in kinds.most_common())
    out.print(f"{to}: {count:,} tasks of {report.source}; graders: {graders}", soft_wrap=True)
    for reason, left_out in report.skipped.items():
        out.print(f"  {left_out:,} left out: {reason}", soft_wrap=True)


def _counted(found: Iterable["Task"], kinds: Counter[str]) -> Iterator["Task"]:
    for task in found:
        kinds[task.grader] += 1
        yield task
