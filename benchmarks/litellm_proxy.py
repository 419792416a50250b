"""LiteLLM's real proxy with the routing plugin: what it calls, and what it reports.

It runs in an environment that has LiteLLM's proxy too, and says which of the things that the guide
says of the plugin hold there:

    python -m venv lite
    lite/bin/pip install 'litellm[proxy]' -e packages/router -e packages/gateway
    lite/bin/python -m benchmarks.litellm_proxy
"""

import argparse
import importlib.metadata
import importlib.util
import json
import os
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, final

import yaml

from benchmarks._litellm_world import World, unheard, world
from benchmarks.litellm_real import Checks
from prefill_router_gateway import Receipt
from prefill_router_gateway.receipts import read_receipts

NEEDED = ("litellm", "backoff", "apscheduler", "orjson")
KEY = "sk-of-this-benchmark-alone-0123456789"
PROMPT = "a prompt that must not be in the log"
MODELS = ("small", "mid", "large")
PRICES = {"input_cost_per_token": 1e-6, "output_cost_per_token": 2e-6}
PATIENCE = 120
ROUTED = """
from litellm.integrations.custom_logger import CustomLogger

from prefill_router_gateway.litellm import PrefillRouterPlugin

plugin = PrefillRouterPlugin(gateway={gateway!r}, lam=0.0, timeout=60, targets={targets!r})


class Reports(CustomLogger):
    async_log_success_event = plugin.ended
    async_log_failure_event = plugin.ended
    async_post_call_response_headers_hook = plugin.headers


reports = Reports()
"""


@final
class Proxy:
    """A running proxy.

    Args:
        url: Its address.
        log: The file of its log.
    """

    def __init__(self, url: str, log: Path) -> None:
        self.url, self._log = url, log

    def ask(self, path: str = "chat/completions", **body: Any) -> tuple[str, str | None]:
        """The reply, and the id of the decision in its headers."""
        messages = {} if "prompt" in body else {"messages": [{"role": "user", "content": PROMPT}]}
        return post(f"{self.url}/v1/{path}", {"model": "auto", **messages, **body})

    @property
    def lines(self) -> list[str]:
        """The lines of its log."""
        return self._log.read_text(encoding="utf-8", errors="replace").splitlines()


def post(url: str, body: Mapping[str, Any]) -> tuple[str, str | None]:
    """Send a request; returns the reply and the id of the decision in its headers."""
    headers = {"content-type": "application/json", "authorization": f"Bearer {KEY}"}
    request = urllib.request.Request(url, json.dumps(body).encode(), headers)
    try:
        with urllib.request.urlopen(request, timeout=PATIENCE) as reply:
            return reply.read().decode(), reply.headers["x-prefill-router-decision-id"]
    except urllib.error.HTTPError as error:
        return f"{error.code} {error.read().decode()}", None


@contextmanager
def proxy(folder: Path, place: World, gateway: str) -> Iterator[Proxy]:
    """LiteLLM's proxy with two groups: `auto`, and `risky`, whose cheapest target is down."""
    folder.mkdir()
    rows = [_deployment("auto", m, place.models, PRICES if m == "small" else {}) for m in MODELS]
    rows += [_deployment("risky", m, unheard() if m == "small" else place.models) for m in MODELS]
    rows.append(_deployment("other", "other", place.models))
    config = {
        "model_list": rows,
        "router_settings": {"plugins": ["routed.plugin"], "num_retries": 2, "retry_after": 0},
        "litellm_settings": {"callbacks": ["routed.reports"]},
        "general_settings": {"master_key": KEY},
    }
    targets = {f"hosted_vllm/{m}": t for m, t in zip(MODELS, place.targets, strict=True)}
    (folder / "config.yaml").write_text(yaml.safe_dump(config), encoding="utf-8")
    (folder / "routed.py").write_text(ROUTED.format(gateway=gateway, targets=targets))
    port = unheard().removesuffix("/v1").rpartition(":")[2]
    line = [sys.executable, "-c", "from litellm import run_server; run_server()"]
    line += ["--config", str(folder / "config.yaml"), "--host", "127.0.0.1", "--port", port]
    environment = {"PYTHONPATH": os.pathsep.join(sys.path), "LITELLM_LOCAL_MODEL_COST_MAP": "True"}
    log = folder / "proxy.log"
    with (
        log.open("w") as out,
        subprocess.Popen(
            line,
            cwd=folder,
            env={**os.environ, **environment},
            stdout=out,
            stderr=subprocess.STDOUT,
        ) as process,
    ):
        try:
            _wait(process, f"http://127.0.0.1:{port}/health/liveliness", log)
            yield Proxy(f"http://127.0.0.1:{port}", log)
        finally:
            process.terminate()


def _deployment(group: str, model: str, base: str, prices: Mapping[str, float] = {}) -> Any:
    params = {"model": f"hosted_vllm/{model}", "api_base": base, "api_key": "none", **prices}
    return {"model_name": group, "litellm_params": params}


