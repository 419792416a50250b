"""Routers in Switchyard's format: a reference written from its description, and what is refused."""

import dataclasses
import io
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from packages.router.tests.fakes.wrapped_encoder import WrappedEncoder
from packages.router.tests.router.switchyard_files import theirs, write_checkpoint
from prefill_router.activations import MemoryActivations, Provenance, Site
from prefill_router.data import RoutingDataset
from prefill_router.errors import ConfigError
from prefill_router.features import JointConfig, PrefillConfig, PromptStates
from prefill_router.fitting import FitConfig, Recipe, fit_router, remove_target, switchyard_recipe
from prefill_router.policy import Tolerance
from prefill_router.predictors import LogisticConfig, TrunkConfig
from prefill_router.router import EncoderSources, Router, SwitchyardCheckpoint, switchyard_bytes
from prefill_router.testing import FakeEncoder, make_routing_dataset

QUICK = TrunkConfig(hidden=(24, 12), seeds=3, keep=2, max_epochs=40, batch_size=32)
BRIEF = dataclasses.replace(QUICK, seeds=1, keep=1, max_epochs=1)


class ChatEncoder(WrappedEncoder):
    """The fake encoder, as if it were a language model behind its chat template."""

    @property
    def provenance(self) -> Provenance:
        return dataclasses.replace(self.inner.provenance, template="chat")


ENCODER = ChatEncoder(FakeEncoder())
MADE_BY = ENCODER.provenance


def encode_states(dataset: RoutingDataset) -> MemoryActivations:
    sites = [Site(layer, pooling) for layer in (1, 2, 3, 4) for pooling in ("last", "mean")]
    return ENCODER.encode(dataset.queries, sites, rounding="float32")


@pytest.fixture(scope="module")
def answers() -> RoutingDataset:
    """Each target is best on some: the first where the last fails."""
    dataset = make_routing_dataset(queries=200, targets=3)
    return dataclasses.replace(
        dataset, correct=np.c_[1 - dataset.correct[:, 2], dataset.correct[:, 1:]]
    )


@pytest.fixture(scope="module")
def states(answers: RoutingDataset) -> MemoryActivations:
    return encode_states(answers)


def fit(answers: RoutingDataset, states: MemoryActivations, **parts: Any) -> Router:
    options = {"predictor": QUICK, "operating_points": False, **parts}
    recipe = dataclasses.replace(switchyard_recipe([states]), **options)
    config = FitConfig(test=0.15, recipe=recipe, resamples=0)
    return fit_router(answers, [states], config=config).router


@pytest.fixture(scope="module")
def router(answers: RoutingDataset, states: MemoryActivations) -> Router:
    return fit(answers, states)


@pytest.fixture(scope="module")
def prompts() -> RoutingDataset:
    return make_routing_dataset(queries=1000, targets=3, seed=5)


@pytest.fixture(scope="module")
def prompt_states(prompts: RoutingDataset) -> MemoryActivations:
    return encode_states(prompts)


def load_checkpoint(content: bytes) -> dict[str, Any]:
    checkpoint = torch.load(io.BytesIO(content), weights_only=True)
    assert isinstance(checkpoint, dict)
    return checkpoint


def reference(
    checkpoint: dict[str, Any], states: MemoryActivations, keys: tuple[str, ...]
) -> np.ndarray:
    """Every probability by the description of the format, in double precision: [query, target]."""

    def array(value: torch.Tensor) -> np.ndarray:
        return np.asarray(value.double().numpy())

    pipeline = checkpoint["feature_pipeline"]
    pooled = np.mean(
        [
            (states.read(Site(layer, "last"), keys) - array(pipeline["layer_mean"][str(layer)]))
            / array(pipeline["layer_std"][str(layer)])
            for layer in pipeline["selected_layers"]
        ],
        axis=0,
    )
    scaled = (pooled - array(pipeline["scaler_mean"])) / array(pipeline["scaler_scale"])
    features = (scaled - array(pipeline["pca_mean"])) @ array(pipeline["pca_components"]).T
    networks = []
    for state in checkpoint["model_state_dicts"]:

        def linear(rows: np.ndarray, name: str, of: Any = state) -> np.ndarray:
            return np.asarray(rows @ array(of[f"{name}.weight"]).T + array(of[f"{name}.bias"]))

        logits = []
        for target in range(len(checkpoint["models"])):
            adapted = np.maximum(linear(features, f"adapters.{target}"), 0)
            logits.append(linear(np.maximum(linear(adapted, "trunk.0"), 0), f"heads.{target}"))
        networks.append(1 / (1 + np.exp(-np.concatenate(logits, axis=1))))
    return np.asarray(np.mean(networks, axis=0))


