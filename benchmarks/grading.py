"""Grading 100,000 recorded answers by matching, from the run on disk to the dataset on disk.

Plain is what a script does that has a benchmark's answers in one JSON file per target: load them,
find the letter in each, and write a table of the results. It keeps all in memory, knows one grader,
and has neither costs nor missing answers nor reasons. It finds the letter as we do; with MMLU-Pro's
own patterns, which search to the end of the answer from each letter in it, a sample is timed too.

    python -m benchmarks.grading [--answers 100000] [--rounds 3]
"""

import argparse
import json
import os
import random
import re
import resource
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path

import polars as pl

from benchmarks._system import machine
from prefill_router import files
from prefill_router.data import Query
from prefill_router.endpoints import Reply, Usage
from prefill_router.grading import grade_run
from prefill_router.grading.text import extract_letter
from prefill_router.runs import Answer, Task
from prefill_router.runs.run import Run
from prefill_router.targets import Pool, Target
from prefill_router_lab.collection.journal import Journal

RESULTS = Path(__file__).parent / "results"
NEEDED = 2000
POOL = Pool(tuple(Target(name=f"t{k}", input_price=1.0, output_price=2.0) for k in range(5)))
GRADERS = ("mmlu_pro", "mmlu_pro", "number", "exact", "normalised")
WORDS = (
    *("we", "first", "note", "that", "the", "sum", "over", "such", "terms", "is"),
    *("bounded", "by", "A", "and", "then", "B", "holds"),
)
PATTERNS = (
    re.compile(r"answer is \(?([A-J])\)?"),
    re.compile(r".*[aA]nswer:\s*([A-J])"),
    re.compile(r"\b([A-J])\b(?!.*\b[A-J]\b)", re.DOTALL),
)
SAMPLE = 2000


def tasks(count: int) -> Iterator[Task]:
    """Questions of all match graders."""
    for n in range(count):
        query = Query(f"q{n}", f"Question {n}: " + "what holds here? " * 20, "made", "up")
        grader = GRADERS[n % len(GRADERS)]
        yield Task(query=query, grader=grader, answer=("C",) if grader == "mmlu_pro" else ("42",))


def answers(questions: list[Task], random_: random.Random) -> Iterator[Answer]:
    """About 1,200 characters of answer and 2,400 of reasoning each."""
    for task in questions:
        for target in POOL:
            thought = " ".join(random_.choices(WORDS, k=600))
            end = random_.choice(("The answer is (C).", "Answer: D", "42", "so it is 41", "B"))
            text = f"{thought[:1200]}\n{end}"
            if task.grader in ("exact", "normalised"):
                text = end
            reply = Reply(
                text=text,
                reasoning=thought,
                finish_reason="stop",
                usage=Usage(input_tokens=120, output_tokens=800),
                seconds=random_.random(),
            )
            yield Answer(target=target.name, query_id=task.query.id, reply=reply, cost=0.001)


def record(folder: Path, count: int) -> Path:
    """The run on disk."""
    questions = list(tasks(count // len(POOL)))
    with Run.create(folder, POOL) as run, Journal(run) as journal:
        journal.add_tasks(questions)
        for answer in answers(questions, random.Random(0)):
            journal.record(answer, str)
    return folder


def export(run: Run, folder: Path) -> None:
    """The same answers as one JSON file per target."""
    right = {task.query.id: task.answer[0] for task in run.tasks()}
    folder.mkdir()
    for target in run.pool:
        answers = [
            {"id": a.query_id, "answer": right[a.query_id], "model_outputs": a.reply.text}
            for a in run.answers(targets=[target.name])
            if a.reply is not None
        ]
        (folder / f"{target.name}.json").write_text(json.dumps(answers))


def benchmarks_letter(text: str) -> str | None:
    """The letter, by the benchmark's patterns."""
    for pattern in PATTERNS:
        found = pattern.search(text)
        if found:
            return found[1]
    return None


def plainly(folder: Path, out: Path) -> None:
    """Grade them by a script."""
    rows = []
    for path in sorted(folder.glob("*.json")):
        for entry in json.loads(path.read_text()):
            found = extract_letter(entry["model_outputs"])
            rows.append((entry["id"], path.stem, float(found == entry["answer"])))
    frame = pl.DataFrame(rows, schema=["query_id", "target", "correct"], orient="row")
    frame.write_parquet(out)


def by_patterns(folder: Path) -> float:
    """Seconds per answer with the benchmark's patterns, over a sample."""
    entries = json.loads(min(folder.glob("*.json")).read_text())[:SAMPLE]
    began = time.perf_counter()
    for entry in entries:
        benchmarks_letter(entry["model_outputs"])
    return (time.perf_counter() - began) / len(entries)


def prepare(place: Path, count: int) -> None:
    """Make the run, and what the script reads of it."""
    folder = record(place / "run", count)
    with Run.open(folder) as run:
        export(run, place / "plain")


def time_call(call: Callable[[], object]) -> tuple[float, float]:
    """Seconds on the clock and of the processor."""
    began = time.perf_counter(), time.process_time()
    call()
    return time.perf_counter() - began[0], time.process_time() - began[1]


def grade(place: Path) -> None:
    """From the run to the dataset."""
    with Run.open(place / "run") as run:
        grade_run(run, place / "out")


def peak() -> int:
    """Bytes of memory at the most, so far."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def main() -> None:
    """Measure, print, and write benchmarks/results/grading.json."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--answers", type=int, default=100_000)
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    ours, plain = [], []
    with tempfile.TemporaryDirectory() as name:
        place = Path(name)
        with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as other:
            other.submit(prepare, place, options.answers).result()  # whose memory isn't counted
        size = sum(path.stat().st_size for path in (place / "run").iterdir())
        before = peak()
        ours.append(time_call(lambda: grade(place)))
        grown = peak() - before
        for _ in range(options.rounds):
            plain.append(time_call(lambda: plainly(place / "plain", place / "plain.parquet")))
            ours.append(time_call(lambda: grade(place)))
        patterns = by_patterns(place / "plain")
    (wall, busy), (script, _) = (
        map(statistics.median, zip(*t, strict=True)) for t in (ours, plain)
    )
    result = {
        "what": "grading recorded answers by matching, from run to dataset",
        "answers": options.answers,
        "run_megabytes": round(size / 1e6, 1),
        "seconds": {"ours": round(wall, 2), "plain": round(script, 2)},
        "answers_per_second": round(options.answers / wall),
        "answers_per_second_of_the_processor": round(options.answers / busy),
        "needed": NEEDED,
        "met": options.answers / wall >= NEEDED,
        "times_as_long_as_plain": round(wall / script, 2),
        "milliseconds_of_a_letter_by_the_benchmarks_patterns": round(1000 * patterns, 3),
        "memory_grown_megabytes": round(grown / 1e6, 1),
        "machine": {**machine(), "load_average": round(os.getloadavg()[0], 2)},
    }
    files.write_json(RESULTS / "grading.json", result)
    print(result)


if __name__ == "__main__":
    main()
