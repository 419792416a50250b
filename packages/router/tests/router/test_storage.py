import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from packages.router.tests.router.fixtures import with_encoder
from prefill_router import files
from prefill_router.data import RoutingDataset
from prefill_router.errors import ConfigError, CorruptError
from prefill_router.router import CrossFit, FoldChoices, Router, cross_fit, fingerprint
from prefill_router.router.light import read_light
from prefill_router.router.storage import CHECKED_FILES, FILES
from prefill_router.targets import Pool
from prefill_router.testing import FakeEncoder

pytestmark = pytest.mark.slow


@pytest.fixture
def router_folder(router: Router, tmp_path: Path) -> Path:
    router.save(tmp_path / "router")
    return tmp_path / "router"


def test_save_then_load_gives_identical_decisions(
    router: Router, router_folder: Path, encoder: FakeEncoder, answers: RoutingDataset
) -> None:
    again = with_encoder(Router.load(router_folder), encoder)
    mine, theirs = router.predict(answers), again.predict(answers)
    np.testing.assert_array_equal(mine.correctness, theirs.correctness)
    np.testing.assert_array_equal(mine.estimated_cost, theirs.estimated_cost)
    assert mine.scale == theirs.scale
    assert again.split.to_dict() == router.split.to_dict()
    assert again.record.model_dump(mode="json") == router.record.model_dump(mode="json")


def test_folder_holds_what_is_documented_and_can_be_read_by_others(router_folder: Path) -> None:
    assert sorted(p.name for p in router_folder.iterdir()) == sorted(
        set(FILES) - set(cross_fit.FILES)
    )
    assert {p.stat().st_mode & 0o044 for p in router_folder.iterdir()} == {0o044}


def test_saving_over_a_router_replaces_it_and_over_anything_else_is_refused(
    router: Router, router_folder: Path, tmp_path: Path
) -> None:
    router.save(router_folder)
    assert [p.name for p in tmp_path.iterdir()] == ["router"]
    other = tmp_path / "notes"
    other.mkdir()
    (other / "diary.txt").write_text("mine")
    with pytest.raises(ConfigError, match="isn't a router"):
        router.save(other)
    assert (other / "diary.txt").read_text() == "mine"


@pytest.mark.parametrize("name", [*CHECKED_FILES, files.CHECKSUMS])
def test_flipped_byte_anywhere_is_refused(router_folder: Path, name: str) -> None:
    content = (router_folder / name).read_bytes()
    for place in np.random.default_rng(0).integers(0, len(content), 20).tolist():
        flipped = bytearray(content)
        flipped[place] ^= 0x10
        (router_folder / name).write_bytes(bytes(flipped))
        with pytest.raises(CorruptError, match=router_folder.name):
            Router.load(router_folder)


