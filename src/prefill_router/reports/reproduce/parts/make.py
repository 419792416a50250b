"""Every part, made once and kept."""

import hashlib
import json
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import Any, Final

from prefill_router import __version__, files
from prefill_router.errors import PrefillRouterError
from prefill_router.reports.reproduce.parts.encoders import ablation_part, sweep_part
from prefill_router.reports.reproduce.parts.end_to_end import end_to_end_part
from prefill_router.reports.reproduce.parts.scene import Scene
from prefill_router.reports.reproduce.parts.studies import (
    benchmark_part,
    domains_part,
    ratio_part,
    seeds_part,
)
from prefill_router.studies.fitted import priced

PARTS: Final[Mapping[str, Callable[[Scene], dict[str, Any]]]] = {
    "sweep": sweep_part,
    "ablation": ablation_part,
    "ratio": ratio_part,
    "end_to_end": end_to_end_part,
    "shift_domains": domains_part,
    "shift_benchmark": benchmark_part,
    "seeds": seeds_part,
}
"""The parts by name, the quick ones first."""


def make_parts(
    scene: Scene, folder: Path | None, *, only: Collection[str] | None = None
) -> dict[str, dict[str, Any]]:
    """Every part of a pool; `{"missing": why}` where one can't be made.

    Args:
        scene: What they are made from.
        folder: Keeps each part as soon as it is made, and gives back those that it holds of the
            same routers, data, split and options; nothing is kept if not given.
        only: The parts to make; all if not given.
    """
    of, made = _digest(scene), {}
    wanted = {name: make for name, make in PARTS.items() if only is None or name in only}
    with scene.progress.task("studies", total=float(len(wanted))) as advance:
        for name, make in wanted.items():
            place = None if folder is None else folder / f"{name}.json"
            value = None if place is None else _held(place, of)
            if value is None:
                value = _made(make, scene)
                if place is not None and "missing" not in value:  # what lacks may come
                    files.write_json(place, {"of": of, "value": value})
            made[name] = value
            advance(note=name)
    return made


def _made(make: Callable[[Scene], dict[str, Any]], scene: Scene) -> dict[str, Any]:
    try:
        return make(scene)
    except PrefillRouterError as error:
        return {"missing": str(error)}


def _digest(scene: Scene) -> str:
    """What a part depends on."""
    said = {
        "package": __version__,
        "data": scene.found.dataset.fingerprint,
        "prices": priced(scene.found.dataset),
        "split": scene.drawn.to_dict(),
        "options": scene.options.to_dict(),
        "encoders": list(scene.encoders),
        "states": sorted(str(store.provenance) for store in scene.states),
        "recipes": {name: recipe.to_dict() for name, recipe in scene.recipes.items()},
        "charge": scene.charge.said,
        "speeds": {name: vars(speed) for name, speed in sorted(scene.speeds.items())},
    }
    return hashlib.sha256(json.dumps(said, sort_keys=True).encode()).hexdigest()


def _held(place: Path, of: str) -> dict[str, Any] | None:
    try:
        value = json.loads(place.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        return None
    if not isinstance(value, dict) or value.get("of") != of:
        return None
    held = value.get("value")
    return held if isinstance(held, dict) else None
