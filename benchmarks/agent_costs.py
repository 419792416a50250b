"""What sessions of coding agents cost with the providers' prompt caches, by who decides.

    python -m benchmarks.agent_costs [--sessions 40]

Sessions of 5 to 60 steps, made up, and one that was recorded, with growing contexts, pauses,
subagents, titles and summaries (`_agent_sessions.py`). Each target's cache holds the prefix of a
conversation until some minutes after its last use, from 1,024 tokens on; what is read from it and
written to it is billed at list prices. Anthropic's caches what a request marks, and nothing of a
request that was translated to a chat.

Every policy gets the same probabilities of solving a task, which are the truth here. The quality of
a policy is the mean probability of the targets that worked on the tasks, each task counted once and
its steps alike. Costs are compared at equal quality: that of the gateway's own decisions at each
lam, with the cost of every other policy there, between two of its settings by a mix of both.

A switch is avoidable where the target before it had at least the same probability, and with its
warm cache would cost less for the expected number of such requests; in hindsight, where it would
have cost less for what was left of the task.
"""

import argparse
import asyncio
import logging
import os
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks._agent_sessions import SAMPLES, Step, make_sessions, recorded_session
from benchmarks._system import machine
from prefill_router import files
from prefill_router.cost import CostEstimator
from prefill_router.endpoints import Usage, cost_of
from prefill_router.policy import Lambda
from prefill_router.router import Forecast
from prefill_router.targets import Pool, Provider, Target
from prefill_router_gateway.decide import Budgets, Decider, Sessions
from prefill_router_gateway.records import AgentRequest, RequestOutcome
from prefill_router_gateway.settings import GatewaySettings

RESULT = Path(__file__).parent / "results" / "agent_costs.json"
LAMS = (0.0, 0.02, 0.05, 0.08, 0.1, 0.13, 0.16, 0.2, 0.25, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0)
REQUESTS = GatewaySettings().agents.requests
TRIED = (1.0, 2.0, 4.0, 8.0, 16.0, 32.0)
"""Expected numbers of requests for an ask that are tried; `REQUESTS` is the default."""
ALLOWED = 1.02
"""The most that the gateway may cost, as a share of the best of the others at equal quality."""
_LEAST_CACHED = 1024
_ANSWER_SECONDS = 2.0
_OUTPUT = 280
_PRICES = {
    "gpt-5-mini": ("openai", 0.25, 2.0, 0.025, None, None),
    "claude-haiku-4-5": ("anthropic", 1.0, 5.0, 0.1, 1.25, 2.0),
    "gpt-5.1-codex": ("openai", 1.25, 10.0, 0.125, None, None),
    "claude-sonnet-4-6": ("anthropic", 3.0, 15.0, 0.3, 3.75, 6.0),
    "gpt-5.6": ("openai", 4.0, 20.0, 0.4, 5.0, None),
    "claude-opus-5": ("anthropic", 5.0, 25.0, 0.5, 6.25, 10.0),
}
"""Provider, and dollars per million tokens: input, output, read from the cache, written to it for
minutes and for an hour. They are those of LiteLLM 1.110.2's list."""
SKILL = np.array([0.35, 0.45, 0.6, 0.7, 0.82, 0.9])
"""How hard a task each target solves in half of the cases."""
TIERS = ("gpt-5-mini", "gpt-5.1-codex", "claude-sonnet-4-6", "claude-opus-5")
"""The targets of LiteLLM's four tiers, the simplest first."""


def pool() -> Pool:
    """The targets at list prices."""
    places = {
        name: Provider(name=name, base_url=f"https://{name}.test/v1", dialect=name)
        for name in ("openai", "anthropic")
    }
    names = (
        "input_price",
        "output_price",
        "cached_input_price",
        "cache_write_price",
        "cache_write_hour_price",
    )
    targets = []
    for name, (provider, *prices) in _PRICES.items():
        fields: dict[str, Any] = dict(zip(names, prices, strict=True))
        fields["accepts"] = ("tools", "images", "files")
        targets.append(Target(name=name, provider=provider, **fields))
    return Pool(tuple(targets), providers=tuple(places.values()))


@dataclass
class Router:
    """What a decider needs of a router."""

    pool: Pool
    costs: CostEstimator
    policy: Lambda = field(default_factory=Lambda)
    reference_accuracy: Any = None
    fingerprint: str = "0123456789abcdef"


