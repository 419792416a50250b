"""The search space: families of features x predictors x calibrations, with options to try.

features:                              # by name: families side by side
  embedding:
    - {kind: embedding, try: {dim: [null, 128]}}
predictors:
  logistic: {kind: logistic, try: {scaling: [columns, rows]}}
calibrations: [none, platt]

The first entry of each list is tried first, so put cheap and proven ones there.
"""

import hashlib
import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib.resources import as_file, files
from itertools import product
from pathlib import Path
from typing import Any, final

from prefill_router.calibration import CalibratorKind, find
from prefill_router.errors import ConfigError, FormatError, PrefillRouterError
from prefill_router.fitting import Recipe, recipe_from_dict
from prefill_router.yaml_files import read_yaml

DEFAULT = "default"
"""The name of the packaged space."""
Options = Mapping[str, Any]


@final
@dataclass(frozen=True)
class SearchAxis:
    """An option and the values to try.

    Attributes:
        part: Index of the family that has the option; 0 for a predictor.
        option: The option's name.
        values: The values to try, distinct.
    """

    part: int
    option: str
    values: tuple[Any, ...]


@final
@dataclass(frozen=True)
class Branch:
    """A named set of features, or a named predictor.

    Attributes:
        name: Its name in tables.
        fixed: The kinds with their fixed options.
        axes: The options to vary.
    """

    name: str
    fixed: tuple[Options, ...]
    axes: tuple[SearchAxis, ...]

    @property
    def size(self) -> int:
        """The number of combinations."""
        return math.prod(len(axis.values) for axis in self.axes)

    def at(self, places: Sequence[int]) -> list[dict[str, Any]]:
        """The kinds with their options, given an index on each axis."""
        kinds = [dict(family) for family in self.fixed]
        for axis, place in zip(self.axes, places, strict=True):
            kinds[axis.part][axis.option] = axis.values[place]
        return kinds

    def all_places(self) -> Iterator[tuple[int, ...]]:
        """Every combination of indices."""
        return product(*(range(len(axis.values)) for axis in self.axes))


@final
@dataclass(frozen=True)
class Candidate:
    """A single fit: features and a predictor, with or without rows for calibration.

    Attributes:
        features: The name of the set of features.
        predictor: The predictor's name.
        places: Index on each axis of the features, then of the predictor.
        calibrated: Whether rows are held out of the fit, on which all calibrators are tried.
    """

    features: str
    predictor: str
    places: tuple[tuple[int, ...], tuple[int, ...]]
    calibrated: bool


