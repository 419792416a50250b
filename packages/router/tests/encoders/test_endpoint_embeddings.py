"""Embeddings of an endpoint: its requests, the answers that are accepted, and the errors."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from packages.router.tests.commands import check_refused, run_ok
from packages.router.tests.encoders.embedding_endpoint import (
    WIDTH,
    Change,
    EmbeddingEndpoint,
    vector_of,
)
from prefill_router.activations import ActivationStore, Site
from prefill_router.data import Query, write_dataset
from prefill_router.encoders import OWN, default_sites, encode_dataset, load_encoder
from prefill_router.encoders.encoder_names import URL, Address
from prefill_router.encoders.endpoint import EmbeddingsApi
from prefill_router.encoders.load import load_encoder_for, recorded_name
from prefill_router.errors import ConfigError, PromptError, ProvenanceError, UpstreamError
from prefill_router.testing import make_routing_dataset

pytestmark = pytest.mark.slow

DATASET = make_routing_dataset(queries=20)
QUERIES = [Query(f"q{i}", f"text {i} " * (1 + i % 3)) for i in range(7)]
AGAIN: dict[str, str] = {"retry-after-ms": "1"}
SECRET = "a-key-that-nobody-sees"


@pytest.fixture
def endpoint(monkeypatch: pytest.MonkeyPatch) -> Iterator[EmbeddingEndpoint]:
    monkeypatch.setenv("PREFILL_ROUTER_EMBEDDINGS_KEY", SECRET)
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    with EmbeddingEndpoint() as endpoint:
        yield endpoint


def test_rows_are_in_the_order_of_the_queries(endpoint: EmbeddingEndpoint) -> None:
    encoder = load_encoder(endpoint.name, batch_tokens=10)
    states = encoder.encode(QUERIES, [OWN], rounding="float32")
    expected = [vector_of(query.prompt) for query in QUERIES]
    np.testing.assert_array_equal(states.read(OWN, states.keys), np.float32(expected))
    assert len(endpoint.bodies) > 3  # the probe, and several batches
    assert all(body["model"] == "tiny-embed" for body in endpoint.bodies)
    assert endpoint.headers[0]["authorization"] == f"Bearer {SECRET}"


def test_provenance(endpoint: EmbeddingEndpoint) -> None:
    made_by = load_encoder(endpoint.name).provenance
    assert made_by.encoder == endpoint.name
    assert made_by.revision == "served:tiny-embed-2"
    assert (made_by.hidden_size, made_by.num_layers) == (WIDTH, 1)
    assert default_sites(made_by) == (OWN,)
    assert SECRET not in json.dumps(made_by.to_dict())


def test_tokens_are_counted_as_the_endpoint_does(endpoint: EmbeddingEndpoint) -> None:
    encoder = load_encoder(endpoint.name)
    encoder.encode(QUERIES, [OWN])
    words = sum(len(str(query.prompt).split()) for query in QUERIES)
    assert encoder.billed_tokens == 1 + words
    endpoint.change = lambda answer: {k: v for k, v in answer.items() if k != "usage"}
    estimated = encoder.encode(QUERIES, [OWN]).counts.sum()
    assert encoder.billed_tokens == 1 + words + estimated


def test_it_asks_again(endpoint: EmbeddingEndpoint) -> None:
    encoder = load_encoder(endpoint.name)
    endpoint.failing = [(429, AGAIN), (500, AGAIN), (503, AGAIN)]
    encoder.encode(QUERIES, [OWN])
    assert not endpoint.failing
    assert len(endpoint.bodies) == 5


def test_it_does_not_wait_for_hours(endpoint: EmbeddingEndpoint) -> None:
    encoder = load_encoder(endpoint.name)
    endpoint.failing = [(429, {"retry-after": "7200"})]
    encoder.encode(QUERIES, [OWN])
    assert len(endpoint.bodies) == 3


@pytest.mark.parametrize(
    ("status", "failure"), [(401, "unauthorised"), (404, "unknown_model"), (403, "unauthorised")]
)
def test_what_will_not_get_better_is_told(
    endpoint: EmbeddingEndpoint, status: int, failure: str
) -> None:
    encoder = load_encoder(endpoint.name)
    endpoint.failing = [(status, {})]
    with pytest.raises(UpstreamError, match=f"HTTP {status}") as error:
        encoder.encode(QUERIES, [OWN])
    assert error.value.failure == failure
    assert SECRET not in str(error.value)
    assert str(QUERIES[0].prompt).strip() not in str(error.value)
    assert len(endpoint.bodies) == 2


def test_nobody_there() -> None:
    with pytest.raises(UpstreamError, match="can't be reached"):
        _ask_without_patience("http://127.0.0.1:9/v1")


def _ask_without_patience(url: str) -> None:
    """Ask without waiting: the SDK waits for seconds between its attempts."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("prefill_router.encoders.endpoint._ATTEMPTS", 1)
        EmbeddingsApi(Address.parse(f"m@{url}"), environment={}).embed(["text"])