def make_router(of: Pool) -> Router:
    """A router of these targets, whose answers have some length."""
    ones = np.ones(len(of))
    return Router(
        of,
        CostEstimator(
            of,
            median_output=_OUTPUT * ones,
            token_ratio=ones,
            least_input=200 * ones,
            most_input=60_000 * ones,
            fixed=np.nan * ones,
        ),
    )


class Caches:
    """The providers' caches, by target and conversation: tokens, and when they expire."""

    def __init__(self) -> None:
        self._entries: dict[tuple[str, str], tuple[int, float]] = {}

    def copy(self) -> "Caches":
        """The same caches, to try what a request would cost."""
        other = Caches()
        other._entries = dict(self._entries)
        return other

    def bill(self, step: Step, target: Target) -> float:
        """What a request costs at a target, in US dollars; its cache holds it from then on."""
        question = step.question
        is_native = target.provider == "anthropic" and question.endpoint == "messages"
        mark = question.cache_mark if is_native else None
        caches = target.provider == "openai" or mark is not None
        place, at = (target.name, step.thread), question.at
        tokens, expires = self._entries.get(place, (0, 0.0))
        read = min(tokens, step.tokens) if caches and at <= expires else 0
        written = step.tokens - read if caches and step.tokens >= _LEAST_CACHED else 0
        if read + written >= _LEAST_CACHED:
            seconds = 3600.0 if mark == "hour" else 300.0
            self._entries[place] = (read + written, at + _ANSWER_SECONDS + seconds)
        usage = Usage(
            input_tokens=step.tokens,
            cached_tokens=read,
            output_tokens=step.output_tokens,
            cache_written_tokens=0 if target.cache_write_price is None else written,
            cache_written_hour_tokens=written if mark == "hour" else 0,
        )
        return cost_of(usage, target) or 0.0


Choose = Callable[[Step], str]
"""Returns the target of a request."""


