"""Routers in Switchyard's format: a reference written from its description, and what is refused."""

import dataclasses
import io
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any
from zipfile import ZIP_DEFLATED, ZipFile

import numpy as np
import pytest
import torch

from prefill_router.activations import MemoryActivations, Provenance, Site
from prefill_router.data import RoutingDataset
from prefill_router.errors import ConfigError, FormatError
from prefill_router.features import JointConfig, PrefillConfig, PromptStates
from prefill_router.fitting import FitConfig, Recipe, fit_router, remove_target, switchyard_recipe
from prefill_router.policy import Tolerance
from prefill_router.predictors import LogisticConfig, TrunkConfig
from prefill_router.router import EncoderSources, Router, SwitchyardCheckpoint, switchyard_bytes
from prefill_router.testing import FakeEncoder, make_routing_dataset
from tests.fakes.wrapped_encoder import WrappedEncoder

QUICK = TrunkConfig(hidden=(24, 12), seeds=3, keep=2, max_epochs=40, batch_size=32)
Damage = Callable[[dict[str, Any]], object]


class ChatEncoder(WrappedEncoder):
    """The fake encoder, as if it were a language model behind its chat template."""

    @property
    def provenance(self) -> Provenance:
        return dataclasses.replace(self.inner.provenance, template="chat")


ENCODER = ChatEncoder(FakeEncoder())
MADE_BY = ENCODER.provenance


def encoded(dataset: RoutingDataset) -> MemoryActivations:
    sites = [Site(layer, pooling) for layer in (1, 2, 3, 4) for pooling in ("last", "mean")]
    return ENCODER.encode(dataset.queries, sites, rounding="float32")


@pytest.fixture(scope="module")
def answers() -> RoutingDataset:
    """Each target is best on some: the first where the last fails."""
    made = make_routing_dataset(queries=200, targets=3)
    return dataclasses.replace(made, correct=np.c_[1 - made.correct[:, 2], made.correct[:, 1:]])


@pytest.fixture(scope="module")
def states(answers: RoutingDataset) -> MemoryActivations:
    return encoded(answers)


def fit(answers: RoutingDataset, states: MemoryActivations, **parts: Any) -> Router:
    given = {"predictor": QUICK, "operating_points": False, **parts}
    recipe = dataclasses.replace(switchyard_recipe([states]), **given)
    config = FitConfig(recipe=recipe, resamples=0)
    return fit_router(answers, [states], config=config).router


@pytest.fixture(scope="module")
def router(answers: RoutingDataset, states: MemoryActivations) -> Router:
    return fit(answers, states)


@pytest.fixture(scope="module")
def prompts() -> RoutingDataset:
    return make_routing_dataset(queries=1000, targets=3, seed=5)


@pytest.fixture(scope="module")
def read(prompts: RoutingDataset) -> MemoryActivations:
    return encoded(prompts)


def loaded(content: bytes) -> dict[str, Any]:
    found = torch.load(io.BytesIO(content), weights_only=True)
    assert isinstance(found, dict)
    return found


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


def written(value: Any, folder: Path) -> Path:
    torch.save(value, folder / "router.pt")
    return folder / "router.pt"


def decisions(router: Router, texts: list[str], lam: float) -> list[str]:
    found = router.with_sources(EncoderSources(loaded=(ENCODER,)))
    return [one.target for one in found.route_many(texts, lam=lam)]


def theirs(*, targets: int = 3, networks: int = 2, seed: int = 0) -> dict[str, Any]:
    """A checkpoint as theirs may be: adapters that differ, a scaler and a PCA with their means."""
    random = np.random.default_rng(seed)

    def tensor(*shape: int) -> torch.Tensor:
        return torch.from_numpy(random.normal(size=shape))

    def positive(*shape: int) -> torch.Tensor:
        return torch.from_numpy(random.uniform(0.5, 2, shape))

    def state() -> dict[str, torch.Tensor]:
        shapes = {"trunk.0": (4, 6)}
        for i in range(targets):
            shapes |= {f"adapters.{i}": (6, 5), f"heads.{i}": (1, 4)}
        weights = {f"{name}.weight": tensor(*shape).float() for name, shape in shapes.items()}
        return weights | {f"{n}.bias": tensor(shape[0]).float() for n, shape in shapes.items()}

    pipeline = {
        "pooling": "mean of independently standardized selected layers",
        "selected_layers": [3, 1],
        "layer_mean": {"1": tensor(16), "3": tensor(16)},
        "layer_std": {"1": positive(16), "3": positive(16)},
        "scaler_mean": tensor(16),
        "scaler_scale": positive(16),
        "pca_mean": tensor(16),
        "pca_components": tensor(5, 16) / 4,
    }
    return {
        "format_version": 1,
        "models": [f"org/model-{i}" for i in range(targets)],
        "encoder": {
            "name": "https://keys.example/v1",
            "n_layers": 4,
            "hidden_dim": 16,
            "view": "task_prompt_only",
        },
        "architecture": {"activation": "ReLU", "ensemble_reduction": "mean(sigmoid(logits))"},
        "feature_pipeline": pipeline,
        "model_state_dicts": [state() for _ in range(networks)],
    }


