"""Checkpoints in Switchyard's format, made from its description."""

from pathlib import Path
from typing import Any

import numpy as np
import torch


def theirs(*, targets: int = 3, networks: int = 2, seed: int = 0) -> dict[str, Any]:
    """A checkpoint like Switchyard's: different adapters, a scaler and a PCA with means."""
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


def write_checkpoint(value: Any, folder: Path) -> Path:
    torch.save(value, folder / "router.pt")
    return folder / "router.pt"
