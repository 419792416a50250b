"""What coding agents write around a question does to its forecast, by how the request is read.

    python -m benchmarks.agent_reading [--fit 2000] [--questions 400]

A router with one logistic regression per target on MiniLM's states is fitted on questions of
MMLU-Pro. Then the same other questions are asked in the shapes that agents send, and each request
is read as `last_user`, as `conversation` and as `ask`. For each shape and reading: the mean AUC of
the forecasts over all targets, and their mean correlation with those of the question alone.

Then sessions of each agent are made up whose shapes vary by chance (`_agent_variants`): how many
asks are read exactly, how many first asks get the target that the ask gets alone, and how many
conversations were split or joined. At last, what reading adds for bodies of 200 kB.
"""

import argparse
import json
import time
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from sklearn.metrics import roc_auc_score

from benchmarks._agent_variants import Variant, make_variants
from benchmarks._system import machine
from prefill_router import files
from prefill_router.agents import RequestReading, load_harnesses
from prefill_router.data import Prompt, RoutingDataset, prompt_text, read_dataset
from prefill_router.features import Need
from prefill_router.fitting import FitConfig, fit_router, gather, recipe_from_dict
from prefill_router.progress import SilentProgress
from prefill_router.router import Router
from prefill_router.targets import Pool
from prefill_router_gateway.api.routed_calls import IncomingRequest, read_incoming
from prefill_router_gateway.protocol import read_envelope, scored_prompt
from prefill_router_gateway.records import Scored
from prefill_router_gateway.settings import GatewaySettings

RESULT = Path(__file__).parent / "results" / "agent_reading.json"
DATA = Path("../shared/data/mmlu_pro")
RECIPE = {
    "features": {"kind": "prefill", "select": "mean.4", "dim": 50},
    "predictor": "logistic",
}
READINGS: tuple[Scored, ...] = ("last_user", "conversation", "ask")
Shape = tuple[str, dict[str, Any], dict[str, str]]
"""An endpoint, the fields of a body, and headers."""

CLAUDE = {"user-agent": "claude-cli/2.1.332 (external, cli)", "x-claude-code-session-id": "s"}
CODEX = {"user-agent": "codex_cli_rs/0.80.0", "session-id": "t"}
RULES = "\n".join(
    f"- rule {n}: keep functions short, run the linter, write tests" for n in range(25)
)
CONTEXT = (
    f"<system-reminder>\nAs you answer, use this context:\n# claudeMd\n{RULES}\n</system-reminder>"
)
REMINDER = (
    "<system-reminder>\nThe TodoWrite tool hasn't been used recently. Consider using it if the "
    "task would benefit. Never mention this to the user.\n</system-reminder>"
)
OUTPUT = "\n".join(f"{n:6}\tdef handler_{n}(request): return respond(request)" for n in range(80))
DETAILS = "<environment_details>\n# Visible Files\n" + "src/a.py\n" * 60 + "</environment_details>"
PLACE = (
    "<environment_context>\n  <cwd>/srv/app</cwd>\n  <shell>bash</shell>\n</environment_context>"
)


def part(text: str) -> dict[str, Any]:
    """A text in a message."""
    return {"type": "text", "text": text}


def turn(role: str, *parts: Any) -> dict[str, Any]:
    """A message."""
    return {"role": role, "content": list(parts)}


def claude(*turns: dict[str, Any]) -> Shape:
    """A request of Claude Code."""
    system = [part("You are Claude Code, Anthropic's official CLI for Claude.")]
    return "messages", {"messages": list(turns), "system": system}, CLAUDE


CALL = turn("assistant", {"type": "tool_use", "id": "t", "name": "Read", "input": {}})
RESULT_PART = {"type": "tool_result", "tool_use_id": "t", "content": OUTPUT}


def plain(*texts: str) -> Shape:
    """A chat, the user's texts with answers between them."""
    turns = [
        {"role": "assistant" if n % 2 else "user", "content": text} for n, text in enumerate(texts)
    ]
    return "chat", {"messages": turns}, {}


def codex(question: str) -> Shape:
    """The first turn of Codex."""
    texts = (f"# AGENTS.md instructions for /srv/app\n\n{RULES}", PLACE, question)
    items = [{"role": "user", "content": [{"type": "input_text", "text": t}]} for t in texts]
    return "responses", {"input": items, "instructions": "You are a coding agent."}, CODEX


def copilot(question: str) -> Shape:
    """The first turn of Copilot."""
    around = (
        "<environment_info>\nLinux\n</environment_info>\n<workspace_info>\na.py\n</workspace_info>"
    )
    request = f"<context>\ntoday\n</context>\n<userRequest>\n{question}\n</userRequest>"
    turns = [{"role": "user", "content": text} for text in (around, request)]
    return "chat", {"messages": turns}, {}


