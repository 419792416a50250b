"""A part is its fields: what is written, read back and refused follows from what it declares."""

import json
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from types import ModuleType
from typing import Annotated, Any, ClassVar

import numpy as np
import pytest
from jaxtyping import Float32, Float64, Int32
from numpy.typing import NDArray
from pydantic import Field, PositiveInt

from prefill_router.activations import MemoryActivations
from prefill_router.calibration import (
    Calibrator,
    CalibratorFit,
    calibrators as cals,
    load_calibrator,
)
from prefill_router.errors import ConfigError, CorruptError
from prefill_router.features import Family, PromptStates, base as families
from prefill_router.features.base import FamilyConfig
from prefill_router.policy import Lambda, Policy, from_dict, policies
from prefill_router.predictors import (
    Predictor,
    PredictorConfig,
    base as predictors,
    load_predictor,
)
from prefill_router.serialization import Kinds, Names, Part, Saved

Row = NDArray[Any]


@dataclass(frozen=True, eq=False)
class Inner(Part):
    axes: ClassVar[Mapping[str, str]] = {"row": "rows"}
    table: Float32[NDArray[np.float32], "row feature"]
    places: Int32[NDArray[np.int32], "2 row"]


@dataclass(frozen=True, eq=False)
class FullPart(Part):
    kind: ClassVar[str] = "whole"
    noun: ClassVar[str] = "thing"
    axes: ClassVar[Mapping[str, str]] = {"target": "targets", "feature": "width", "extra": "extra"}
    targets: Names
    share: Annotated[float, Field(ge=0, le=1)]
    rates: Annotated[
        Float32[NDArray[np.float32], " target"], Field(ge=0, le=1, title="probabilities")
    ]
    scores: Annotated[Float64[NDArray[np.float64], " target"], Saved(form=list[float | None])]
    inner: Inner
    more: Float32[NDArray[np.float32], "extra target"] | None
    pairs: tuple[tuple[str, PositiveInt], ...] = ()
    note: Annotated[str, Saved(sparse=True)] = ""
    here: Annotated[str, Saved(never=True)] = "nowhere"

    def verify(self) -> None:
        if self.note == "bad":
            raise ConfigError("its note is bad")


def make_part(*, more: bool = True, note: str = "") -> FullPart:
    random = np.random.default_rng(0)
    return FullPart(
        targets=("a", "b"),
        share=0.5,
        rates=np.array([0.25, 1], np.float32),
        scores=np.array([0.1, np.nan]),
        inner=Inner(random.random((3, 4), np.float32), np.array([[0, 1, 2], [3, 4, 5]], np.int32)),
        more=np.ones((5, 2), np.float32) if more else None,
        pairs=(("x", 1), ("y", 2)),
        note=note,
        here="here",
    )


def test_what_is_written() -> None:
    content = make_part().to_dict()
    assert content == {
        "kind": "whole",
        "targets": ["a", "b"],
        "width": 4,
        "extra": 5,
        "share": 0.5,
        "scores": [0.1, None],
        "rows": 3,
        "pairs": [["x", 1], ["y", 2]],
    }
    assert set(make_part().tensors()) == {"rates", "table", "places", "more"}
    assert make_part(more=False).to_dict()["extra"] is None
    assert "more" not in make_part(more=False).tensors()
    assert make_part(note="n").to_dict()["note"] == "n"


@pytest.mark.parametrize("more", [True, False])
def test_it_comes_back(*, more: bool) -> None:
    part = make_part(more=more, note="n")
    again = FullPart.from_dict(json.loads(json.dumps(part.to_dict())), part.tensors())
    assert again.to_dict() == part.to_dict()
    assert (again.targets, again.pairs, again.note, again.here) == (
        ("a", "b"),
        (("x", 1), ("y", 2)),
        "n",
        "nowhere",
    )
    np.testing.assert_array_equal(again.scores, part.scores)
    for name, array in part.tensors().items():
        np.testing.assert_array_equal(again.tensors()[name], array)


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"share": 2}, "the whole thing: share: "),
        ({"share": float("nan")}, "share: Input should be a finite number"),
        ({"share": "0.5"}, "share: "),
        ({"targets": ["a", "a"]}, "aren't distinct names"),
        ({"targets": []}, "targets: "),
        ({"targets": ["a"]}, r"array scores must be finite float64 \(1,\)"),
        ({"scores": [0.1]}, r"array scores must be finite float64 \(2,\); got float64 \(1,\)"),
        ({"scores": [0.1, [1]]}, r"scores\.1"),
        ({"width": 5}, r"array table must be finite float32 \(3, 5\); got float32 \(3, 4\)"),
        ({"width": True}, "width: "),
        ({"width": 10**40}, r"array table must be"),
        ({"rows": 2}, r"array table must be finite float32 \(2, 4\)"),
        ({"extra": None}, "unknown arrays .'more'."),
        ({"extra": 0}, "extra: "),
        ({"pairs": [["x", 0]]}, r"pairs\.0\.1"),
        ({"pairs": [["x"]]}, r"pairs\.0"),
        ({"note": 3}, "note: "),
        ({"note": "bad"}, "the whole thing is inconsistent: its note is bad"),
        ({"here": "there"}, "unknown options .'here'."),
        ({"kind": "inner"}, "kind: "),
        ({"share": {1, 2}}, "isn't JSON"),
    ],
)
def test_plain_values_are_refused_by_name(changes: dict[str, Any], why: str) -> None:
    with pytest.raises(CorruptError, match=why):
        FullPart.from_dict(make_part().to_dict() | changes, make_part().tensors())


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"rates": None}, "the whole thing lacks the arrays .'rates'."),
        ({"other": np.zeros(1)}, "has the unknown arrays .'other'."),
        (
            {"rates": np.array([0.5, 2], np.float32)},
            r"probabilities are from 0\.5 to 2.*in \[0, 1\]",
        ),
        ({"rates": np.array([0.5, np.nan], np.float32)}, "array rates must be finite"),
        ({"rates": np.array([0.5, 1.0])}, "got float64"),
        ({"places": np.zeros((3, 3), np.int32)}, r"array places must be finite int32 \(2, 3\)"),
        ({"places": np.zeros((2, 3), np.int64)}, "got int64"),
        ({"table": np.zeros((12,), np.float32)}, r"\(3, 4\); got float32 \(12,\)"),
        ({"more": np.ones((5, 3), np.float32)}, r"\(5, 2\)"),
    ],
)
def test_arrays_are_refused_by_name(changes: dict[str, Any], why: str) -> None:
    tensors = {n: v for n, v in (make_part().tensors() | changes).items() if v is not None}
    with pytest.raises(CorruptError, match=why):
        FullPart.from_dict(make_part().to_dict(), tensors)