@final
@dataclass(frozen=True)
class Space:
    """All configurations.

    Attributes:
        features: Sets of features by name.
        predictors: Predictors by name.
        calibrations: Kinds of calibration, distinct.
    """

    features: Mapping[str, Branch]
    predictors: Mapping[str, Branch]
    calibrations: tuple[CalibratorKind, ...]

    @property
    def size(self) -> int:
        """The number of distinct configurations."""
        return self._fits * len(self.calibrations)

    @property
    def _fits(self) -> int:
        return sum(b.size for b in self.features.values()) * sum(
            b.size for b in self.predictors.values()
        )

    @property
    def candidates(self) -> int:
        """The number of fits per fold for the whole space."""
        return self._fits * len(self.held_out)

    @property
    def held_out(self) -> tuple[bool, ...]:
        """The values of `Candidate.calibrated` that the calibrations need."""
        kinds = {kind != "none" for kind in self.calibrations}
        return tuple(sorted(kinds))

    def kinds(self, candidate: Candidate) -> tuple[CalibratorKind, ...]:
        """The calibrations that one fit can be scored with."""
        return tuple(k for k in self.calibrations if (k != "none") == candidate.calibrated)

    def all_candidates(self) -> Iterator[Candidate]:
        """Every fit, in the order of the file."""
        for calibrated in self.held_out:
            for predictor, features in product(self.predictors.values(), self.features.values()):
                for places in product(features.all_places(), predictor.all_places()):
                    yield Candidate(features.name, predictor.name, places, calibrated)

    def recipe(self, candidate: Candidate, calibration: CalibratorKind = "none") -> Recipe:
        """The recipe of one configuration."""
        feature_places, predictor_places = candidate.places
        return recipe_from_dict(
            {
                "features": self.features[candidate.features].at(feature_places),
                "predictor": self.predictors[candidate.predictor].at(predictor_places)[0],
                "calibration": calibration,
            }
        )

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON, as the file has them."""
        return {
            "features": {name: _branch_to_list(branch) for name, branch in self.features.items()},
            "predictors": {
                name: _branch_to_list(branch)[0] for name, branch in self.predictors.items()
            },
            "calibrations": list(self.calibrations),
        }


def key_of(recipe: Recipe) -> str:
    """A short name that identifies a recipe by its content."""
    text = json.dumps(recipe.to_dict(), sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def read_space(name: str) -> Space:
    """The space of a YAML file, or the packaged one, `default`.

    Raises:
        FormatError: The file is missing, isn't YAML, or has unknown entries.
    """
    if name == DEFAULT and not Path(name).exists():
        with as_file(files("prefill_router_lab.search") / "default.yaml") as path:
            return _read_file(path)
    return _read_file(Path(name))


def _read_file(path: Path) -> Space:
    try:
        return space_from_dict(read_yaml(path))
    except PrefillRouterError as error:
        raise FormatError(str(error), file=path) from None


def space_from_dict(value: Any) -> Space:
    """The space of plain values; every value of every option is checked on its own.

    Raises:
        ConfigError: An entry is missing, unknown, invalid or repeated.
    """
    if not isinstance(value, Mapping) or set(value) - {"features", "predictors", "calibrations"}:
        raise ConfigError("a space is a mapping with features, predictors and calibrations")
    kinds = value.get("calibrations", ["none"])
    if not isinstance(kinds, list) or not kinds or len(set(map(str, kinds))) < len(kinds):
        raise ConfigError(f"calibrations are {kinds!r}; list at least one, and none twice")
    space = Space(
        _read_branches(value.get("features"), "features"),
        _read_branches(value.get("predictors"), "predictors"),
        tuple(find(str(kind)).kind for kind in kinds),
    )
    _check_values(space)
    return space


def _read_branches(value: Any, what: str) -> dict[str, Branch]:
    if not isinstance(value, Mapping) or not value:
        raise ConfigError(f"a space needs {what}, by name")
    return {str(name): _read_branch(str(name), entry) for name, entry in value.items()}


def _read_branch(name: str, value: Any) -> Branch:
    fixed, axes = list[Options](), list[SearchAxis]()
    for part, entry in enumerate(value if isinstance(value, list) else [value]):
        options = {"kind": entry} if isinstance(entry, str) else entry
        if not isinstance(options, Mapping) or "kind" not in options:
            raise ConfigError(f"{name!r} needs a kind, or a mapping with one, not {entry!r}")
        values_by_option = options.get("try", {})
        if not isinstance(values_by_option, Mapping):
            raise ConfigError(f"{name!r}: try is a mapping of options to lists of values")
        axes += [
            _read_axis(name, part, str(option), values)
            for option, values in values_by_option.items()
        ]
        fixed.append({k: v for k, v in options.items() if k != "try"})
    if not fixed:
        raise ConfigError(f"{name!r} is empty; name at least one kind")
    return Branch(name, tuple(fixed), tuple(axes))


def _read_axis(name: str, part: int, option: str, values: Any) -> SearchAxis:
    if not isinstance(values, list) or not values:
        raise ConfigError(f"{name!r}: try lists values of {option}, at least one, not {values!r}")
    try:
        distinct = {json.dumps(value) for value in values}
    except TypeError:
        raise ConfigError(f"{name!r}: try lists values of {option} that no option takes") from None
    if len(distinct) < len(values):
        raise ConfigError(f"{name!r}: try repeats a value of {option}")
    return SearchAxis(part, option, tuple(values))


def _check_values(space: Space) -> None:
    """Build each value of each option once, and check that no configuration has two names."""
    first, other = next(iter(space.features.values())), next(iter(space.predictors.values()))
    names: dict[str, str] = {}
    for branch in (*space.features.values(), *space.predictors.values()):
        reads = branch.name in space.features and space.features[branch.name] is branch
        for places in branch.all_places():
            kinds = branch.at(places)
            recipe = recipe_from_dict(
                {
                    "features": kinds if reads else first.at([0] * len(first.axes)),
                    "predictor": other.at([0] * len(other.axes))[0] if reads else kinds[0],
                }
            )
            same = f"{reads} {key_of(recipe)}"
            if same in names:
                raise ConfigError(f"{branch.name!r} repeats a configuration of {names[same]!r}")
            names[same] = branch.name


def _branch_to_list(branch: Branch) -> list[dict[str, Any]]:
    families = [dict(family) for family in branch.fixed]
    for axis in branch.axes:
        families[axis.part].setdefault("try", {})[axis.option] = list(axis.values)
    return families
