"""A router on disk: one folder of JSON and safetensors; loading it runs no code from it.

router.json          the parts that decide: pool, costs, features, predictor, shrinkage, calibrator,
                     policy, output head, and changes of targets if any; the format's version;
                     and statistics of the train rows
weights.safetensors  the arrays of features, predictor, calibrator, output head, reference, changes
split.json           the split it was fitted on
record.json          how it was made: dataset, options, metrics, training curves
cross_fit.*          predictions for the rows that it learned from, by routers that didn't see them
README.md            the card, for people
SHA256SUMS           of all but the card; `sha256sum --check SHA256SUMS` reads it
"""

import hashlib
import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from pydantic import BaseModel, ConfigDict, ValidationError
from safetensors.numpy import save

from prefill_router import files, policy
from prefill_router.calibration import Shrinkage, load_calibrator
from prefill_router.cost import CostEstimator, OutputHead
from prefill_router.data import split_from_dict
from prefill_router.errors import ConfigError, CorruptError, FormatError, upgrade_advice
from prefill_router.features import FeatureExtractor, FeatureSet
from prefill_router.predictors import load_predictor
from prefill_router.remote import (
    PathOrUrl,
    check_place,
    find_files,
    is_free,
    reading,
    replacing_folder,
)
from prefill_router.router import cross_fit
from prefill_router.router.record import PoolChanges, RouterRecord, card
from prefill_router.router.reference import TrainReference
from prefill_router.serialization import Part, Tensors, read_tensors, under
from prefill_router.targets import pool_from_dict

if TYPE_CHECKING:
    from prefill_router.router.router import Router

FORMAT = 6
CHECKED_FILES = ("router.json", "weights.safetensors", "split.json", "record.json")
FILES = (*CHECKED_FILES, *cross_fit.FILES, "README.md", files.CHECKSUMS)
_PER_TARGET = ("median_output", "token_ratio", "least_input", "most_input", "fixed")


class RouterModel(BaseModel):
    """The content of `router.json`."""

    model_config = ConfigDict(extra="forbid")
    format: Literal[6]
    pool: dict[str, Any]
    costs: dict[str, list[float | None]]
    features: dict[str, Any]
    predictor: dict[str, Any]
    shrinkage: dict[str, Any] | None
    calibrator: dict[str, Any] | None
    policy: dict[str, Any]
    reference: dict[str, Any] | None
    output: dict[str, Any] | None
    changes: dict[str, Any] | None = None


def save_router(router: "Router", folder: PathOrUrl | str, *, new: bool = False) -> None:
    """Write a router's folder, whole or not at all; an existing router there is replaced.

    Args:
        router: The router.
        folder: A folder or URL.
        new: Whether nothing may be replaced.

    Raises:
        ConfigError: The folder exists and isn't a router, or the URL can't be written.
        StoreError: The URL was written by another process meanwhile, or nothing may be replaced
            and something is there.
    """
    check_replaceable(folder)
    with replacing_folder(folder, new=new) as temporary:
        files.write_json(temporary / "router.json", _to_dict(router))
        (temporary / "weights.safetensors").write_bytes(save(_collect_tensors(router)))
        files.write_json(temporary / "split.json", router.split.to_dict())
        files.write_json(temporary / "record.json", router.record.model_dump(mode="json"))
        if router.cross_fit is not None:
            router.cross_fit.save(temporary)
        files.write_text(temporary / "README.md", _write_card(router))
        files.write_checksums(temporary, _checked_files(temporary))


def _checked_files(folder: Path) -> list[str]:
    """The files of a router's folder that have checksums: all that decide, and those it has."""
    return [*CHECKED_FILES, *(name for name in cross_fit.FILES if (folder / name).is_file())]


def check_replaceable(folder: PathOrUrl | str) -> None:
    """Check that a router may be written here; worth doing before long work.

    Raises:
        ConfigError: The folder exists and isn't a router, or can't be created.
    """
    if not is_free(folder) and not is_router(folder):  # in this order: one may just be written
        raise ConfigError(f"{folder} exists and isn't a router; name another folder, or remove it")
    check_place(folder)


def load_router(place: PathOrUrl | str) -> "Router":
    """Read a router's folder, on the disk or at a URL, and check everything in it.

    Raises:
        ConfigError: There is no router.
        CorruptError: A file is missing, isn't what was written, or is of another version.
    """
    with reading(place, FILES) as folder:
        return _load_folder(folder)


def _load_folder(folder: Path) -> "Router":
    from prefill_router.router.router import Router

    model = read_checked(folder)
    tensors = _read_tensors(folder / "weights.safetensors")

    def part(name: str, load: Callable[[Mapping[str, Any], Tensors], Any]) -> Any:
        config = getattr(model, name)
        return None if config is None else load(config, under(tensors, f"{name}."))

    try:
        return Router(
            features=part("features", FeatureSet.from_dict),
            predictor=part("predictor", load_predictor),
            shrinkage=part("shrinkage", Shrinkage.from_dict),
            calibrator=part("calibrator", load_calibrator),
            policy=policy.from_dict(model.policy),
            reference=part("reference", TrainReference.from_dict),
            output=part("output", OutputHead.from_dict),
            changes=part("changes", PoolChanges.from_dict),
            cross_fit=cross_fit.CrossFit.load(folder),
            costs=read_costs(model, folder),
            split=split_from_dict(read_json(folder / "split.json"), source=folder / "split.json"),
            record=RouterRecord.model_validate(read_json(folder / "record.json")),
        )
    except (FormatError, ConfigError, CorruptError, ValidationError) as error:
        raise CorruptError(f"{folder} is inconsistent: {error}") from None