def _wait(process: subprocess.Popen[bytes], url: str, log: Path) -> None:
    for _ in range(2 * PATIENCE):
        try:
            urllib.request.urlopen(url, timeout=PATIENCE).close()
            return
        except OSError:
            time.sleep(0.5)
        if process.poll() is not None:
            break
    raise SystemExit(f"LiteLLM's proxy didn't start:\n{log.read_text()[-2000:]}")


def receipts(folder: Path, *, reported: int) -> dict[str, Receipt]:
    """All receipts by id, once `reported` have an outcome; LiteLLM logs later."""
    by_id: dict[str, Receipt] = {}
    for _ in range(40):
        every = read_receipts(str(folder / "receipts.sqlite"))
        by_id = {receipt.choice.id: receipt for receipt in every}
        if sum(receipt.outcome.kind != "routed" for receipt in by_id.values()) >= reported:
            break
        time.sleep(0.25)
    return by_id


def check_decisions(litellm_proxy: Proxy, folder: Path, place: World, checks: Checks) -> None:
    """What the proxy calls, and what the gateway's receipts then have."""
    cheap, middle, _ = place.targets
    whole, first = litellm_proxy.ask()
    checks.equal("the chosen target answers", '"content":"small"' in whole, True)
    stream, second = litellm_proxy.ask(stream=True)
    checks.equal("a stream", '"content":"sm' in stream, True)
    replies = [litellm_proxy.ask(path, **more) for path, more in _CALLS]
    checks.equal(
        "messages and text completions", ["small" in text for text, _ in replies], [True] * 2
    )
    other, none = litellm_proxy.ask(model="other")
    checks.equal("other groups go as before", ('"content":"other"' in other, none), (True, None))
    risky, third = litellm_proxy.ask(model="risky")
    checks.equal("a target that is down is followed", '"content":"mid"' in risky, True)
    by_id = receipts(folder, reported=6)
    ends = [(r.outcome.kind, r.outcome.target) for r in by_id.values()]
    expected = [("answered", cheap)] * 4 + [("failed", None), ("answered", middle)]
    checks.equal("each attempt's outcome is reported, once", ends, expected)
    whole_receipt, stream_receipt, risky_receipt = (
        by_id[str(name)] for name in (first, second, third)
    )
    usage, sure = (
        whole_receipt.outcome.usage,
        whole_receipt.outcome.total_seconds > whole_receipt.decision_seconds,
    )
    read, written = _counts(whole)
    counts = None if usage is None else (usage.input_tokens, usage.output_tokens)
    checks.equal("tokens are LiteLLM's", counts, (read, written))
    spent = read * PRICES["input_cost_per_token"] + written * PRICES["output_cost_per_token"]
    checks.equal("so is the cost", round(whole_receipt.cost or 0, 12), round(spent, 12))
    checks.equal("without its price, it is the pool's", (risky_receipt.cost or 0) > 0, True)
    checks.equal(
        "latency", (sure, stream_receipt.outcome.first_byte_seconds is not None), (True, True)
    )
    scored, _ = post(f"{place.gateway}/v1/feedback", {"id": first, "score": 1})
    checks.equal("feedback, by the id in the response", json.loads(scored)["kept"], True)


_CALLS: tuple[tuple[str, dict[str, Any]], ...] = (
    ("messages", {"max_tokens": 20}),
    ("completions", {"prompt": PROMPT}),
)


def _counts(reply: str) -> tuple[int, int]:
    usage = json.loads(reply)["usage"]
    return usage["prompt_tokens"], usage["completion_tokens"]


def check_alone(litellm_proxy: Proxy, checks: Checks) -> None:
    """The proxy while no gateway listens at its address."""
    replies = [litellm_proxy.ask() for _ in range(4)]
    answered = [any(f'"content":"{m}"' in text for m in MODELS) for text, _ in replies]
    checks.equal("without a gateway LiteLLM chooses", answered, [True] * 4)
    warned = [line for line in litellm_proxy.lines if "the gateway can't be reached" in line]
    checks.equal("which is said once", len(warned), 1)
    checks.equal("without the prompt", any(PROMPT in line for line in litellm_proxy.lines), False)


def main() -> None:
    """Run all checks."""
    argparse.ArgumentParser(description=__doc__).parse_args()
    if not all(map(importlib.util.find_spec, NEEDED)):
        print("LiteLLM's proxy isn't installed here; see the top of this file")
        return
    checks = Checks()
    print(f"LiteLLM {importlib.metadata.version('litellm')}, its proxy")
    with tempfile.TemporaryDirectory() as name, world(Path(name)) as place:
        with proxy(Path(name) / "with", place, place.gateway) as litellm_proxy:
            check_decisions(litellm_proxy, Path(name), place, checks)
        with proxy(Path(name) / "alone", place, unheard().removesuffix("/v1")) as litellm_proxy:
            check_alone(litellm_proxy, checks)
    raise SystemExit(1 if checks.failed else 0)


if __name__ == "__main__":
    main()