SHAPES: dict[str, Callable[[str], Shape]] = {
    "alone": lambda q: plain(q),
    "after a system prompt": lambda q: (
        "chat",
        {"messages": [{"role": "system", "content": RULES}, {"role": "user", "content": q}]},
        {},
    ),
    "Claude Code, a reminder after it": lambda q: claude(turn("user", part(q), part(REMINDER))),
    "Claude Code, rules before it": lambda q: claude(turn("user", part(CONTEXT), part(q))),
    "Claude Code, after a tool's result": lambda q: claude(
        turn("user", part(CONTEXT), part(q)), CALL, turn("user", RESULT_PART)
    ),
    "Claude Code, a result with a reminder": lambda q: claude(
        turn("user", part(CONTEXT), part(q)), CALL, turn("user", RESULT_PART, part(REMINDER))
    ),
    "Codex, the first turn": codex,
    "Cline, with its environment": lambda q: (
        "chat",
        {"messages": [turn("user", part(f"<task>\n{q}\n</task>"), part(DETAILS))]},
        {},
    ),
    "Copilot, within its contexts": copilot,
    "then an answer and 'continue'": lambda q: plain(q, "Shall I go on?", "continue"),
    "then an answer and 'yes, do it'": lambda q: plain(q, "Shall I?", "yes, do it"),
}


def read_prompt(shape: Shape, scored: Scored) -> Prompt:
    """What the encoder reads of a request."""
    endpoint, fields, headers = shape
    body = json.dumps({"model": "auto", **fields}).encode()
    envelope = read_envelope(endpoint, body)  # type: ignore[arg-type]
    header_bytes = [(name.encode(), value.encode()) for name, value in headers.items()]
    prompt = scored_prompt(envelope, scored, envelope.read(header_bytes, load_harnesses()))
    if prompt is None:
        raise AssertionError("every request has a text")
    return prompt


def measure(
    router: Router, prompts: Sequence[Prompt], correct: np.ndarray, alone: np.ndarray | None
) -> tuple[dict[str, float], np.ndarray]:
    """The mean AUC of the forecasts of these prompts, and their correlation with the others'."""
    forecasts = router.predict_proba(list(prompts), progress=SilentProgress()).to_numpy()
    varied = [k for k in range(correct.shape[1]) if 0 < correct[:, k].mean() < 1]
    auc = np.mean([roc_auc_score(correct[:, k], forecasts[:, k]) for k in varied])
    same = forecasts if alone is None else alone
    with np.errstate(invalid="ignore"):
        pairs = [np.corrcoef(forecasts[:, k], same[:, k])[0, 1] for k in varied]
    return {"auc": float(auc), "correlation": float(np.mean(np.nan_to_num(pairs)))}, forecasts


def fit(data: RoutingDataset) -> Router:
    """The router of the labelled questions."""
    states = gather([Need("minilm")], data, (), progress=SilentProgress())
    config = FitConfig(recipe=recipe_from_dict(RECIPE), resamples=0)
    return fit_router(data, states, config=config).router


def read_variants(
    fitted: Callable[[], Router], pool: Pool, questions: Sequence[str], sessions: int
) -> dict[str, Any]:
    """How well the requests of made-up sessions are read, by harness.

    Args:
        fitted: Fits the router, where texts differ from the asks and so need forecasts.
        pool: Its targets.
        questions: What people ask about.
        sessions: The sessions of each harness.
    """
    counts: dict[str, Any] = {}
    conversations: dict[str, set[tuple[str, str]]] = {}
    wrong: list[str] = []
    pairs: dict[str, list[tuple[str, str]]] = {}
    for harness, session in make_variants(questions, sessions=sessions, seed=1):
        row = counts.setdefault(harness, {"requests": 0, "asks": 0, "agents": 0, "split": 0})
        names: dict[str, set[str]] = {}
        for variant in session:
            incoming, reading = read_variant(variant, pool)
            row["requests"] += 1
            row["asks"] += reading.ask == variant.ask
            row["agents"] += reading.agent == variant.agent
            wrong += [] if reading.ask == variant.ask else [f"{harness}: {reading.ask!r}"]
            if variant.conversation is not None:
                name = str(incoming.question.session)
                names.setdefault(variant.conversation, set()).add(name)
                conversations.setdefault(name, set()).add((harness, variant.conversation))
            if variant.is_first:
                text = "" if incoming.prompt is None else prompt_text(incoming.prompt)
                pairs.setdefault(harness, []).append((text, variant.ask))
        row["split"] += sum(len(each) > 1 for each in names.values())
    for harness, row in counts.items():
        row["asks"] /= row["requests"]
        row["agents"] /= row["requests"]
        row["decisions"] = same_decisions(fitted, pairs[harness])
        print(f"{harness}: {row}", flush=True)
    joined = sum(len(each) > 1 for each in conversations.values())
    print(f"joined: {joined}; the first asks that were read wrongly: {wrong[:5]}")
    return {"by harness": counts, "joined": joined}