def test_an_exported_router_has_the_probabilities_of_the_description(
    router: Router, prompts: RoutingDataset, read: MemoryActivations
) -> None:
    expected = reference(loaded(switchyard_bytes(router)), read, prompts.prompt_keys)
    assert np.ptp(expected) > 0.3  # they differ
    np.testing.assert_allclose(probabilities(router, prompts, read), expected, atol=1e-5)


def test_the_fitted_router_reads_the_mean_of_several_layers(router: Router) -> None:
    assert loaded(switchyard_bytes(router))["feature_pipeline"]["selected_layers"] == [2, 3]


def test_one_site_for_all_targets_is_held(
    answers: RoutingDataset, states: MemoryActivations, prompts: RoutingDataset
) -> None:
    router = fit(answers, states, features=(PrefillConfig(select="last.3", dim=6),))
    read = encoded(prompts)
    expected = reference(loaded(switchyard_bytes(router)), read, prompts.prompt_keys)
    np.testing.assert_allclose(probabilities(router, prompts, read), expected, atol=1e-5)


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


@pytest.mark.parametrize("networks", [1, 3])
def test_theirs_with_its_own_adapters_has_the_same_probabilities(
    networks: int, prompts: RoutingDataset, read: MemoryActivations, tmp_path: Path
) -> None:
    made = theirs(networks=networks)
    router = SwitchyardCheckpoint.read(written(made, tmp_path)).router(MADE_BY)
    expected = reference(made, read, prompts.prompt_keys)
    np.testing.assert_allclose(probabilities(router, prompts, read), expected, atol=1e-5)
    again = reference(loaded(switchyard_bytes(router)), read, prompts.prompt_keys)
    np.testing.assert_allclose(again, expected, atol=1e-5)


def test_nothing_of_the_file_becomes_an_endpoint(tmp_path: Path) -> None:
    made = theirs() | {"base_url": "https://keys.example/v1", "api_key_env": "HOME"}
    router = SwitchyardCheckpoint.read(written(made, tmp_path)).router(MADE_BY)
    router.save(tmp_path / "router")
    for target in router.pool:
        assert (target.base_url, target.api_key_env, target.provider) == (None, None, None)
    for name in ("router.json", "weights.safetensors"):
        assert b"keys.example" not in (tmp_path / "router" / name).read_bytes()
    assert router.features.provenances == (MADE_BY,)