@pytest.mark.parametrize("name", [*CHECKED_FILES, files.CHECKSUMS])
def test_missing_or_truncated_file_is_refused(router_folder: Path, name: str) -> None:
    content = (router_folder / name).read_bytes()
    (router_folder / name).write_bytes(content[: len(content) // 2])
    with pytest.raises(CorruptError):
        Router.load(router_folder)
    (router_folder / name).unlink()
    with pytest.raises(CorruptError, match="lacks the file"):
        Router.load(router_folder)


def test_card_may_be_edited(router_folder: Path) -> None:
    (router_folder / "README.md").write_text("Our own words.")
    assert Router.load(router_folder).pool.names


def test_no_router_there(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="isn't a router's folder"):
        Router.load(tmp_path)
    with pytest.raises(ConfigError, match="isn't a router's folder"):
        Router.load(tmp_path / "nowhere")


def reseal(folder: Path) -> None:
    files.write_checksums(folder, list(CHECKED_FILES))


def test_tensors_of_the_wrong_shape_name_or_value_are_refused(router_folder: Path) -> None:
    path = router_folder / "weights.safetensors"
    content = load_file(path)
    for name, value in content.items():
        shorter = {**content, name: np.ascontiguousarray(value[..., :-1])}
        without = {key: other for key, other in content.items() if key != name}
        infinite = {**content, name: np.full_like(value, np.inf)}
        for tensors in (shorter, without, infinite, {**content, "predictor.extra": value}):
            save_file(tensors, path)
            reseal(router_folder)
            with pytest.raises(CorruptError):
                Router.load(router_folder)


@pytest.mark.parametrize(
    ("kind", "shape", "size", "why"),
    [
        ("BF16", [1], 2, "of the type BF16"),
        ("F8_E4M3", [1], 1, "of the type F8_E4M3"),
        ("F32", [0, 2**62], 0, "of the shape"),
    ],
)
def test_crafted_weights_are_refused_with_the_reason(
    router_folder: Path, kind: str, shape: list[int], size: int, why: str
) -> None:
    row = {"dtype": kind, "shape": shape, "data_offsets": [0, size]}
    header = json.dumps({"features.a": row}).encode()
    start = len(header).to_bytes(8, "little")
    (router_folder / "weights.safetensors").write_bytes(start + header + bytes(size))
    reseal(router_folder)
    with pytest.raises(CorruptError, match=why):
        Router.load(router_folder)


@pytest.mark.parametrize(
    ("place", "value"),
    [
        (("format",), 7),
        (("format",), 0),
        (("format",), None),
        (("pool", "targets"), []),
        (("costs", "median_output"), [1.0]),
        (("costs",), {}),
        (("costs", "token_ratio"), [-1.0, 1.0, 1.0]),
        (("costs", "most_input"), [1.0, float("inf"), 1.0]),
        (("features", "families", 0, "targets"), ["c", "b", "a"]),
        (("predictor", "kind"), "another"),
        (("predictor", "targets"), ["a", "b", "c"]),
        (("features", "families", 0, "block_of"), [7, 7, 7]),
        (("features", "families", 0, "blocks"), []),
        (("features", "families", 0, "kind"), "another"),
        (("features", "families"), []),
        (("features", "families"), {"kind": "prefill"}),
        (("calibrator",), {"kind": "another"}),
        (("shrinkage",), {}),
        (("shrinkage", "choice"), 2.0),
        (("shrinkage", "base", 0), -0.5),
        (("shrinkage", "targets"), ["c", "b", "a"]),
        (("policy",), {"kind": "another"}),
        (("policy",), {"kind": "threshold", "strong": "nobody", "weak": "target-0"}),
        (("reference", "columns"), [0, 0, 1, 2, 3, 4, 5, 6]),
        (("reference", "columns", 0), 8),
        (("reference", "accuracy"), [0.5]),
        (("reference", "accuracy", 0), 1.5),
        (("reference", "rows"), 0),
        (("reference", "counts", 0, 0), 0),
        (("reference", "counts"), []),
        (("reference", "surprise"), 1),
        (("reference",), {}),
        (("surprise",), 1),
    ],
)
def test_contents_that_make_no_sense_are_refused(
    router_folder: Path, place: tuple[str | int, ...], value: object
) -> None:
    path = router_folder / "router.json"
    content = json.loads(path.read_text())
    inner = content
    for step in place[:-1]:
        inner = inner[step]
    inner[place[-1]] = value
    path.write_text(json.dumps(content))
    reseal(router_folder)
    with pytest.raises(CorruptError):
        Router.load(router_folder)


def test_a_router_holds_no_pickle(router_folder: Path) -> None:
    for path in router_folder.iterdir():
        assert path.suffix in {".json", ".safetensors", ".md", ""}
        assert not path.read_bytes().startswith(b"\x80")


def test_card_tells_what_matters(router_folder: Path, router: Router) -> None:
    text = (router_folder / "README.md").read_text()
    for name in router.pool.names:
        assert name in text
    for word in ("mean AUC", "95 % interval", "fake", "2026-01-01", "fingerprint", "revision"):
        assert word in text


@pytest.mark.parametrize(("version", "fix"), [(5, "fit it again"), (7, "upgrade")])
def test_another_format_is_refused_with_what_to_do(
    router_folder: Path, version: int, fix: str
) -> None:
    content = json.loads((router_folder / "router.json").read_text())
    (router_folder / "router.json").write_text(json.dumps(content | {"format": version}))
    reseal(router_folder)
    with pytest.raises(CorruptError, match=f"format {version}; .*{fix}"):
        Router.load(router_folder)


def with_cross_fit(router: Router, answers: RoutingDataset) -> Router:
    """The router with predictions out of fold, as a fit saves them."""
    predictions = router.predict(answers)
    choices = FoldChoices(predictions.scale, router.record.chosen, router.record.references or {})
    fold = np.arange(len(answers)) % 2
    return replace(router, cross_fit=CrossFit(predictions, fold, (choices, choices)))


def test_predictions_out_of_fold_are_saved_and_change_no_decision(
    router: Router, answers: RoutingDataset, tmp_path: Path
) -> None:
    cross_router = with_cross_fit(router, answers)
    cross_router.save(tmp_path / "router")
    router.save(tmp_path / "bare")
    assert fingerprint(tmp_path / "router") == fingerprint(tmp_path / "bare")
    cross_fit = Router.load(tmp_path / "router").cross_fit
    assert cross_fit is not None
    assert cross_router.cross_fit is not None
    assert cross_fit.predictions.query_ids == answers.query_ids
    assert np.array_equal(
        cross_fit.predictions.correctness, cross_router.cross_fit.predictions.correctness
    )
    assert cross_fit.choices[0].points == cross_router.cross_fit.choices[0].points
    assert cross_fit.choices[0].scale == cross_router.cross_fit.choices[0].scale
    assert Router.load(tmp_path / "bare").cross_fit is None
    (tmp_path / "router" / "cross_fit.json").write_text("{}")
    with pytest.raises(CorruptError, match=r"cross_fit\.json"):
        Router.load(tmp_path / "router")


def test_other_prices_leave_no_predictions_out_of_fold(
    router: Router, answers: RoutingDataset
) -> None:
    cross_router = with_cross_fit(router, answers)
    dearer = Pool(tuple(replace(t, input_price=9.0, output_price=9.0) for t in cross_router.pool))
    assert cross_router.with_pool(cross_router.pool).cross_fit is not None
    assert cross_router.with_pool(dearer).cross_fit is None


def with_learned_output(router: Router) -> Router:
    """The same router, whose output head has learned something."""
    head = router.output
    assert head is not None
    weights = np.random.default_rng(0).normal(size=head.weights.shape).astype(np.float32)
    return replace(router, output=replace(head, weights=weights / 20))


def test_output_head_is_saved_and_prices_all_alike(
    router: Router, encoder: FakeEncoder, answers: RoutingDataset, tmp_path: Path
) -> None:
    """Forecasts of requests, of the gateway and of a dataset have the same costs."""
    before = with_learned_output(router)
    before.save(tmp_path / "router")
    after = with_encoder(Router.load(tmp_path / "router"), encoder)
    some = answers.select(answers.query_ids[:7])
    some = replace(some, input_tokens=np.full(some.correct.shape, np.nan))
    cost = after.predict(some).estimated_cost
    np.testing.assert_array_equal(cost, before.predict(some).estimated_cost)
    forecasts = after.forecast_many([query.prompt for query in some.queries])
    np.testing.assert_allclose(after.estimated_cost(forecasts), cost, rtol=1e-5)
    decisions = after.route_many([query.prompt for query in some.queries])
    costs = [list(decision.estimated_cost.values()) for decision in decisions]
    np.testing.assert_allclose(np.array(costs, dtype=float), cost, rtol=1e-5)
    light = read_light(tmp_path / "router").costs
    for forecast, row in zip(forecasts, cost, strict=True):
        assert forecast.output is not None
        tokens = np.array([forecast.tokens])
        priced = light.estimate(tokens, expected=forecast.output[None, :])
        np.testing.assert_allclose(priced[0], row, rtol=1e-5)
    assert (np.diff(cost, axis=0) != 0).any()
    dear = after.with_pool(router.pool.with_prices({"target-0": (0.0, 10.0)}))
    written = np.stack([f.output for f in forecasts if f.output is not None])
    np.testing.assert_allclose(dear.estimated_cost(forecasts)[:, 0], written[:, 0] * 1e-5)


def test_output_weights_of_other_features_are_refused(router: Router, tmp_path: Path) -> None:
    with_learned_output(router).save(tmp_path)
    path = tmp_path / "weights.safetensors"
    content = load_file(path)
    for weights in (content["output.weights"][1:], content["output.weights"].astype(np.float64)):
        save_file(content | {"output.weights": weights}, path)
        reseal(tmp_path)
        with pytest.raises(CorruptError, match="output head"):
            Router.load(tmp_path)
