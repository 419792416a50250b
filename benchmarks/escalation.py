"""Whether going to a stronger target pays, once tools fail, on the tiny pool.

    python -m benchmarks.escalation [--tasks 400]

A made-up agent asks a target for the answer to a question of the tiny pool, at temperature 0.7, and
runs a tool that compares it with the right one. As long as the tool fails it asks again, up to
eight times. The gateway's own code decides about each request, with the router that comes with the
tiny pool, and with the questions that this wasn't fitted on. Every setting sees the same answers: a
target's n-th answer to a question is drawn once.

The tiny models read the question alone, and not what the tool said. So a further try is a new draw,
and what is measured is whether another target solves what one has failed at.
"""

import argparse
import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

import prefill_router_minipool
from benchmarks._system import machine
from prefill_router import Router, files
from prefill_router.endpoints import Usage, cost_of
from prefill_router.progress import SilentProgress
from prefill_router.router import Forecast, LightRouter, read_light
from prefill_router_gateway.decide import Budgets, Decider, Sessions
from prefill_router_gateway.records import AgentRequest, RequestOutcome, RoutingRequest
from prefill_router_gateway.settings import GatewaySettings
from prefill_router_minipool import MiniTask, folder_of, make_tasks
from prefill_router_minipool.server.engine import LocalModel
from prefill_router_minipool.server.generation import Job, Sampling

RESULT = Path(__file__).parent / "results" / "escalation.json"
ROUTER = Path(prefill_router_minipool.__file__).parent / "router"
MODES = ("off", "on")
LAMS = (0.05, 0.1, 0.2, 0.3, 0.5, 0.7, 0.9, 1.0)
STEPS = 8
TOOL_TOKENS = 20
"""Tokens of the tool's call and result that each further request has."""
TEMPERATURE = 0.7
DRAWS = 2000


@dataclass(frozen=True, eq=False)
class Answers:
    """The drawn answers to all questions.

    Attributes:
        right: Whether each is right.
        tokens: Output tokens of each.
        prompt: Input tokens of each question.
    """

    right: np.ndarray
    tokens: np.ndarray
    prompt: np.ndarray


def draw(tasks: Sequence[MiniTask], names: Sequence[str]) -> Answers:
    """Let every target answer every question `STEPS` times."""
    shape = (len(tasks), len(names), STEPS)
    right, tokens = np.zeros(shape, dtype=bool), np.zeros(shape)
    prompt = np.zeros((len(tasks), len(names)))
    for k, name in enumerate(names):
        model = LocalModel(folder_of(name))
        jobs: dict[int, tuple[int, int]] = {}
        texts: dict[int, str] = {}
        queue = []
        for i, task in enumerate(tasks):
            chat = model.read_chat([("user", task.prompt)])
            prompt[i, k] = chat.tokens
            for n in range(STEPS):
                sampling = Sampling(temperature=TEMPERATURE, seed=STEPS * i + n)
                job = Job(prompt=chat, max_tokens=24, sampling=sampling)
                queue.append(job)
                jobs[id(job)], texts[id(job)] = (i, n), ""
        for step in model.generate(queue):
            for job, piece, ended in step:
                texts[id(job)] += job.add(piece, ended=ended)[0]
        for job in queue:
            i, n = jobs[id(job)]
            right[i, k, n] = texts[id(job)].strip() == tasks[i].answer
            tokens[i, k, n] = job.generated
        print(f"{name}: {right[:, k].mean():.3f} right", flush=True)
    return Answers(right, tokens, prompt)


def work(
    router: LightRouter, forecasts: Sequence[Forecast], answers: Answers, lam: float, mode: str
) -> dict[str, np.ndarray]:
    """Whether each task is solved, what it cost in US dollars, and whether it was escalated."""
    read = GatewaySettings.model_validate({"routing": {"lam": lam}, "agents": {"escalation": mode}})
    decider = Decider(
        router,
        read,
        sessions=Sessions(read.sessions),
        budgets=Budgets(),
        breaker_open=lambda _: False,
    )
    rows = [_work_on(decider, router, f, answers, i) for i, f in enumerate(forecasts)]
    solved, cost, escalated = zip(*rows, strict=True)
    return {"solved": np.array(solved), "cost": np.array(cost), "escalated": np.array(escalated)}


