"""What a router expects without choosing, and the part of it that needs no network."""

import dataclasses
import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from prefill_router import files
from prefill_router.data import Message, RoutingDataset
from prefill_router.errors import ConfigError, CorruptError, PromptError
from prefill_router.policy import Tolerance
from prefill_router.router import Router
from prefill_router.router.light import read_light
from prefill_router.router.storage import CHECKED_FILES, fingerprint

pytestmark = pytest.mark.slow


@pytest.fixture
def router_folder(router: Router, tmp_path: Path) -> Path:
    router.save(tmp_path / "router")
    return tmp_path / "router"


def test_forecasts_are_what_decisions_are_made_of(router: Router, answers: RoutingDataset) -> None:
    prompts = [query.prompt for query in answers.queries[:20]]
    forecasts = router.forecast_many(prompts)
    for forecast, decision in zip(forecasts, router.route_many(prompts, lam=0.3), strict=True):
        assert forecast.correctness.tolist() == list(decision.correctness.values())
        assert (forecast.tokens, forecast.truncated) == (
            decision.input_tokens,
            decision.truncated,
        )
    assert router.forecast_many([]) == []


def test_long_prompt_is_told_as_truncated(router: Router) -> None:
    chat = (Message("user", "why? " * 100),)
    [short, long] = router.forecast_many(["why?", chat])
    assert (short.tokens, short.truncated) == (4, False)
    assert (long.tokens, long.truncated) == (500, True)


def test_prompt_that_can_not_be_encoded_is_named_by_its_place(router: Router) -> None:
    with pytest.raises(PromptError, match="lone surrogate") as error:
        router.forecast_many(["fine", "\ud800 not", "fine too"])
    assert error.value.query_id == "request 2"


def test_the_light_router_tells_the_verdict_and_names_no_target(
    router_folder: Path, router: Router
) -> None:
    verdict = router.record.verdict
    assert verdict is not None
    light_verdict = read_light(router_folder).verdict
    assert light_verdict is not None
    assert (light_verdict["word"], light_verdict["lam"]) == (verdict["word"], verdict["lam"])
    assert light_verdict["gain"] == verdict["curve"][0]["best_mix"]["gain"]
    assert not any(name in json.dumps(light_verdict) for name in router.pool.names)


def test_light_part_prices_and_chooses_as_the_whole(router: Router, router_folder: Path) -> None:
    light = read_light(router_folder)
    assert light.pool == router.pool
    assert light.policy == router.policy
    assert light.encoders == ("fake",)
    tokens = np.array([7, 300])
    np.testing.assert_array_equal(light.costs.estimate(tokens), router.costs.estimate(tokens))
    assert light.costs.scale == router.costs.scale


def test_light_part_at_other_prices(router: Router, router_folder: Path) -> None:
    light = read_light(router_folder)
    dear = router.pool.with_prices({"target-0": (500.0, 900.0)})
    other = light.with_pool(dear)
    assert other.costs.scale == router.with_pool(dear).costs.scale
    assert other.fingerprint == light.fingerprint
    with pytest.raises(ConfigError, match="the router needs"):
        light.with_pool(dear.select(["target-0"]))


def test_fingerprint_is_of_what_decides(
    router: Router, router_folder: Path, tmp_path: Path
) -> None:
    router.save(tmp_path / "again")
    assert (
        fingerprint(tmp_path / "again")
        == fingerprint(router_folder)
        == read_light(router_folder).fingerprint
    )
    dataclasses.replace(router, policy=Tolerance()).save(tmp_path / "other")
    assert read_light(tmp_path / "other").fingerprint != fingerprint(router_folder)


def test_reading_the_light_part_loads_no_network(router_folder: Path) -> None:
    program = (
        "import sys; from prefill_router.router.light import read_light; "
        f"read_light({str(router_folder)!r}); "
        "print([n for n in ('torch', 'transformers', 'tokenizers') if n in sys.modules])"
    )
    process = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert (process.returncode, process.stdout.strip()) == (0, "[]"), process.stderr


@pytest.mark.parametrize("name", CHECKED_FILES)
def test_light_part_of_a_damaged_router_is_refused(router_folder: Path, name: str) -> None:
    content = bytearray((router_folder / name).read_bytes())
    content[len(content) // 2] ^= 0x10
    (router_folder / name).write_bytes(bytes(content))
    with pytest.raises(CorruptError, match="isn't what was written"):
        read_light(router_folder)


@pytest.mark.parametrize(
    ("part", "value"),
    [
        ("format", 77),
        ("policy", {"kind": "another"}),
        ("policy", {"kind": "threshold", "strong": "nobody", "weak": "target-0"}),
        ("costs", {}),
        ("pool", {"targets": []}),
    ],
)
def test_light_part_that_makes_no_sense_is_refused(
    router_folder: Path, part: str, value: object
) -> None:
    content = json.loads((router_folder / "router.json").read_text())
    (router_folder / "router.json").write_text(json.dumps(content | {part: value}))
    files.write_checksums(router_folder, list(CHECKED_FILES))
    with pytest.raises(CorruptError):
        read_light(router_folder)


def test_light_part_of_no_router(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="isn't a router's folder"):
        read_light(tmp_path)