def test_options_that_somebody_wrote_contradict_themselves() -> None:
    with pytest.raises(ConfigError, match="its note is bad"):
        FullPart.parse(make_part().to_dict() | {"note": "bad"}, make_part().tensors())


@dataclass(frozen=True, eq=False)
class EvenOdds(Predictor):
    kind: ClassVar[str] = "even_odds"
    middle: Float32[NDArray[np.float32], " feature"]

    @property
    def width(self) -> int:
        return len(self.middle)

    def correctness(self, features: Row) -> Row:
        return np.full((len(features), len(self.targets)), 0.5)


@dataclass(frozen=True, eq=False)
class Halves(Calibrator):
    kind: ClassVar[str] = "halves"
    factor: Float32[NDArray[np.float32], " target"]

    @classmethod
    def fit(cls, correctness: Row, correct: Row, targets: tuple[str, ...]) -> CalibratorFit:
        del correctness, correct
        return CalibratorFit(cls(targets, np.full(len(targets), 0.5, np.float32)))

    def _map(self, correctness: Row) -> Row:
        return correctness * self.factor.astype(np.float64)


@dataclass(frozen=True, eq=False)
class Lengths(Family):
    kind: ClassVar[str] = "lengths"
    unit: PositiveInt

    @property
    def width(self) -> int:
        return 1

    def read(self, reading: PromptStates) -> Row:
        lengths = [[len(str(prompt)) / self.unit] for prompt in reading.prompts]
        return np.array(lengths, dtype=np.float32).reshape(-1, 1)


@dataclass(frozen=True)
class Half(Policy):
    kind: ClassVar[str] = "half"
    share: float = 0.5

    def path(self, correctness: Row, cost: Row, *, targets: tuple[str, ...] = ()) -> Any:
        return Lambda().path(correctness, self.share * cost, targets=targets)


NEW: dict[str, tuple[Any, str, Any, Any]] = {
    "predictor": (
        predictors.PREDICTORS,
        "even_odds",
        predictors.PredictorEntry(PredictorConfig, EvenOdds, "Even odds", ""),
        EvenOdds(("a", "b"), np.ones(3, np.float32)),
    ),
    "features": (
        families.FAMILIES,
        "lengths",
        families.FamilyEntry(FamilyConfig, Lengths),
        Lengths(10),
    ),
    "calibrator": (
        cals._CALIBRATORS,
        "halves",
        Halves,
        Halves(("a", "b"), np.array([0.5, 1], np.float32)),
    ),
    "policy": (policies.POLICIES, "half", Half, Half(share=0.25)),
}


@pytest.mark.parametrize("sort", NEW)
def test_a_kind_is_one_file_and_one_line(sort: str, monkeypatch: pytest.MonkeyPatch) -> None:
    kinds, kind, entry, part = NEW[sort]
    load = {
        "predictor": load_predictor,
        "features": families.load_family,
        "calibrator": load_calibrator,
        "policy": lambda config, _: from_dict(config),
    }[sort]
    with pytest.raises(CorruptError, match="known are"):
        load(part.to_dict(), part.tensors())
    file = ModuleType("made_here")
    monkeypatch.setattr(file, "ENTRY", entry, raising=False)
    monkeypatch.setitem(sys.modules, f"{kinds._package}.made_here", file)
    monkeypatch.setitem(kinds._homes, kind, "made_here:ENTRY")
    again = load(json.loads(json.dumps(part.to_dict())), part.tensors())
    assert type(again) is type(part)
    assert again.to_dict() == part.to_dict()
    assert kinds.find(kind) is entry
    for name, array in part.tensors().items():
        with pytest.raises(CorruptError, match=name):
            load(part.to_dict(), part.tensors() | {name: array[:0]})
    for name in part.to_dict().keys() - {"kind"}:
        with pytest.raises(CorruptError, match=name):
            load(part.to_dict() | {name: None}, part.tensors())


def test_kinds_tell_what_there_is() -> None:
    kinds = Kinds[type[Policy]]("policy", "prefill_router.policy", {"lambda": "policies:Lambda"})
    assert kinds.names == ("lambda",)
    assert kinds.find("lambda") is Lambda
    with pytest.raises(ConfigError, match=r"there is no policy 'x'; known are \['lambda'\]"):
        kinds.find("x")
    with pytest.raises(ConfigError, match="MemoryActivations belongs to no kind"):
        kinds.kind_of(MemoryActivations.__new__(MemoryActivations))
    for kind in (None, 3, ["lambda"], "policies:Lambda", "x"):
        with pytest.raises(CorruptError, match="known are"):
            kinds.of_saved({"kind": kind})
