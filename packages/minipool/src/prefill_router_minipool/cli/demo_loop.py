"""`prefill-router demo --loop`: from no label and no router to a version that has taken over.

The gateway serves the tiny pool with a default target and keeps what it is asked. Rounds of `learn`
have the other targets asked and all answers judged within a budget, until a version serves. The
judge is a stand-in: it knows the truth, and errs in a tenth of the cases, which a hash chooses. At
the end the version is compared with a router that was fitted on the same requests with the true
label of every target, on questions that neither has seen.
"""

import hashlib
import json
import re
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, final

import httpx2
import numpy as np

from prefill_router import files
from prefill_router.cli.application import CommandRun, columns, err, out, print_json
from prefill_router.errors import ConfigError
from prefill_router.money import dollars, list_price
from prefill_router_minipool.cli.demo import serving_pool

if TYPE_CHECKING:
    from prefill_router.evaluation import Evaluation
    from prefill_router_minipool import MiniTask

JUDGE = "stand-in-judge"
ERRS = 0.1
"""The share of answers that the judge gets wrong."""
DEFAULT = "atlas"
"""What answers while no version serves: the best single target, and the most expensive."""
LEARNED, TRUE = "learned from traffic", "fitted on all true labels"
_JUDGE_PRICES = 0.05, 0.20  # US dollars per million tokens: made up
_WAVES = 8  # the second half of the questions; the first half comes before the first round
_CLIENTS = 16
_SECONDS = 1.0  # between the gateway's looks at the versions
_PATIENCE = 60.0  # seconds until it has a new one
_CONFIG = f"learning: {{share: 1.0, keep_texts: true}}\nrouting: {{versions_seconds: {_SECONDS}}}\n"
_ADDRESS = re.compile(r"serving at (\S+)")
_JUDGE_PROMPT = re.compile(
    r"(=== \w+) question\n\[user\]\n(.*?)\n\1 answer to grade\n(.*?)\n\1 end", re.DOTALL
)


@final
@dataclass
class StandInJudge:
    """Judges answers by the truth, and errs where a hash of question and answer says so.

    Attributes:
        truth: The right answer to each question.
        wrong: Whether the verdict on each question and answer was wrong.
    """

    truth: Mapping[str, str]
    wrong: dict[tuple[str, str], bool] = field(default_factory=dict)

    def __call__(self, prompt: str) -> str:
        """The reply to a judge's prompt."""
        match = _JUDGE_PROMPT.search(prompt)
        if match is None or match[2] not in self.truth:
            return "This isn't one of the questions."
        question, answer = match[2], match[3]
        chance = hashlib.sha256(f"{question}\n{answer}".encode()).digest()[0] / 256
        errs = self.wrong[question, answer] = chance < ERRS
        is_right = (answer.strip() == self.truth[question]) != errs
        return json.dumps({"reasoning": "", "correct": "yes" if is_right else "no"})


def run_loop(to: Path, *, questions: int, budget: float, seed: int, as_json: bool) -> None:
    """Run the loop and compare its result.

    Args:
        to: The folder for all files; it must be new or empty.
        questions: The most questions that clients send; half as many again test the result.
        budget: US dollars for side answers and judges.
        seed: Seed of the questions.
        as_json: Whether to print the verdict as JSON.

    Raises:
        ConfigError: The folder isn't empty, a command failed, or no version serves at the end.
    """
    from prefill_router_minipool import make_tasks

    began = time.monotonic()
    if to.is_dir() and any(to.iterdir()):
        raise ConfigError(f"{to} isn't empty; the loop begins with nothing, so name a new folder")
    job, tests = CommandRun(to, to / "log"), questions // 2
    tasks = make_tasks(tests + questions, seed=seed)
    judge = StandInJudge({task.prompt: task.answer for task in tasks})
    err.say(f"note: {JUDGE} knows the truth and errs in {ERRS:.0%} of cases; no real judge does")
    with serving_pool(job):
        loop = _Loop(job, tasks[tests:], budget)
        loop.run(judge)
        tasks_file = to / "tasks.jsonl"
        count = tests + loop.fitted_on
        job.do("minipool", "tasks", "--count", count, "--seed", seed, "--out", tasks_file)
        job.do("collect", "--pool", to / "pool.yaml", "--tasks", tasks_file, "--out", to / "run")
    job.do("grade", to / "run", "--out", to / "answers")
    systems = _evaluate_routers(job, loop, [task.id for task in tasks[:tests]])
    verdict = LoopVerdict(
        version=loop.version,
        questions=loop.question_count,
        fitted_on=loop.fitted_on,
        rounds=loop.rounds,
        budget=budget,
        judge_error=float(np.mean(list(judge.wrong.values()))),
        systems=systems,
        seconds=time.monotonic() - began,
    )
    files.write_json(to / "loop.json", verdict.to_dict())
    picture = verdict.draw(to / "loop")
    if as_json:
        print_json(verdict.to_dict())
        return
    verdict.show()
    out.say(f"picture: {picture}\nfigures: {to / 'loop.json'}")