def read_variant(variant: Variant, pool: Pool) -> tuple[IncomingRequest, RequestReading]:
    """What the gateway reads of a request."""
    body = json.dumps(variant.body).encode()
    headers = [(name.encode(), value.encode()) for name, value in variant.headers.items()]
    settings = GatewaySettings()
    incoming = read_incoming(
        variant.endpoint,
        body,
        headers,
        key=None,
        settings=settings,
        pool=pool,
        lam=None,
        at=0.0,
        to_call=False,
    )
    return incoming, read_envelope(variant.endpoint, body).read(headers, settings.agents.harnesses)


def same_decisions(fitted: Callable[[], Router], pairs: Sequence[tuple[str, str]]) -> float:
    """The share of texts that get the target of the text beside them, over five values of lam.

    Equal texts have one forecast, and so one target; the others are forecast.
    """
    others = [list(pair) for pair in pairs if pair[0] != pair[1]]
    lams = (0.1, 0.3, 0.5, 0.7, 0.9)
    routed = [fitted().route_many(pair, lam=lam) for pair in others for lam in lams]
    moved = sum(a.target != b.target for a, b in routed)
    return 1 - moved / (len(lams) * len(pairs))


def time_reading(messages: int) -> dict[str, float]:
    """What reading who asks adds for a body of 200 kB, in milliseconds: the fastest of 100 runs."""
    output, each = OUTPUT * 100, (190_000 - 120 * messages) // messages
    turns = [turn("user", part(CONTEXT), part("Why does the test fail on Mondays only?"))]
    for _ in range(messages // 2):
        turns += [CALL, turn("user", {**RESULT_PART, "content": output[: 2 * each]})]
    endpoint, fields, headers = claude(*turns)
    body = json.dumps({"model": "auto", **fields}).encode()
    header_bytes = [(name.encode(), value.encode()) for name, value in headers.items()]
    harnesses = load_harnesses()

    def read_as(scored: Scored) -> float:
        envelope = read_envelope(endpoint, body)  # type: ignore[arg-type]
        began = time.perf_counter()
        reading = envelope.read(header_bytes, harnesses) if scored == "ask" else None
        scored_prompt(envelope, scored, reading)
        return 1e3 * (time.perf_counter() - began)

    readings: tuple[Scored, ...] = ("ask", "last_user")
    seconds = {s: [read_as(s) for _ in range(100)] for s in readings}
    added = min(seconds["ask"]) - min(seconds["last_user"])  # others use the machine, too
    return {"bytes": len(body), "messages": len(turns), "added_ms": added}


def main() -> None:
    """Fit, ask in every shape, and write the figures."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--fit", type=int, default=2000)
    parser.add_argument("--questions", type=int, default=400)
    parser.add_argument("--sessions", type=int, default=100)
    parser.add_argument("--only", choices=["variants"], help="keep the figures of the shapes")
    arguments = parser.parse_args()
    dataset = read_dataset(DATA)
    order = np.random.default_rng(0).permutation(len(dataset))
    ids = np.array(dataset.query_ids, dtype=object)[order].tolist()
    fitted = cache(lambda: fit(dataset.select(ids[: arguments.fit])))
    sample = dataset.select(ids[arguments.fit : arguments.fit + arguments.questions])
    before = json.loads(RESULT.read_text()) if arguments.only else {}
    shapes = before.get("shapes") or compare_shapes(fitted(), sample)
    others = dataset.select(ids[arguments.fit :]).queries
    questions = list(dict.fromkeys(prompt_text(query.prompt).strip() for query in others))
    result = {
        "machine": machine(),
        "arguments": before.get("arguments") or vars(arguments),
        "shapes": shapes,
        "variants": read_variants(fitted, dataset.pool, questions, arguments.sessions),
        "speed": [time_reading(messages) for messages in (46, 200, 400)],
    }
    print(result["speed"])
    files.write_json(RESULT, result)


def compare_shapes(router: Router, questions: RoutingDataset) -> dict[str, Any]:
    """The forecasts of the same questions in every shape, by how the request is read."""
    texts = [prompt_text(query.prompt) for query in questions.queries]
    correct = questions.correct[:, [questions.pool.names.index(name) for name in router.pool.names]]
    figures: dict[str, dict[str, dict[str, float]]] = {}
    _, alone = measure(router, texts, correct, None)
    for name, shape in SHAPES.items():
        for scored in READINGS:
            prompts = [read_prompt(shape(text), scored) for text in texts]
            scores, _ = measure(router, prompts, correct, alone)
            figures.setdefault(name, {})[scored] = scores
        row = figures[name]
        shown = (f"{s} {row[s]['auc']:.3f} {row[s]['correlation']:.2f}" for s in READINGS)
        print(f"{name}: {', '.join(shown)}", flush=True)
    return figures


if __name__ == "__main__":
    main()