def _work_on(
    decider: Decider, router: LightRouter, forecast: Forecast, answers: Answers, i: int
) -> tuple[bool, float, bool]:
    names = router.pool.names
    tried = dict.fromkeys(names, 0)
    cost, escalated, more = 0.0, False, 0.0
    for step in range(STEPS):
        agent = AgentRequest(agent="codex", is_ongoing=step > 0, failing_steps=step)
        question = RoutingRequest(
            endpoint="chat", at=1e9 + 60.0 * i + step, session=f"{i:032x}", agent=agent
        )
        decision = decider.decide(question, forecast)
        escalated |= decision.reason == "escalation"
        k, n = names.index(decision.target), tried[decision.target]
        tried[decision.target] += 1
        usage = Usage(
            input_tokens=int(answers.prompt[i, k] + more),
            output_tokens=int(answers.tokens[i, k, n]),
        )
        more += answers.tokens[i, k, n] + TOOL_TOKENS
        cost += cost_of(usage, router.pool[decision.target]) or 0.0
        outcome = RequestOutcome(
            kind="answered", target=decision.target, status=200, attempts=(), usage=usage
        )
        decider.record_outcome(decision, outcome, cost=None, at=question.at)
        if answers.right[i, k, n]:
            return True, cost, escalated
    return False, cost, escalated


def compare(runs: dict[tuple[str, float], dict[str, np.ndarray]]) -> list[dict[str, Any]]:
    """For each lam, what escalation changed, with intervals over the tasks (95 %)."""
    random, rows = np.random.default_rng(0), []
    for lam in LAMS:
        off, on = runs["off", lam], runs["on", lam]
        count = len(off["solved"])
        resamples = random.integers(count, size=(DRAWS, count))
        gain = on["solved"].astype(float) - off["solved"]
        dollars = on["cost"][resamples].sum(axis=1) / off["cost"][resamples].sum(axis=1)
        rows.append(
            {
                "lam": lam,
                "solved": {mode: float(runs[mode, lam]["solved"].mean()) for mode in MODES},
                "dollars": {mode: float(runs[mode, lam]["cost"].sum()) for mode in MODES},
                "escalated": float(on["escalated"].mean()),
                "gain": float(gain.mean()),
                "gain_interval": np.quantile(gain[resamples].mean(axis=1), (0.025, 0.975)).tolist(),
                "cost_ratio": float(on["cost"].sum() / off["cost"].sum()),
                "cost_interval": np.quantile(dollars, (0.025, 0.975)).tolist(),
            }
        )
    return rows


def main() -> None:
    """Draw the answers, work on the tasks at every setting, and write the figures."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tasks", type=int, default=400)
    arguments = parser.parse_args()
    router = Router.load(ROUTER)
    seen = set(json.loads((ROUTER / "split.json").read_bytes())["parts"]["train"])
    tasks = [t for t in make_tasks(2 * arguments.tasks, seed=36) if t.id not in seen][
        : arguments.tasks
    ]
    answers = draw(tasks, router.pool.names)
    found = router.forecast_many([t.prompt for t in tasks], progress=SilentProgress())
    forecasts = [replace(forecast, novelty=None) for forecast in found]
    runs = {
        (mode, lam): work(read_light(ROUTER), forecasts, answers, lam, mode)
        for lam in LAMS
        for mode in MODES
    }
    rows = compare(runs)
    for row in rows:
        print(row, flush=True)
    files.write_json(RESULT, {"machine": machine(), "arguments": vars(arguments), "rows": rows})


if __name__ == "__main__":
    main()
