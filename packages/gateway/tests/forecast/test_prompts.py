"""A batch in which one prompt is bad."""

import dataclasses
import logging
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import pytest

from packages.gateway.tests.forecast.routers import (
    QUICK_CONFIG,
    probabilities,
    save_causal_encoder,
    save_router,
)
from packages.router.tests.fakes.wrapped_encoder import WrappedEncoder
from prefill_router.activations import Pooling, Site
from prefill_router.data import split
from prefill_router.encoders.base import States
from prefill_router.encoders.prefix_encoder import PrefixCachingEncoder
from prefill_router.encoders.tokenisation import TokenizedPrompt
from prefill_router.errors import StoreError, UpstreamError
from prefill_router.fitting import fit_router
from prefill_router.progress import Progress
from prefill_router.router import EncoderSources, Forecast, Router
from prefill_router.testing import FakeEncoder, make_routing_dataset
from prefill_router_gateway.forecast.encoder_program import (
    forecast_each,
    prepare_encoders,
    still_works,
)


class FailingEncoder(WrappedEncoder):
    """A fake encoder that fails on some words."""

    def __init__(self) -> None:
        super().__init__(FakeEncoder())
        self.read: list[int] = []

    def states(
        self,
        prompts: Sequence[TokenizedPrompt],
        sites: Sequence[Site],
        *,
        progress: Progress | None = None,
    ) -> Mapping[Site, States]:
        self.read.append(len(prompts))
        for prompt in prompts:
            text = "".join(map(chr, prompt.ids))
            if "poison" in text:
                raise RuntimeError(f"can't swallow {text}")
            if "infinite" in text:
                raise StoreError("not finite")
            if "unplugged" in text:
                raise UpstreamError("nobody there", failure="connect")
        return super().states(prompts, sites, progress=progress)


@pytest.fixture(scope="module")
def base_router() -> Router:
    answers = make_routing_dataset(queries=120, targets=3)
    states = FakeEncoder().encode(answers.queries, [Site(3, "last")])
    return fit_router(answers, [states], config=QUICK_CONFIG, split=split(answers)).router


@pytest.fixture
def encoder() -> FailingEncoder:
    return FailingEncoder()


@pytest.fixture
def router(base_router: Router, encoder: FailingEncoder) -> Router:
    return dataclasses.replace(base_router, sources=EncoderSources(loaded=(encoder,)))


@pytest.mark.slow
def test_bad_prompts_are_left_out_and_the_others_read_together(
    router: Router, encoder: FailingEncoder
) -> None:
    prompts = ["one", "\ud800", "two", "", "x" * 10_000_001, "three"]
    results = forecast_each(router, prompts)
    assert [result if isinstance(result, str) else "read" for result in results] == [
        *("read", "unreadable", "read"),
        *("unreadable", "unreadable", "read"),
    ]
    assert encoder.read == [3]
    decisions = router.route_many(["one", "two", "three"])
    assert [r.correctness.tolist() for r in results if isinstance(r, Forecast)] == [
        list(decision.correctness.values()) for decision in decisions
    ]


@pytest.mark.slow
def test_nothing_but_bad_prompts(router: Router) -> None:
    assert forecast_each(router, ["", "\udfff"]) == ["unreadable", "unreadable"]
    assert forecast_each(router, []) == []


@pytest.mark.parametrize("word", ["poison", "infinite"])
def test_after_another_failure_they_are_read_one_by_one(
    router: Router, encoder: FailingEncoder, word: str
) -> None:
    results = forecast_each(router, ["one", f"{word} here", "\ud800", "two"])
    assert [result if isinstance(result, str) else "read" for result in results] == [
        "read",
        "unreadable",
        "unreadable",
        "read",
    ]
    assert encoder.read == [3, 1, 1, 1]


def test_endpoint_that_fails_is_no_fault_of_the_prompt(router: Router) -> None:
    assert forecast_each(router, ["unplugged"]) == ["encoder_down"]


def test_what_is_logged_quotes_no_prompt(router: Router, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    forecast_each(router, ["poison of the queen", "\ud800 of the king"])
    assert "RuntimeError" in caplog.text
    assert "queen" not in caplog.text
    assert "king" not in caplog.text


@pytest.mark.slow
@pytest.mark.parametrize(("pooling", "threads"), [("last", 1), ("mean", 2), ("rest", 1)])
def test_shared_beginnings_are_read_once_where_the_encoder_allows_it(
    pooling: Pooling, threads: int, tmp_path: Path
) -> None:
    folder, sources = save_router(tmp_path, save=save_causal_encoder, pooling=pooling)
    plain = Router.load(folder, sources=sources)
    router = prepare_encoders(plain, threads=threads, reuse_bytes=1 << 20)
    [reusing] = router.sources.loaded
    assert isinstance(reusing, PrefixCachingEncoder)
    for end in ("Why?", "Why not?"):
        prompt = "You are a helpful assistant. " * 5 + end
        [result] = forecast_each(router, [prompt])
        assert isinstance(result, Forecast)
        np.testing.assert_allclose(result.correctness, probabilities(plain, prompt), rtol=1e-3)
    assert reusing.reused_tokens == 128
    assert reusing.workers == threads


def test_other_encoders_stay_as_they_are(router: Router, encoder: FailingEncoder) -> None:
    prepared = prepare_encoders(router, threads=2, reuse_bytes=1 << 20)
    assert prepared.sources.loaded == (encoder,)


def test_ordinary_prompt_tells_whether_it_still_works(
    router: Router, encoder: FailingEncoder, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert still_works(router)

    def raise_error(*_: object, **__: object) -> None:
        raise RuntimeError("device-side assert triggered")

    monkeypatch.setattr(encoder, "states", raise_error)
    assert not still_works(router)