def _item(answer: dict[str, Any], **change: Any) -> dict[str, Any]:
    return {**answer, "data": [{**answer["data"][0], **change}, *answer["data"][1:]]}


@pytest.mark.parametrize(
    "change",
    [
        lambda a: {**a, "data": a["data"][1:]},
        lambda a: {**a, "data": [*a["data"], a["data"][0]]},
        lambda a: _item(a, index=0),
        lambda a: _item(a, index="6"),
        lambda a: _item(a, index=[6]),
        lambda a: _item(a, embedding=[0.0] * WIDTH),
        lambda a: _item(a, embedding=[1.0] * (WIDTH + 1)),
        lambda a: _item(a, embedding=[float("nan")] * WIDTH),
        lambda a: _item(a, embedding=[1e300] * WIDTH),
        lambda a: _item(a, embedding="AAAA"),
        lambda a: _item(a, embedding=["a"] * WIDTH),
        lambda a: _item(a, embedding=None),
        lambda a: {**a, "data": [{**item, "embedding": []} for item in a["data"]]},
        lambda a: {**a, "data": None},
        lambda a: list(a),
        lambda a: str(a),
    ],
)
def test_what_is_no_answer(endpoint: EmbeddingEndpoint, change: Change) -> None:
    encoder = load_encoder(endpoint.name)
    endpoint.change = change
    with pytest.raises(UpstreamError, match="the endpoint returned") as error:
        encoder.encode(QUERIES, [OWN])
    assert error.value.failure == "malformed"


@pytest.mark.parametrize(
    "change",
    [
        lambda a: {**a, "model": "another"},
        lambda a: {**a, "model": None},
        lambda a: {
            **a,
            "data": [{**item, "embedding": item["embedding"][1:]} for item in a["data"]],
        },
    ],
)
def test_another_model_is_refused(endpoint: EmbeddingEndpoint, change: Change) -> None:
    encoder = load_encoder(endpoint.name)
    endpoint.change = change
    with pytest.raises(ProvenanceError, match="encode the queries again"):
        encoder.encode(QUERIES, [OWN])


def test_the_prompt_that_is_refused_is_named_and_not_quoted(endpoint: EmbeddingEndpoint) -> None:
    encoder = load_encoder(endpoint.name)
    endpoint.refused = "text 5"
    with pytest.raises(PromptError, match="--max-tokens") as error:
        encoder.encode(QUERIES, [OWN])
    assert error.value.query_id == "q5"
    assert "text 5" not in str(error.value)


def test_long_prompts_lose_their_middle(endpoint: EmbeddingEndpoint) -> None:
    encoder = load_encoder(endpoint.name, max_tokens=10)
    [prompt] = encoder.tokenize([Query("q", "B" + "é" * 500 + "E")])
    assert (prompt.count, len(prompt.ids), prompt.truncated) == (251, 10, True)
    assert prompt.text[0] == "B"
    assert prompt.text[-1] == "E"
    assert 30 <= len(prompt.text.encode()) <= 40
    encoder.encode([Query("q", "word " * 100)], [OWN])
    assert len(endpoint.bodies[-1]["input"][0]) == 40


def test_empty_prompts_are_refused(endpoint: EmbeddingEndpoint) -> None:
    encoder = load_encoder(endpoint.name)
    with pytest.raises(PromptError, match="no token"):
        encoder.encode([Query("q", "")], [OWN])