SITES = {"fake": ("last.2", "last.3")}
UNHELD: dict[str, tuple[dict[str, Any], str]] = {
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


@pytest.mark.parametrize("case", UNHELD)
def test_what_the_format_does_not_hold_is_refused(
    case: str, answers: RoutingDataset, states: MemoryActivations
) -> None:
    parts, told = UNHELD[case]
    refused = fit(answers, states, **parts)
    with pytest.raises(ConfigError) as error:
        switchyard_bytes(refused)
    assert told in str(error.value)
    assert "; fit one that it holds with: prefill-router fit" in str(error.value)
    assert str(error.value).count("; ") == 1  # no reason beside it


@pytest.mark.parametrize(
    ("changed", "told"),
    [
        ({"template": "plain"}, "chat template"),
        ({"encoder": "minilm"}, "minilm isn't read as a causal language model"),
        ({"encoder": "sentence:a/b"}, "causal language model"),
        ({"quantisation": "Q4_1"}, "fake is quantised (Q4_1)"),
    ],
)
def test_other_encoders_are_refused_at_every_step(
    changed: dict[str, str],
    told: str,
    answers: RoutingDataset,
    states: MemoryActivations,
    tmp_path: Path,
) -> None:
    other = dataclasses.replace(MADE_BY, **changed)  # type: ignore[arg-type]
    others = dataclasses.replace(states, made_by=other)
    features = (PrefillConfig(select="last.3"),)
    recipe = Recipe(features=features, predictor=QUICK, shrinkage=False, operating_points=False)
    fitted = fit_router(answers, [others], config=FitConfig(recipe=recipe, resamples=0)).router
    with pytest.raises(ConfigError) as error:
        switchyard_bytes(fitted)
    assert told in str(error.value)
    with pytest.raises(ConfigError) as error:
        switchyard_recipe([others])
    assert told in str(error.value)
    with pytest.raises(ConfigError) as error:
        SwitchyardCheckpoint.read(written(theirs(), tmp_path)).router(other)
    assert told in str(error.value)


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


def missing(*path: str | int) -> Damage:
    def damage(value: Any) -> None:
        for name in path[:-1]:
            value = value[name]
        del value[path[-1]]

    return damage


def put(new: Any, *path: str | int) -> Damage:
    def damage(value: Any) -> None:
        for name in path[:-1]:
            value = value[name]
        value[path[-1]] = new

    return damage


DAMAGED: dict[str, tuple[Damage, str]] = {
    "version": (put(2, "format_version"), "format_version"),
    "view": (put("chat", "encoder", "view"), "encoder.view"),
    "activation": (put("GELU", "architecture", "activation"), "architecture.activation"),
    "ensemble": (put("mean", "architecture", "ensemble_reduction"), "ensemble_reduction"),
    "pooling": (put("mean", "feature_pipeline", "pooling"), "feature_pipeline.pooling"),
    "no encoder": (missing("encoder"), "encoder: Field required"),
    "no networks": (put([], "model_state_dicts"), "model_state_dicts"),
    "no models": (put([], "models"), "models"),
    "last layer": (put([3, 4], "feature_pipeline", "selected_layers"), "must differ and be below"),
    "layer twice": (put([3, 3], "feature_pipeline", "selected_layers"), "must differ and be below"),
    "no layer": (missing("feature_pipeline", "layer_mean", "3"), "layer_mean[3] is missing"),
    "zero std": (
        put(torch.zeros(16), "feature_pipeline", "layer_std", "1"),
        "layer_std[1] holds other numbers; it must be a tensor of finite positive numbers, [16]",
    ),
    "nan": (put(torch.full((16,), torch.nan), "feature_pipeline", "pca_mean"), "other numbers"),
    "integers": (put(torch.ones(16, dtype=torch.long), "feature_pipeline", "pca_mean"), "pca_mean"),
    "list": (put([0.0] * 16, "feature_pipeline", "scaler_mean"), "scaler_mean is a list"),
    "huge": (
        put(torch.ones(1, 1).expand(10**9, 16), "feature_pipeline", "pca_components"),
        "feature_pipeline: 32,000,000,064 numbers; at most",
    ),
    "width": (put(torch.ones(5, 15), "feature_pipeline", "pca_components"), "[any, 16]"),
    **{
        f"no {name}": (missing("model_state_dicts", 1, name), f"{name} of network 1 is missing")
        for name in ("adapters.2.weight", "trunk.0.weight", "trunk.0.bias", "heads.0.bias")
    },
    "head": (put(torch.ones(2, 4), "model_state_dicts", 0, "heads.1.weight"), "[1, 4]"),
    "no sizes": (put(5, "feature_pipeline", "pca_components"), "no tensor of numbers"),
    "many networks": (put([{}] * 1001, "model_state_dicts"), "model_state_dicts"),
}


@pytest.mark.parametrize("case", DAMAGED)
def test_a_checkpoint_with_something_else_in_it_is_refused(case: str, tmp_path: Path) -> None:
    damage, told = DAMAGED[case]
    value = theirs()
    damage(value)
    path = written(value, tmp_path)
    with pytest.raises(FormatError) as error:
        SwitchyardCheckpoint.read(path)
    assert str(error.value).startswith(f"{path}: ")
    assert told in str(error.value)


def test_what_would_fill_the_memory_is_refused_unread(tmp_path: Path) -> None:
    """A network that is named a thousand times, in 0.7 MB, and a file that grows as it is read."""
    value = theirs(targets=1)
    weights = {"adapters.0": (400, 5), "trunk.0": (400, 400), "heads.0": (1, 400)}
    state = {f"{name}.weight": torch.ones(shape) for name, shape in weights.items()}
    state |= {f"{name}.bias": torch.ones(shape[0]) for name, shape in weights.items()}
    value["model_state_dicts"] = [state] * 1000
    path = written(value, tmp_path)
    assert path.stat().st_size < 800_000
    with pytest.raises(FormatError, match="at most 134,217,728 are read"):
        SwitchyardCheckpoint.read(path)
    packed = tmp_path / "packed.pt"
    with ZipFile(switchyard_file(tmp_path)) as whole, ZipFile(packed, "w", ZIP_DEFLATED) as small:
        for name in whole.namelist():
            small.writestr(name, whole.read(name))
    with pytest.raises(FormatError, match="isn't a file of tensors"):
        SwitchyardCheckpoint.read(packed)


class Runs:
    def __reduce__(self) -> tuple[Any, ...]:
        return (Path.touch, (Path("touched"),))


def test_files_of_anything_but_tensors_are_refused_unread(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    whole = switchyard_file(tmp_path).read_bytes()
    contents = {
        "empty": b"",
        "words": b"no tensors",
        "half": whole[: len(whole) // 2],
        "pickle": pickle.dumps({"format_version": 1, "run": Runs()}),
    }
    for name, content in contents.items():
        (tmp_path / name).write_bytes(content)
        with pytest.raises(FormatError, match="isn't a file of tensors"):
            SwitchyardCheckpoint.read(tmp_path / name)
    with pytest.raises(FormatError, match="isn't a file of tensors"):
        SwitchyardCheckpoint.read(written(theirs() | {"run": Runs()}, tmp_path))
    assert not (tmp_path / "touched").exists()
    with pytest.raises(ConfigError, match="can't be read: No such file"):
        SwitchyardCheckpoint.read(tmp_path / "gone.pt")


def switchyard_file(folder: Path) -> Path:
    return written(theirs(), folder)


def test_another_encoder_is_refused(tmp_path: Path) -> None:
    checkpoint = SwitchyardCheckpoint.read(switchyard_file(tmp_path))
    with pytest.raises(ConfigError, match="has 5 layers of the width 16; the checkpoint needs 4"):
        checkpoint.router(dataclasses.replace(MADE_BY, num_layers=5))