def read_checked(folder: Path) -> RouterModel:
    """The content of `router.json`; every file is checked.

    Raises:
        ConfigError: There is no router.
        CorruptError: A file is missing, isn't what was written, or is of another version.
    """
    if not is_router(folder):
        raise ConfigError(f"{folder} isn't a router's folder; make one with: prefill-router fit")
    files.verify_checksums(folder, _checked_files(folder))
    return _read_model(folder)


def read_costs(model: RouterModel, folder: Path) -> CostEstimator:
    """The pool and its cost estimator.

    Raises:
        FormatError, ConfigError: The values are invalid, or contradict each other.
        CorruptError: Some values are missing, negative or infinite.
    """
    pool = pool_from_dict(model.pool, source=folder / "router.json")
    return CostEstimator(pool, **_costs_from(model.costs, len(pool), folder))


def fingerprint(place: PathOrUrl | str) -> str:
    """A hash, 16 hexadecimal digits, of everything in a router's folder that decides."""
    names = ("router.json", "weights.safetensors")
    with reading(place, names) as folder:
        digests = [files.file_digest(folder / name) for name in names]
    return hashlib.sha256(" ".join(digests).encode()).hexdigest()[:16]


def is_router(folder: PathOrUrl | str) -> bool:
    """Whether a folder is a router's, complete or not."""
    return bool(find_files(folder, CHECKED_FILES))


def _fitted_parts(router: "Router") -> "dict[str, FeatureSet | Part | None]":
    """The fitted parts, by their keys in `router.json`, which also prefix their arrays' names."""
    names = ("features", "predictor", "shrinkage", "calibrator", "policy", "reference", "output")
    changes = {} if router.changes is None else {"changes": router.changes}
    return {name: getattr(router, name) for name in names} | changes


def _to_dict(router: "Router") -> dict[str, Any]:
    costs = {
        name: [None if np.isnan(v) else v for v in getattr(router.costs, name).tolist()]
        for name in _PER_TARGET
    }
    plain = {
        name: None if part is None else part.to_dict()
        for name, part in _fitted_parts(router).items()
    }
    return {"format": FORMAT, "pool": router.pool.public().to_dict(), "costs": costs, **plain}


def _collect_tensors(router: "Router") -> dict[str, np.ndarray]:
    return {
        f"{place}.{name}": np.ascontiguousarray(value)
        for place, part in _fitted_parts(router).items()
        if part is not None
        for name, value in part.tensors().items()
    }


def _read_model(folder: Path) -> RouterModel:
    value = read_json(folder / "router.json")
    version: Any = value.get("format") if isinstance(value, dict) else None
    if version != FORMAT:
        is_newer = isinstance(version, int) and version > FORMAT
        fix = upgrade_advice(FORMAT) if is_newer else f"this package reads {FORMAT}: fit it again"
        raise CorruptError(f"{folder / 'router.json'} has format {version}; {fix}")
    try:
        return RouterModel.model_validate(value)
    except ValidationError as error:
        first = error.errors()[0]
        place = ".".join(map(str, first["loc"]))
        raise CorruptError(f"{folder / 'router.json'}: {place}: {first['msg']}") from None


def read_json(path: Path) -> Any:
    """The content of a JSON file of a router's folder.

    Raises:
        CorruptError: The file isn't JSON.
    """
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:  # covers bad JSON and bad UTF-8
        raise CorruptError(f"{path} isn't JSON: {error}; copy the folder again") from None


def _read_tensors(path: Path) -> dict[str, np.ndarray]:
    tensors = read_tensors(path).tensors
    broken = [name for name, value in tensors.items() if not np.isfinite(value).all()]
    if broken:
        raise CorruptError(f"{path} holds numbers that aren't finite in {broken}")
    return tensors


def _costs_from(
    values: dict[str, list[float | None]], size: int, folder: Path
) -> dict[str, np.ndarray]:
    if set(values) != set(_PER_TARGET) or any(len(v) != size for v in values.values()):
        raise CorruptError(
            f"{folder / 'router.json'}: costs must hold {size} of each of {_PER_TARGET}"
        )
    counts = {name: np.array(v, dtype=np.float64) for name, v in values.items()}  # None becomes NaN
    if any((array < 0).any() or np.isinf(array).any() for array in counts.values()):
        raise CorruptError(f"{folder / 'router.json'}: costs hold negative or infinite numbers")
    return counts


def _write_card(router: "Router") -> str:
    encoders = [p.to_dict() for p in router.features.provenances]
    return card(router.record, router.pool, _describe_parts(router), encoders, version=FORMAT)


def _describe_parts(router: "Router") -> list[tuple[str, str]]:
    """The features and other parts in words, for the card."""
    rows = []
    for family in router.features.families:
        if isinstance(family, FeatureExtractor):
            rows += [
                (
                    f"prefill states, for {name}",
                    f"{b.provenance.encoder} {b.site.name}, PCA {b.dim}",
                )
                for name, b in zip(family.targets, family.block_of_target(), strict=True)
            ]
        else:
            rows.append((family.kind, f"{family.width} columns"))
    shrinkage, calibrator = router.shrinkage, router.calibrator
    rows.append(("predictor", router.predictor.kind))
    rows.append(("shrinkage", "none" if shrinkage is None else shrinkage.words))
    rows.append(("calibration", "none" if calibrator is None else calibrator.kind))
    rows.append(("cost", "Equation 1" if router.output is None else router.output.words))
    return [*rows, ("policy", str(router.policy.to_dict()["kind"]))]