def test_a_store_is_made_and_gone_on_with(
    endpoint: EmbeddingEndpoint, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    encoder = load_encoder(endpoint.name)
    encode_dataset(DATASET.queries[:8], encoder, tmp_path, sites=[OWN])
    texts = sum(len(body["input"]) for body in endpoint.bodies)
    store = encode_dataset(DATASET, encoder, tmp_path, sites=[OWN])
    assert sum(len(body["input"]) for body in endpoint.bodies) == texts + 12
    requests = len(endpoint.bodies)
    for elsewhere in (None, "http://elsewhere.example/v1"):
        if elsewhere is not None:
            monkeypatch.setenv(URL, elsewhere)
        with pytest.raises(ConfigError, match=f"needs your permission; .* set {URL}=") as error:
            load_encoder_for(store.provenance, layers=[1])
        assert SECRET not in str(error.value)
    assert load_encoder_for(store.provenance, layers=[1], source=endpoint.name)  # named here
    assert len(endpoint.bodies) == requests
    monkeypatch.setenv(URL, f"http://elsewhere.example/v1 {endpoint.base_url}/?api-version=7")
    again = load_encoder_for(store.provenance, layers=[1])
    states = again.encode(DATASET.queries[:3], [OWN])
    np.testing.assert_array_equal(
        states.read(OWN, states.keys), store.read(OWN, DATASET.prompt_keys[:3])
    )
    assert len(endpoint.bodies) == requests + 1  # without a probe
    assert endpoint.paths[-1] == "/v1/embeddings?api-version=7"


def test_by_the_command(endpoint: EmbeddingEndpoint, tmp_path: Path) -> None:
    write_dataset(DATASET, tmp_path / "data")
    out = tmp_path / "store"
    command = ["encode", tmp_path / "data", "--encoder", endpoint.name, "--out", out]
    summary = json.loads(run_ok(*command, "--json"))
    assert summary["sites"] == ["own.1"]
    assert summary["billed_tokens"] > 20
    assert ActivationStore.open(out).sites == (OWN,)
    check_refused("no layers to choose", *command, "--layers", "3-6")
    requests = len(endpoint.bodies)
    check_refused("one vector for a whole prompt", *command, "--pooling", "rest", code=2)
    assert len(endpoint.bodies) == requests
    endpoint.failing = [(401, {})]
    assert SECRET not in check_refused("refuses the key", *command)


def test_options_that_do_not_fit(endpoint: EmbeddingEndpoint) -> None:
    for options in (
        {"revision": "main"},
        {"dtype": "float32"},
        {"max_tokens": 0},
        {"batch_tokens": 0},
        {"layers": [3]},
        {"template": "chat"},
    ):
        with pytest.raises(ConfigError):
            load_encoder(endpoint.name, **options)
    assert not endpoint.bodies
    with pytest.raises(ConfigError, match="poolings"):
        load_encoder(endpoint.name).encode(QUERIES, [Site(1, "mean")])


@pytest.mark.parametrize(
    ("place", "name"),
    [
        ("m@HTTP://Host.X/v1/", None),
        ("m@http://Host.X:80/v1/", "endpoint:m@http://host.x/v1"),
        ("@cf/m@https://h:8443/v1?api-version=1&k=s", "endpoint:@cf/m@https://h:8443/v1"),
        ("m@http://[::1]:8000/v1", "endpoint:m@http://[::1]:8000/v1"),
        ("m@https://user:word@h/v1", None),
        ("m@https://:word@h/v1", None),
        ("m", None),
        ("@http://h", None),
        ("m@http://", None),
        ("m@http://h:0/v1", None),
        ("m@http://h:x/v1", None),
    ],
)
def test_names(place: str, name: str | None) -> None:
    if name is not None:
        assert recorded_name(f"endpoint:{place}") == name
        return
    with pytest.raises(ConfigError) as error:
        recorded_name(f"endpoint:{place}")
    assert "word" not in str(error.value).replace("password", "")


def test_the_query_goes_along_unrecorded(endpoint: EmbeddingEndpoint) -> None:
    encoder = load_encoder(f"{endpoint.name}?api-version=7")
    assert endpoint.paths == ["/v1/embeddings?api-version=7"]
    assert "api-version" not in encoder.provenance.encoder


def test_openais_key_goes_to_openai_alone(
    endpoint: EmbeddingEndpoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("PREFILL_ROUTER_EMBEDDINGS_KEY")
    monkeypatch.setenv("OPENAI_API_KEY", SECRET)
    monkeypatch.setenv("OPENAI_ORG_ID", "an-organisation")
    load_encoder(endpoint.name)
    assert endpoint.headers[-1]["authorization"] == "Bearer none"
    assert "openai-organization" not in endpoint.headers[-1]
    assert Address.parse("m@https://api.openai.com/v1").is_openai
    for url in (
        "http://api.openai.com/v1",
        "https://openai.com.evil.org",
        "https://evilopenai.com",
    ):
        assert not Address.parse(f"m@{url}").is_openai


def test_a_key_that_is_none(endpoint: EmbeddingEndpoint, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PREFILL_ROUTER_EMBEDDINGS_KEY", f"{SECRET} two")
    with pytest.raises(ConfigError, match="can't be a key") as error:
        load_encoder(endpoint.name)
    assert SECRET not in str(error.value)


def test_a_key_is_no_models_name(endpoint: EmbeddingEndpoint) -> None:
    endpoint.change = lambda answer: answer | {"model": f"m-{SECRET}"}
    assert load_encoder(endpoint.name).provenance.revision == "served:unnamed"


def test_redirects_are_not_followed(endpoint: EmbeddingEndpoint) -> None:
    endpoint.failing = [(307, {"location": f"{endpoint.base_url}/elsewhere/embeddings"})]
    with pytest.raises(UpstreamError):
        load_encoder(endpoint.name)
    assert endpoint.paths == ["/v1/embeddings"]