class Gateway:
    """The gateway's own decisions.

    Args:
        of: The router.
        lam: The trade-off.
        remembers: Whether conversations keep their target.
        requests: How many requests an agent is expected to send for an ask.
    """

    def __init__(
        self, of: Router, lam: float, *, remembers: bool = True, requests: float = REQUESTS
    ) -> None:
        self._remembers, self._requests = remembers, requests
        read = GatewaySettings.model_validate({"routing": {"lam": lam}})
        self._decider = Decider(
            of,
            read,
            sessions=Sessions(read.sessions),
            budgets=Budgets(),
            breaker_open=lambda _: False,
        )

    def choose(self, step: Step) -> str:
        """The target of a request, which then answers it."""
        question = step.question
        if not self._remembers:
            question = replace(question, session=None, in_tool_loop=False, tool_call_ids=())
            question = replace(question, agent=AgentRequest())
        if question.agent.expected_requests > 1:
            agent = replace(question.agent, expected_requests=self._requests)
            question = replace(question, agent=agent)
        forecast = Forecast(step.correctness, -(-question.scored_bytes // 4), False, None)
        decision = self._decider.decide(question, forecast)
        outcome = RequestOutcome(
            kind="answered",
            target=decision.target,
            status=200,
            attempts=(),
            usage=Usage(input_tokens=step.tokens, output_tokens=step.output_tokens),
            tool_calls=() if step.call is None else (step.call,),
        )
        moves = question.agent.kind != "compaction"
        at = question.at + _ANSWER_SECONDS
        self._decider.record_outcome(decision, outcome, cost=None, at=at, moves=moves)
        return decision.target


class PerTask:
    """A choice that is kept for the task; each task is decided without memory."""

    def __init__(self, of: Router, lam: float) -> None:
        self._each = Gateway(of, lam, remembers=False)
        self._chosen: dict[int, str] = {}

    def choose(self, step: Step) -> str:
        """The target of a request's task."""
        if step.task not in self._chosen:
            self._chosen[step.task] = self._each.choose(step)
        return self._chosen[step.task]


class LiteLLM:
    """LiteLLM's auto-router by complexity, in this process; it calls no model.

    Args:
        once: Whether it decides once for what a person asks.
    """

    def __init__(self, *, once: bool) -> None:
        os.environ["LITELLM_LOCAL_MODEL_COST_MAP"] = "True"
        import litellm  # which not everyone has

        logging.disable(logging.CRITICAL)
        tiers = dict(zip(("SIMPLE", "MEDIUM", "COMPLEX", "REASONING"), TIERS, strict=True))
        how = {"classification_mode": "user_turn"} if once else {}
        config = {"tiers": tiers, **how}
        parameters = {"model": "auto_router/complexity_router", "complexity_router_config": config}
        own = [
            {
                "model_name": "auto",
                "litellm_params": {**parameters, "complexity_router_default_model": TIERS[1]},
            }
        ]
        models = [
            {"model_name": name, "litellm_params": {"model": f"openai/{name}", "api_key": "none"}}
            for name in TIERS
        ]
        self._router = litellm.Router(model_list=[*models, *own])
        self._loop = asyncio.new_event_loop()

    def choose(self, step: Step) -> str:
        """The target of a request."""
        session = step.question.session
        arguments: dict[str, Any] = {"metadata": {"session_id": session}} if session else {}
        hook = self._router.async_pre_routing_hook(
            model="auto", request_kwargs=arguments, messages=_chats(step)
        )
        deployment: Any = self._loop.run_until_complete(hook)
        return str(deployment.model)


def _chats(step: Step) -> list[dict[str, Any]]:
    """The turns as chats, whose shape LiteLLM's router reads for any client."""
    turns = []
    for item in step.messages:
        content = item.get("content")
        if "call_id" in item and item["type"] == "function_call":
            call = {"name": "shell", "arguments": item["arguments"]}
            calls = [{"id": item["call_id"], "type": "function", "function": call}]
            turns.append({"role": "assistant", "content": None, "tool_calls": calls})
        elif "call_id" in item:
            turns.append(
                {"role": "tool", "tool_call_id": item["call_id"], "content": item["output"]}
            )
        elif isinstance(content, list):
            parts = [{**p, "type": "text"} if p["type"].endswith("_text") else p for p in content]
            turns.append({"role": item["role"], "content": parts})
        else:
            turns.append(dict(item))
    return turns


@dataclass(frozen=True, kw_only=True)
class Run:
    """What sessions cost at one setting.

    Attributes:
        quality: The mean probability of the targets that worked on the tasks.
        dollars: The cost of all sessions.
        switches: How often a conversation changed its target.
        avoidable: Switches that were avoidable.
        in_hindsight: Those that were so in hindsight.
        wasted: What these cost more, in US dollars.
    """

    quality: float
    dollars: float
    switches: int
    avoidable: int
    in_hindsight: int
    wasted: float


def run(sessions: Sequence[Sequence[Step]], choose: Choose, of: Pool) -> Run:
    """Send the sessions' requests where a policy says."""
    p: dict[int, list[float]] = {}
    dollars, switches, avoidable, more = 0.0, 0, 0, list[float]()
    for session in sessions:
        caches, last = Caches(), dict[str, str]()
        for at, step in enumerate(session):
            name = choose(step)
            before = last.get(step.thread)
            if before is not None and before != name and step.is_task:
                switches += 1
                expected = [replace(step, output_tokens=_OUTPUT)] * round(REQUESTS)
                avoidable += _extra(expected, before, name, caches, of) > 0
                left = [other for other in session[at:] if other.task == step.task]
                more.append(_extra(left, before, name, caches, of))
            dollars += caches.bill(step, of[name])
            if step.is_task:
                last[step.thread] = name
                p.setdefault(step.task, []).append(step.correctness[of.names.index(name)])
    quality = float(np.mean([np.mean(each) for each in p.values()]))
    return Run(
        quality=quality,
        dollars=dollars,
        switches=switches,
        avoidable=avoidable,
        in_hindsight=sum(extra > 0 for extra in more),
        wasted=sum(more),
    )


def _extra(steps: Sequence[Step], before: str, after: str, caches: Caches, of: Pool) -> float:
    """The dollars by which a task's steps cost more after a switch without a gain; or 0."""
    old, new = (steps[0].correctness[of.names.index(name)] for name in (before, after))
    if new > old:
        return 0.0
    stays, moves = (
        sum(tried.bill(step, of[name]) for step in steps)
        for name, tried in ((before, caches.copy()), (after, caches.copy()))
    )
    return max(0.0, moves - stays)


def cost_at(quality: float, runs: Sequence[Run]) -> float:
    """The least cost of a quality by a mix of two settings; infinite where none has it."""
    best = min((r.dollars for r in runs if r.quality >= quality), default=np.inf)
    for low in runs:
        for high in runs:
            if low.quality < quality < high.quality:
                share = (quality - low.quality) / (high.quality - low.quality)
                best = min(best, low.dollars + share * (high.dollars - low.dollars))
    return float(best)


def litellm_runs(sessions: Sequence[Sequence[Step]], of: Pool) -> dict[str, list[Run]]:
    """LiteLLM's decisions, for each request and for each ask; none where it can't run here."""
    runs = {}
    for name, once in (("LiteLLM, each request", False), ("LiteLLM, each ask", True)):
        try:
            runs[name] = [run(sessions, LiteLLM(once=once).choose, of)]
        except ImportError as error:
            print(f"{name}: not run, {error}")
    return runs


def compare(sessions: Sequence[Sequence[Step]], of: Pool) -> dict[str, Any]:
    """The figures of every policy on these sessions."""
    router = make_router(of)
    ours = [run(sessions, Gateway(router, lam).choose, of) for lam in LAMS]
    others = {
        "a fixed target": [run(sessions, lambda _, name=name: name, of) for name in of.names],  # type: ignore[misc]
        "each request, without memory": [
            run(sessions, Gateway(router, lam, remembers=False).choose, of) for lam in LAMS
        ],
        "each task, without memory": [
            run(sessions, PerTask(router, lam).choose, of) for lam in LAMS
        ],
        **litellm_runs(sessions, of),
    }
    rows = []
    for lam, own in zip(LAMS, ours, strict=True):
        there = {name: cost_at(own.quality, runs) for name, runs in others.items()}
        best = min(there, key=lambda name: there[name])
        share = own.dollars / there[best]
        known = {name: value if np.isfinite(value) else None for name, value in there.items()}
        rows.append({"lam": lam, **vars(own), "at_equal_quality": known, "of_the_best": share})
        costs = ", ".join(f"{name} {value:.2f}" for name, value in there.items())
        print(f"lam {lam:.2f}: {own}; {costs}; {share:.3f} of the best", flush=True)
    return {
        "ours": rows,
        "by_expected_requests": {n: _most(sessions, router, n, others) for n in TRIED},
        "others": {name: [vars(each) for each in runs] for name, runs in others.items()},
    }


def _most(
    sessions: Sequence[Sequence[Step]],
    router: Router,
    requests: float,
    others: dict[str, list[Run]],
) -> float:
    """The most that the gateway costs as a share of the best of the others, over all lam."""
    runs = [
        run(sessions, Gateway(router, lam, requests=requests).choose, router.pool) for lam in LAMS
    ]
    best = [min(cost_at(own.quality, other) for other in others.values()) for own in runs]
    return max(own.dollars / least for own, least in zip(runs, best, strict=True))


def main() -> int:
    """Run, write the figures, and fail where the gateway costs too much."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sessions", type=int, default=40)
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    of = pool()
    sessions = make_sessions(of, SKILL, count=arguments.sessions, seed=arguments.seed)
    if SAMPLES.is_dir():
        sessions.append(recorded_session(of, SKILL, seed=arguments.seed))
    print(f"{len(sessions)} sessions, {sum(map(len, sessions))} requests")
    comparison = compare(sessions, of)
    shares = [row["of_the_best"] for row in comparison["ours"] if np.isfinite(row["of_the_best"])]
    avoidable = sum(row["avoidable"] for row in comparison["ours"])
    within = max(shares) <= ALLOWED and not avoidable
    counts = {"requests": sum(map(len, sessions)), "sessions": len(sessions)}
    figures = {"machine": machine(), "arguments": vars(arguments), **counts, **comparison}
    files.write_json(RESULT, {**figures, "most_of_the_best": max(shares), "within": within})
    print(f"by the expected number of requests: {comparison['by_expected_requests']}")
    print(f"at most {max(shares):.3f} of the best others; {avoidable} avoidable switches")
    return 0 if within else 1


if __name__ == "__main__":
    sys.exit(main())
