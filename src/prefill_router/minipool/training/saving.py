"""Writing a trained model: a folder as `transformers` reads it, with its curves."""

import platform
import sys
from pathlib import Path
from typing import Any

import torch
import transformers
from transformers import GenerationConfig

from prefill_router import files
from prefill_router.minipool.training.loop import Point, Trained
from prefill_router.minipool.training.profiles import Profile

_LONGEST_ANSWER = 32


def save(trained: Trained, tokenizer: Any, profile: Profile, folder: Path) -> None:
    """Write weights (bfloat16), tokenizer, curves and how they were made, whole or not at all."""
    network: Any = trained.network
    parameters = sum(p.numel() for p in network.parameters())
    network.generation_config = GenerationConfig(  # type: ignore[no-untyped-call]
        do_sample=False,
        max_new_tokens=_LONGEST_ANSWER,
        pad_token_id=network.config.pad_token_id,
        eos_token_id=network.config.eos_token_id,
    )
    with files.replacing_folder(folder) as temporary:
        network.to(torch.bfloat16).save_pretrained(temporary)
        tokenizer.save_pretrained(temporary)
        files.write_text(temporary / "curves.csv", _table(trained.curve))
        files.write_json(temporary / "training.json", _record(trained, profile, parameters))


def _table(curve: list[Point]) -> str:
    names = list(curve[0].accuracy) if curve else []
    rows = [["step", "loss", *names]]
    for point in curve:
        shares = [f"{point.accuracy[name]:.3f}" for name in names]
        rows.append([str(point.step), f"{point.loss:.4f}", *shares])
    return "".join(",".join(row) + "\n" for row in rows)


def _record(trained: Trained, profile: Profile, parameters: int) -> dict[str, Any]:
    return {
        "command": f"python -m prefill_router.minipool.training --out DIR --only {profile.name}",
        "seed": profile.seed,
        "profile": {**vars(profile), "skills": {k: list(v) for k, v in profile.skills.items()}},
        "parameters": parameters,
        "seconds": round(trained.seconds, 1),
        "cpu_seconds": round(trained.cpu_seconds, 1),
        "threads": torch.get_num_threads(),
        "versions": {
            "python": sys.version.split()[0],
            "torch": torch.__version__,
            "transformers": transformers.__version__,
        },
        "machine": platform.machine(),
    }
