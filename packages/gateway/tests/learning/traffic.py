"""A database of sampled requests to simulated targets, and judges that err."""

import hashlib
import json
import re
from contextlib import closing
from pathlib import Path

import numpy as np

from packages.gateway.tests.receipts.example_receipts import example_receipt
from prefill_router.fitting import recipe_from_dict
from prefill_router.targets import Pool, Provider, RequestOptions, Target
from prefill_router_gateway import Receipt
from prefill_router_gateway.receipts import (
    SampledRequest,
    insert_rows,
    open_learning,
    write_learning,
)
from prefill_router_gateway.receipts.rows import to_row

SKILL = {"weak-1": 0.45, "strong-1": 0.9}
PRICE = {"weak-1": 0.1, "strong-1": 2.0, "judge-1": 0.2}
_DIFFICULTY = re.compile(r"of difficulty ([0-9.]+[0-9])")
START = 1_790_000_000.0
QUICK_RECIPE = recipe_from_dict(
    {"predictor": {"kind": "logistic", "c": 1.0, "scaling": "each"}, "shrinkage": False}
)
"""A recipe that takes a tenth of the usual time; the learner does the same with it."""


def chance_of(*parts: object) -> float:
    digest = hashlib.sha256("|".join(map(str, parts)).encode()).digest()
    return int.from_bytes(digest[:6]) / 2**48


def is_right(target: str, prompt: str) -> bool:
    """Whether a target answers a prompt correctly: if it is easy enough, with some noise."""
    match = _DIFFICULTY.search(prompt)
    assert match is not None
    return SKILL[target] + 0.2 * (chance_of(target, match[0]) - 0.5) > float(match[1])


def answer_of(target: str, prompt: str) -> str:
    return "the right answer" if is_right(target, prompt) else "a wrong answer"


def answer(model: str, prompt: str, *, judge_error: float = 0.1) -> str:
    """The answer of a target, or of a judge that errs in a share of cases."""
    if model != "judge-1":
        return answer_of(model, prompt)
    if "answer B" in prompt:
        first, second = (part.split("\n===")[0] for part in prompt.split(" answer ")[-2:])
        better = ("right" in first) - ("right" in second)
        return json.dumps({"better": {1: "A", -1: "B", 0: "tie"}[better]})
    right = "the right answer" in prompt.rpartition("answer to grade")[2]
    is_wrong = chance_of(prompt) < judge_error
    return json.dumps({"reasoning": "", "correct": "yes" if right != is_wrong else "no"})


def build_pools(base_url: str, *, judges: tuple[str, ...] = ("judge-1",)) -> tuple[Pool, Pool]:
    """The pool of targets and the pool of judges."""
    provider = Provider(name="here", base_url=base_url, dialect="vllm", concurrency=8)

    def pool(names: tuple[str, ...]) -> Pool:
        return Pool(
            tuple(
                Target(
                    name=name,
                    provider="here",
                    input_price=PRICE[name],
                    output_price=PRICE[name] * 4,
                    request=RequestOptions(max_tokens=32),
                )
                for name in names
            ),
            providers=(provider,),
        )

    return pool(tuple(SKILL)), pool(judges)


def build_sample(number: int, *, routed: str = "weak-1") -> tuple[Receipt, SampledRequest]:
    """The receipt of a request, and its sample with the client's answer."""
    hard = np.random.default_rng(number).random()
    prompt = f"Question {number} of difficulty {hard:.3f}?"
    receipt = example_receipt(
        number,
        choice={
            "order": (routed, *(name for name in SKILL if name != routed)),
            "correctness": {"weak-1": 0.5, "strong-1": 0.8},
            "estimated_cost": {"weak-1": 1e-5, "strong-1": 2e-4},
            "policy_target": routed,
        },
        cost=1e-5 if routed == "weak-1" else 2e-4,
    )
    sample = SampledRequest(
        id=receipt.choice.id,
        at=START + number,
        share=0.1,
        endpoint="chat",
        body={"messages": [{"role": "user", "content": prompt}]},
        answer=answer_of(routed, prompt),
        prompt=prompt,
    )
    return receipt, sample


def write_traffic(folder: Path, count: int, *, first: int = 0) -> str:
    """Write sampled requests, routed to either target. Returns the database's URL."""
    url = f"sqlite:///{folder}/receipts.sqlite"
    pairs = [
        build_sample(i, routed=("weak-1", "strong-1")[i % 3 == 0]) for i in range(first, count)
    ]
    with closing(open_learning(url)) as store:
        insert_rows(store, [to_row(receipt) for receipt, _ in pairs], [])
        write_learning(store, [sample for _, sample in pairs])
    return url
