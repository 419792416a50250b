"""`prefill-router grade`: a run's answers become a dataset."""

from pathlib import Path
from typing import Annotated

import typer

from prefill_router.cli.app import app, err, out, print_json
from prefill_router.cli.overwrite import Overwrite
from prefill_router.cli.usage import one_of, reading_words
from prefill_router.progress import BarProgress

GRADERS = {
    "exact": "the whole answer, but for white space around it",
    "normalised": "the same without case, punctuation, articles and odd white space",
    "mmlu_pro": "the letter of a choice, found as MMLU-Pro finds it",
    "number": "the number that the answer ends on",
    "math": "equality of LaTeX and of expressions, by math-verify",
    "python": "a function of your own",
    "judge": "another language model, by the task's rubric",
    "hle": "another language model, which compares with the right answer",
    "code": "programs against tests, in a sandbox, as LiveCodeBench does",
}
"""As the registry has them, written out so that the help needn't import it."""
_LISTING = "  \n".join(f"{name}: {summary}" for name, summary in GRADERS.items())


@app.command(
    help=(
        "Grade a run's answers and write a dataset folder.\n\n"
        "Nobody is asked again, and answers are never changed.\n\n"
        f"Graders:\n\n{_LISTING}\n\n"
        "It can be interrupted at any moment; the same command goes on from there.\n\n"
        "Example: prefill-router grade runs/first --out answers"
    )
)
def grade(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="The folder that collect has made.")],
    to: Annotated[Path, typer.Option("--out", help="The dataset folder to write.")],
    judge: Annotated[
        Path | None, typer.Option(help="A pool.yaml of the one target that judges.")
    ] = None,
    soft: Annotated[
        bool, typer.Option("--soft", help="Take the judge's score from 0 to 1, not its yes or no.")
    ] = False,
    judge_samples: Annotated[
        int, typer.Option(help="Ask the judge so many times; the score is the mean.")
    ] = 1,
    judge_max_cost: Annotated[
        float | None, typer.Option(help="Dollars that judging this run may cost in all.")
    ] = None,
    judge_again: Annotated[
        bool, typer.Option("--judge-again", help="Ask again where a judge's reply can't be read.")
    ] = False,
    jobs: Annotated[int, typer.Option(help="Programs and calculations at once.")] = 2,
    interpreter: Annotated[
        Path | None,
        typer.Option("--python", help="The interpreter of the programs, with numpy say."),
    ] = None,
    skip: Annotated[
        list[str] | None, typer.Option(help="Leave this grader's answers ungraded; repeatable.")
    ] = None,
    fresh: Annotated[
        bool, typer.Option("--fresh", help="Run programs and calculations again.")
    ] = False,
    unextracted: Annotated[
        str, typer.Option(help="MMLU-Pro answers without a letter are wrong, missing or random.")
    ] = "wrong",
    grader_function: Annotated[
        str | None, typer.Option(help="For the grader python: path/to/file.py:function.")
    ] = None,
    overwrite: Overwrite = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON document.")] = False,
) -> None:
    """Grade a run's answers and write a dataset folder."""
    from prefill_router.cli.grade_summary import judge_warning, show_grading
    from prefill_router.harness.grading import Settings, grade_run
    from prefill_router.harness.grading.functions import place_and_name
    from prefill_router.harness.grading.letters import UNEXTRACTED
    from prefill_router.harness.runs.run import Run
    from prefill_router.targets import read_pool

    choice = one_of("--unextracted", unextracted, UNEXTRACTED)
    left_out = frozenset(one_of("--skip", name, tuple(GRADERS)) for name in skip or ())
    if grader_function is not None:
        with reading_words():
            place_and_name(grader_function)
    settings = Settings(
        judge=None if judge is None else read_pool(judge),
        soft=soft,
        judge_samples=judge_samples,
        judge_limit=judge_max_cost,
        judge_again=judge_again,
        jobs=jobs,
        skip=left_out,
        fresh=fresh,
        unextracted=choice,
        interpreter=interpreter,
        function=grader_function,
    )
    with Run.open(run) as opened:
        bar = BarProgress(console=err)
        report = grade_run(opened, to, settings=settings, overwrite=overwrite, progress=bar)
    if as_json:
        print_json({"out": str(to), "reused": report.reused, **report.to_dict()})
    else:
        show_grading(report, to)
        out.print(f"{to}: for more, prefill-router describe {to}", soft_wrap=True)
    if report.judge_useless:
        err.print(judge_warning(report), style="yellow", soft_wrap=True)
        raise typer.Exit(1)