class _Loop:
    """The gateway, its clients, and rounds of `learn` until a version serves.

    Attributes:
        version: The version that serves at the end.
        question_count: The number of questions that clients sent.
        fitted_on: How many of them came before the version was fitted.
        rounds: What each round printed.
    """

    def __init__(self, job: CommandRun, tasks: "Sequence[MiniTask]", budget: float) -> None:
        self._job, self._tasks, self._budget = job, tasks, budget
        self.version, self.question_count, self.fitted_on = "", 0, 0
        self.rounds: list[dict[str, Any]] = []

    @property
    def versions(self) -> Path:
        return self._job.folder / "versions"

    def run(self, judge: StandInJudge) -> None:
        from prefill_router_minipool.server import ScriptedModel, serve

        folder, addresses = self._job.folder, list[str]()
        pool, config, judges = (folder / f"{n}.yaml" for n in ("pool", "gateway", "judge"))
        receipts = f"sqlite:///{folder.absolute()}/receipts.sqlite"
        files.write_text(config, _CONFIG)
        folders = ("--versions", self.versions, "--pool", pool, "--receipts", receipts)
        gateway = ("serve", *folders, "--default", DEFAULT, "--config", config, "--port", 0)
        learner = ("learn", *folders, "--judge", judges, "--encoder", "minipool")

        def is_ready(log: Path) -> bool:
            addresses[:] = _ADDRESS.findall(log.read_text(encoding="utf-8"))
            return bool(addresses)

        with ExitStack() as stack:
            server = stack.enter_context(serve([ScriptedModel(JUDGE, judge)]))
            _write_judges(server.base_url, judges)
            stack.enter_context(self._job.serving(*gateway, is_ready=is_ready))
            client = stack.enter_context(httpx2.Client(base_url=addresses[0], timeout=60))
            sent_by_version = dict[str, int]()
            for wave in self._split_waves():
                self._send(client, wave)
                outcome = self._job.read(*learner, "--max-cost", self._budget)[1]
                self.rounds.append(outcome)
                files.write_json(folder / "rounds.json", self.rounds)
                sent_by_version[str(outcome["version"])] = self.question_count
                self.version = self._await_version(client)
                if self.version:
                    self.fitted_on = sent_by_version[self.version]
                    return
        raise ConfigError(
            f"no version serves after {self.question_count:,} questions, with a budget of "
            f"{list_price(self._budget)}; the last round says: {self.rounds[-1]['note']}. "
            f"All rounds are in {self._job.folder / 'rounds.json'}. Give a larger --questions or "
            "--max-cost"
        )

    def _split_waves(self) -> "Iterator[Sequence[MiniTask]]":
        first = len(self._tasks) // 2
        yield self._tasks[:first]
        size = -(-first // _WAVES)
        for start in range(first, len(self._tasks), size):
            yield self._tasks[start : start + size]

    def _send(self, client: httpx2.Client, tasks: "Sequence[MiniTask]") -> None:
        def ask(task: "MiniTask") -> None:
            turn = {"role": "user", "content": task.prompt}
            body = {"model": "auto", "messages": [turn]}
            client.post("/v1/chat/completions", json=body).raise_for_status()

        with ThreadPoolExecutor(_CLIENTS) as threads:
            for _ in threads.map(ask, tasks):
                self.question_count += 1

    def _await_version(self, client: httpx2.Client) -> str:
        """The version that serves once the gateway has taken the last step; empty for none."""
        from prefill_router.router import VersionRegistry

        state = VersionRegistry.at(self.versions).state()
        candidate = state.candidate if state.stage == "share" else None
        for name in filter(None, (candidate, state.current)):
            until = time.monotonic() + _PATIENCE
            while f"version {name}" not in client.get("/ready").json()["router"]["serving"]:
                if time.monotonic() > until:
                    log = self._job.log / "serve.txt"
                    raise ConfigError(f"the gateway doesn't take version {name}; {log} says why")
                time.sleep(_SECONDS / 4)
        return state.current or ""


def _write_judges(base_url: str, path: Path) -> None:
    from prefill_router.targets import Pool, Provider, RequestOptions, Target, write_pool

    provider = Provider(name=JUDGE, base_url=base_url, concurrency=64)
    options, (input_price, output_price) = RequestOptions(max_tokens=64), _JUDGE_PRICES
    judge = Target(
        name=JUDGE,
        provider=JUDGE,
        input_price=input_price,
        output_price=output_price,
        request=options,
    )
    write_pool(Pool((judge,), providers=(provider,)), path)


def _evaluate_routers(
    job: CommandRun, loop: _Loop, tests: Sequence[str]
) -> "dict[str, Evaluation]":
    """The version, and the router of all true labels, each on the test questions."""
    from prefill_router.activations import ActivationStore
    from prefill_router.data import read_dataset, save_split, split_by_time
    from prefill_router.evaluation import evaluate
    from prefill_router.router import Router, VersionRegistry

    folder = job.folder
    states, split, reference = folder / "states", folder / "split.json", folder / "router-true"
    job.do("encode", folder / "answers", "--encoder", "minipool", "--out", states)
    answers, store = read_dataset(folder / "answers"), ActivationStore.open(states)
    traffic = answers.select([name for name in answers.query_ids if name not in tests])
    save_split(split_by_time(traffic), split)
    fit = ("fit", folder / "answers", "--store", states, "--split", split, "--effort", "quick")
    job.do(*fit, "--no-verdict", "--out", reference)
    test, systems = answers.select(tests), {}
    version_folder = VersionRegistry.at(loop.versions).router(loop.version)
    for name, place in ((LEARNED, version_folder), (TRUE, reference)):
        router = Router.load(place)
        predictions = router.predict(test, stores=[store])
        systems[name] = evaluate(predictions, test, chosen=router.record.chosen)
    return systems


@final
@dataclass(frozen=True, kw_only=True, eq=False)
class LoopVerdict:
    """The loop's result, on questions that nothing was fitted on.

    Attributes:
        version: The version that serves.
        questions: The number of questions that clients sent.
        fitted_on: How many of them came before the version was fitted.
        rounds: What each round of `learn` printed.
        budget: US dollars that could be spent.
        judge_error: The share of the judge's verdicts that were wrong.
        systems: The evaluations of the version, and of the router of all true labels.
        seconds: The duration of everything.
    """

    version: str
    questions: int
    fitted_on: int
    rounds: Sequence[Mapping[str, Any]]
    budget: float
    judge_error: float
    systems: Mapping[str, "Evaluation"]
    seconds: float

    @property
    def spent(self) -> float:
        """US dollars that the learner spent."""
        return float(sum(outcome["labelling"]["spent"] for outcome in self.rounds))

    def at_equal_cost(self) -> dict[str, float]:
        """Mean cost of the version at its own lam, and accuracies at that cost.

        `share_of_gain` is how much of the gain over the best fixed mix of targets, which is chosen
        on the test questions themselves, the version has of that of the other router.
        """
        learned, true = self.systems[LEARNED], self.systems[TRUE]
        cost = learned.headline["chosen_cost"].value
        accuracy = learned.headline["chosen_accuracy"].value
        order = np.argsort(true.curve.mean_cost, kind="stable")
        best = float(np.interp(cost, true.curve.mean_cost[order], true.curve.accuracy[order]))
        corners = np.array([(point.mean_cost, point.accuracy) for point in learned.mix])
        mix = float(np.interp(cost, corners[:, 0], corners[:, 1]))
        return {
            "cost": cost,
            "learned": accuracy,
            "true_labels": best,
            "best_mix": mix,
            "share_of_gain": (accuracy - mix) / (best - mix),
        }

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON."""
        plain = {name: value for name, value in vars(self).items() if name != "systems"}
        plain["purse"] = plain.pop("budget")
        systems = {name: evaluation.to_dict() for name, evaluation in self.systems.items()}
        return {**plain, "spent": self.spent, **self.at_equal_cost(), "systems": systems}

    def draw(self, path: Path) -> Path:
        """Draw both routers in the accuracy-cost plane, with the CSV beside; the figure's path."""
        from prefill_router.reporting import write_side_by_side

        return write_side_by_side(self.systems, path, title="Learned from traffic, tiny pool")[0]

    def show(self) -> None:
        """Print the table and what it says."""
        figures, learned = self.at_equal_cost(), self.systems[LEARNED]
        table = columns(f"{learned.queries:,} test questions", "accuracy", "$ per 1,000")
        rows = {
            name: (v["accuracy"].value, v["mean_cost"].value)
            for name, v in learned.per_target.items()
        }
        rows["best fixed mix"] = figures["best_mix"], figures["cost"]
        rows[f"{LEARNED}, no label given"] = figures["learned"], figures["cost"]
        rows[TRUE] = figures["true_labels"], figures["cost"]
        for name, (accuracy, cost) in rows.items():
            table.add_row(name, f"{accuracy:.1%}", f"{cost * 1000:.5f}")
        out.print(table)
        first = next(outcome for outcome in self.rounds if outcome["version"] == self.version)
        out.say(f"version {self.version}: {first['word']}; {first['verdict']}")
        out.say(
            f"It serves after {self.questions:,} questions, {len(self.rounds)} rounds and "
            f"{self.seconds:.0f} s, with {figures['share_of_gain']:.0%} of the gain of true labels "
            f"over the best fixed mix at equal cost. The judge erred in {self.judge_error:.1%} of "
            f"cases. Spent: {dollars(self.spent)} of a budget of {list_price(self.budget)}."
        )
