"""A decision model as an encoder, and as the baseline that has learned nothing."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from prefill_router.data import Query, write_dataset
from prefill_router.encoders import KEY_OF, OWN, DecisionOptions, load_encoder, load_encoder_for
from prefill_router.errors import ConfigError, ProvenanceError, UpstreamError
from prefill_router.testing import make_routing_dataset
from packages.router.tests.commands import refused, succeeded
from packages.router.tests.encoders.embedding_endpoint import EmbeddingEndpoint

pytestmark = pytest.mark.slow

DATASET = make_routing_dataset(queries=120)
NAMES = DATASET.pool.names
QUERIES = [Query(f"q{i}", f"text {i}") for i in range(20)]
SECRET = "a-key-that-nobody-sees"


def shares_of(text: str) -> dict[str, float]:
    """What the endpoint finds of each target, before it prefers the option that comes first."""
    numbers = np.random.default_rng(list(text.encode())).dirichlet(np.ones(len(NAMES)))
    return dict(zip(NAMES, numbers.tolist(), strict=True))


class DecisionEndpoint(EmbeddingEndpoint):
    """A System One endpoint that prefers the option that it reads first, by a twentieth."""

    def answer(self, body: dict[str, Any]) -> tuple[int, dict[str, str], Any]:
        if self.failing:
            status, headers = self.failing.pop(0)
            return status, headers, {"error": {"message": f"no: {body['state']}"}}
        answers = {}
        for name, question in body["questions"].items():
            found, first = shares_of(body["state"]), next(iter(question["criteria"]))
            moved = {n: 0.95 * share + 0.05 * (n == first) for n, share in found.items()}
            best = max(moved, key=moved.__getitem__)
            answers[name] = {"type": "choice", "choice": best, "probabilities": moved}
        answer = {"model": "tiny-laya", "answers": answers, "usage": {"input_tokens": 7}}
        return 200, {}, self.change(answer) if self.change else answer


@pytest.fixture
def endpoint(monkeypatch: pytest.MonkeyPatch) -> Iterator[DecisionEndpoint]:
    monkeypatch.setenv("PREFILL_ROUTER_DECISIONS_KEY", SECRET)
    with DecisionEndpoint() as found:
        yield found


@pytest.fixture
def options(tmp_path: Path) -> Path:
    file = tmp_path / "options.yaml"
    file.write_text("".join(f"{name}: The model {name}.\n" for name in NAMES))
    return file


def named(endpoint: DecisionEndpoint, options: Path) -> str:
    return f"decision:laya@{endpoint.base_url}#{options}"


def test_the_log_odds_of_each_option_are_of_its_mean_over_three_orders(
    endpoint: DecisionEndpoint, options: Path
) -> None:
    encoder = load_encoder(named(endpoint, options))
    states = encoder.encode(QUERIES, [OWN], rounding="float32")
    odds = states.read(OWN, states.keys).astype(np.float64)
    found = np.array([list(shares_of(str(query.prompt)).values()) for query in QUERIES])
    (asked,) = [body for body in endpoint.seen if body["state"] == "text 3"]
    firsts = [next(iter(q["criteria"])) for q in asked["questions"].values()]
    assert len(set(firsts)) == 3
    assert {q["type"] for q in asked["questions"].values()} == {"choice"}
    mean = 0.95 * found + [0.05 * firsts.count(name) / 3 for name in NAMES]
    np.testing.assert_allclose(1 / (1 + np.exp(-odds)), mean, atol=2e-4)
    assert encoder.billed_tokens == 7 * (len(QUERIES) + 1)  # the first finds the model's name
    assert endpoint.headers[0]["authorization"] == f"Bearer {SECRET}"
    assert set(endpoint.paths) == {"/v1/systemone"}


def test_it_is_known_by_its_address_and_all_that_it_was_told(
    endpoint: DecisionEndpoint, options: Path
) -> None:
    made_by = load_encoder(named(endpoint, options)).provenance
    assert (made_by.encoder, made_by.revision) == (
        f"decision:laya@{endpoint.base_url}",
        "served:tiny-laya",
    )
    load_encoder_for(made_by, source=named(endpoint, options))
    told = f"decision:laya@.* name its address yourself.* the key in {KEY_OF['decision']}"
    with pytest.raises(ConfigError, match=told):
        load_encoder_for(made_by)
    options.write_text(options.read_text().replace("The model", "A model"))
    with pytest.raises(ProvenanceError):
        load_encoder_for(made_by, source=named(endpoint, options))


@pytest.mark.parametrize(
    "probabilities",
    [
        None,
        {},
        dict.fromkeys(NAMES, 1.0),
        {**dict.fromkeys(NAMES, 0.0), NAMES[0]: 1.5, NAMES[1]: -0.5},
        {**dict.fromkeys(NAMES, 0.0), NAMES[0]: "much"},
        {**dict.fromkeys(NAMES, 0.0), NAMES[0]: 1.0, "another": 0.0},
        {**dict.fromkeys(NAMES[1:], 0.0), "another": 1.0},
        {**dict.fromkeys(NAMES, 0.0), NAMES[0]: float("nan")},
    ],
)
def test_what_is_no_distribution_over_the_options_is_refused(
    endpoint: DecisionEndpoint, options: Path, probabilities: Any
) -> None:
    def change(answer: dict[str, Any]) -> Any:
        for said in answer["answers"].values():
            said["probabilities"] = probabilities
        return answer

    endpoint.change = change
    with pytest.raises(UpstreamError, match="a probability of each option"):
        load_encoder(named(endpoint, options))


def test_a_failing_endpoint_is_told_without_prompt_and_key(
    endpoint: DecisionEndpoint, options: Path
) -> None:
    endpoint.failing = [(401, {})]
    with pytest.raises(UpstreamError, match="PREFILL_ROUTER_DECISIONS_KEY") as caught:
        load_encoder(named(endpoint, options))
    assert SECRET not in str(caught.value)
    assert "no:" not in str(caught.value)


@pytest.mark.parametrize(("text", "words"), [("a: b\n", "at least two"), ("- a\n", "at least two")])
def test_options_are_names_with_descriptions(
    endpoint: DecisionEndpoint, options: Path, text: str, words: str
) -> None:
    options.write_text(text)
    with pytest.raises(ConfigError, match=words):
        load_encoder(named(endpoint, options))
    with pytest.raises(ConfigError, match=r"no\.yaml: no such file"):
        load_encoder(named(endpoint, Path("no.yaml")))
    with pytest.raises(ConfigError, match="with the file of its options"):
        load_encoder(f"decision:laya@{endpoint.base_url}")


def test_it_is_compared_with_a_router(
    endpoint: DecisionEndpoint, options: Path, tmp_path: Path
) -> None:
    write_dataset(DATASET, tmp_path / "answers")
    plan = tmp_path / "routers.yaml"
    zero_shot = {
        "features": {"kind": "zero_shot", "encoder": named(endpoint, options)},
        "predictor": "given",
        "shrinkage": False,
    }
    knn = {"features": "complexity", "predictor": {"kind": "knn_score", "k": 5}}
    plan.write_text(json.dumps({"routers": {"zero_shot": zero_shot, "knn": knn}}))
    out = tmp_path / "out"
    command = ("compare", plan, "--data", tmp_path / "answers", "--out", out, "--resamples", 20)
    succeeded(*command)
    compared = json.loads((out / "compare.json").read_text())
    assert set(compared["routers"]) == {"zero_shot", "knn"}
    assert not compared["failed"]
    price, name = 0.5, "zero_shot"
    succeeded(
        *command[:-3], tmp_path / "priced", *command[-2:], "--encoder-price", f"{name}={price}"
    )
    priced = json.loads((tmp_path / "priced" / "compare.json").read_text())
    assert priced["encoder_prices"] == {name: price}
    before, after = (one["routers"][name]["evaluation"] for one in (compared, priced))
    told = json.dumps(DecisionOptions.read(str(options)).questions())
    added = after["argmax_cost"]["value"] - before["argmax_cost"]["value"]
    # The endpoint is told the options, and a text of a few words.
    assert len(told) / 6 < added / price * 1e6 < len(told)
    assert after["auc_mean"] == before["auc_mean"]
    others = [one["routers"]["knn"]["evaluation"]["argmax_cost"] for one in (compared, priced)]
    assert others[0] == others[1]
    options.write_text("".join(reversed(options.read_text().splitlines(keepends=True))))
    refused("describe these, in this order", *command[:-3], tmp_path / "again")