def probabilities(router: Router, prompts: RoutingDataset, states: MemoryActivations) -> np.ndarray:
    return router.correctness(PromptStates.of_dataset(prompts, [states]))


def decisions(router: Router, texts: list[str], lam: float) -> list[str]:
    live_router = router.with_sources(EncoderSources(loaded=(ENCODER,)))
    return [decision.target for decision in live_router.route_many(texts, lam=lam)]


@pytest.mark.slow
def test_an_exported_router_has_the_probabilities_of_the_description(
    router: Router, prompts: RoutingDataset, prompt_states: MemoryActivations
) -> None:
    expected = reference(
        load_checkpoint(switchyard_bytes(router)), prompt_states, prompts.prompt_keys
    )
    assert np.ptp(expected) > 0.3  # they differ
    np.testing.assert_allclose(probabilities(router, prompts, prompt_states), expected, atol=1e-5)


@pytest.mark.slow
def test_the_fitted_router_reads_the_mean_of_several_layers(router: Router) -> None:
    assert load_checkpoint(switchyard_bytes(router))["feature_pipeline"]["selected_layers"] == [
        2,
        3,
    ]


@pytest.mark.slow
def test_one_site_for_all_targets_is_held(
    answers: RoutingDataset, states: MemoryActivations, prompts: RoutingDataset
) -> None:
    router = fit(answers, states, features=(PrefillConfig(select="last.3", dim=6),))
    prompt_states = encode_states(prompts)
    expected = reference(
        load_checkpoint(switchyard_bytes(router)), prompt_states, prompts.prompt_keys
    )
    np.testing.assert_allclose(probabilities(router, prompts, prompt_states), expected, atol=1e-5)


def test_exported_and_imported_it_decides_the_same(
    router: Router, prompts: RoutingDataset, tmp_path: Path
) -> None:
    content = switchyard_bytes(router)
    assert content == switchyard_bytes(router)
    (tmp_path / "router.pt").write_bytes(content)
    again = SwitchyardCheckpoint.read(tmp_path / "router.pt").router(MADE_BY)
    again.save(tmp_path / "router")
    again = Router.load(tmp_path / "router")
    assert "What it was fitted on is unknown" in (tmp_path / "router" / "README.md").read_text()
    texts = [str(query.prompt) for query in prompts.queries[:100]]
    chosen = decisions(router, texts, lam=0.5)
    assert len(set(chosen)) > 1
    for lam in (0.0, 0.5, 1.0):
        assert decisions(again, texts, lam=lam) == chosen


@pytest.mark.slow
@pytest.mark.parametrize("networks", [1, 3])
def test_theirs_with_its_own_adapters_has_the_same_probabilities(
    networks: int, prompts: RoutingDataset, prompt_states: MemoryActivations, tmp_path: Path
) -> None:
    checkpoint = theirs(networks=networks)
    router = SwitchyardCheckpoint.read(write_checkpoint(checkpoint, tmp_path)).router(MADE_BY)
    expected = reference(checkpoint, prompt_states, prompts.prompt_keys)
    np.testing.assert_allclose(probabilities(router, prompts, prompt_states), expected, atol=1e-5)
    again = reference(load_checkpoint(switchyard_bytes(router)), prompt_states, prompts.prompt_keys)
    np.testing.assert_allclose(again, expected, atol=1e-5)


def test_nothing_of_the_file_becomes_an_endpoint(tmp_path: Path) -> None:
    checkpoint = theirs() | {"base_url": "https://keys.example/v1", "api_key_env": "HOME"}
    router = SwitchyardCheckpoint.read(write_checkpoint(checkpoint, tmp_path)).router(MADE_BY)
    router.save(tmp_path / "router")
    for target in router.pool:
        assert (target.base_url, target.api_key_env, target.provider) == (None, None, None)
    for name in ("router.json", "weights.safetensors"):
        assert b"keys.example" not in (tmp_path / "router" / name).read_bytes()
    assert router.features.provenances == (MADE_BY,)


SITES = {"fake": ("last.2", "last.3")}
NOT_IN_FORMAT: dict[str, tuple[dict[str, Any], str]] = {
    "several blocks": (
        {"features": (PrefillConfig(select={f"target-{k}": f"last.{k + 1}" for k in range(3)}),)},
        "its features are several blocks",
    ),
    "several families": (
        {"features": (PrefillConfig(select="last.2"), PrefillConfig(select="last.3"))},
        "its features are prefill and prefill",
    ),
    "side by side": (
        {"features": (JointConfig(encoders=("fake",), sites=SITES),)},
        "its layers stand side by side",
    ),
    "mean": ({"features": (PrefillConfig(select="mean.3"),)}, "it pools states by mean"),
    "last layer": ({"features": (PrefillConfig(select="last.4"),)}, "it reads layer 4, the last"),
    "predictor": ({"predictor": LogisticConfig()}, "only shared_trunk is held"),
    "shrinkage": ({"shrinkage": True}, "no shrinkage is held"),
    "calibration": ({"calibration": "platt"}, "calibrated (platt)"),
    "policy": ({"policy": Tolerance()}, "its policy is tolerance"),
}


@pytest.mark.parametrize("case", NOT_IN_FORMAT)
def test_what_the_format_does_not_hold_is_refused(
    case: str, answers: RoutingDataset, states: MemoryActivations
) -> None:
    parts, reason = NOT_IN_FORMAT[case]
    router = fit(answers, states, **{"predictor": BRIEF, **parts})
    with pytest.raises(ConfigError) as error:
        switchyard_bytes(router)
    assert reason in str(error.value)
    assert "; fit one that it holds with: prefill-router fit" in str(error.value)
    assert str(error.value).count("; ") == 1  # no reason beside it


@pytest.mark.parametrize(
    ("changed", "reason"),
    [
        ({"template": "plain"}, "chat template"),
        ({"encoder": "minilm"}, "minilm isn't read as a causal language model"),
        ({"encoder": "sentence:a/b"}, "causal language model"),
        ({"quantisation": "Q4_1"}, "fake is quantised (Q4_1)"),
    ],
)
def test_other_encoders_are_refused_at_every_step(
    changed: dict[str, str],
    reason: str,
    answers: RoutingDataset,
    states: MemoryActivations,
    tmp_path: Path,
) -> None:
    other = dataclasses.replace(MADE_BY, **changed)  # type: ignore[arg-type]
    other_states = dataclasses.replace(states, made_by=other)
    features = (PrefillConfig(select="last.3"),)
    recipe = Recipe(features=features, predictor=BRIEF, shrinkage=False, operating_points=False)
    router = fit_router(
        answers, [other_states], config=FitConfig(test=0.15, recipe=recipe, resamples=0)
    ).router
    with pytest.raises(ConfigError) as error:
        switchyard_bytes(router)
    assert reason in str(error.value)
    with pytest.raises(ConfigError) as error:
        switchyard_recipe([other_states])
    assert reason in str(error.value)
    with pytest.raises(ConfigError) as error:
        SwitchyardCheckpoint.read(write_checkpoint(theirs(), tmp_path)).router(other)
    assert reason in str(error.value)


def test_every_reason_is_told_and_a_changed_pool_is_one(router: Router) -> None:
    with pytest.raises(ConfigError) as error:
        switchyard_bytes(dataclasses.replace(remove_target(router, "target-1"), policy=Tolerance()))
    assert "targets joined or left after its fit" in str(error.value)
    assert "its policy is tolerance" in str(error.value)


def test_the_recipe_needs_one_encoder_and_a_layer_below_the_last(
    answers: RoutingDataset, states: MemoryActivations
) -> None:
    with pytest.raises(ConfigError, match="give one"):
        switchyard_recipe([])
    with pytest.raises(ConfigError, match="give one"):
        switchyard_recipe([states, states])
    last = ENCODER.encode(answers.queries[:5], [Site(4, "last")])
    with pytest.raises(ConfigError, match="encode layers below it"):
        switchyard_recipe([last])


@pytest.mark.slow
def test_another_encoder_is_refused(tmp_path: Path) -> None:
    checkpoint = SwitchyardCheckpoint.read(write_checkpoint(theirs(), tmp_path))
    with pytest.raises(ConfigError, match="has 5 layers of the width 16; the checkpoint needs 4"):
        checkpoint.router(dataclasses.replace(MADE_BY, num_layers=5))
