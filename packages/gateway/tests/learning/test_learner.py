"""Samples without labels become a candidate version, with a judge that errs."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from packages.gateway.tests.learning.traffic import (
    QUICK_RECIPE,
    answer,
    build_pools,
    is_right,
    write_traffic,
)
from packages.router.tests.fakes.answering_server import serve_answers
from prefill_router.errors import ConfigError, StoreError
from prefill_router.files import writer_lock
from prefill_router.router import EncoderSources, VersionRegistry
from prefill_router.testing import FakeEncoder
from prefill_router_gateway.learning import BudgetLimits, LearnerSettings, learn
from prefill_router_gateway.receipts import export, labelled_samples, scored_receipts

pytestmark = pytest.mark.slow


@pytest.fixture
def target_server() -> Iterator[tuple[str, list[dict[str, Any]]]]:
    with serve_answers(answer) as server:
        yield server


def build_settings(url: str, base_url: str, folder: Path, **more: Any) -> LearnerSettings:
    pool, judges = build_pools(base_url)
    defaults: dict[str, Any] = {
        "receipts": url,
        "pool": pool,
        "judges": judges,
        "versions": str(folder / "versions"),
        "limits": BudgetLimits(per_day=1.0, in_all=5.0),
        "encoder": "fake",
        "sources": EncoderSources(loaded=(FakeEncoder(),)),
        "cache": folder / "cache",
        "anchors_every": 0,
    }
    return LearnerSettings(**{**defaults, **more})


def test_samples_become_a_candidate_within_the_budget_and_nothing_is_asked_twice(
    tmp_path: Path, target_server: tuple[str, list[dict[str, Any]]]
) -> None:
    base_url, bodies = target_server
    url = write_traffic(tmp_path, 200)
    settings = build_settings(url, base_url, tmp_path, recipe=QUICK_RECIPE)
    result = learn(settings)
    assert result.word == "worth it"
    assert result.is_candidate
    assert result.labelling.spent <= 1.0
    registry = VersionRegistry.at(settings.versions)
    state = registry.state()
    assert state.candidate == result.version
    assert state.versions[-1].labels == result.labels
    dataset = export(
        scored_receipts(url), pool=settings.pool, samples=labelled_samples(url)
    ).dataset
    assert dataset.propensity is not None
    assert (dataset.propensity == 1).all()
    truth = [[is_right(t, str(q.prompt)) for t in dataset.pool.names] for q in dataset.queries]
    assert np.mean(np.array(truth) == dataset.correct) == pytest.approx(0.9, abs=0.03)
    call_count = len(bodies)
    next_result = learn(settings)
    assert len(bodies) == call_count
    assert next_result.version is None
    registry.promote()
    write_traffic(tmp_path, 225, first=200)
    later_result = learn(settings)
    assert later_result.labels == {"judge:judge-1": 450}
    verdict = registry.state().versions[-1].verdict
    assert verdict is not None
    assert verdict["running"] == result.version
    assert abs(verdict["accuracy"]["value"]) < 0.3


def test_too_few_labels_of_every_target_are_waited_for(
    tmp_path: Path, target_server: tuple[str, list[dict[str, Any]]]
) -> None:
    result = learn(build_settings(write_traffic(tmp_path, 3), target_server[0], tmp_path))
    assert result.version is None
    assert result.note == "fewer than two targets have 50 labels"
    assert result.labels == {"judge:judge-1": 6}


def test_a_database_that_is_not_there_is_refused_and_not_made(tmp_path: Path) -> None:
    file = tmp_path / "typo.sqlite"
    with pytest.raises(StoreError, match="doesn't exist"):
        learn(build_settings(f"sqlite:///{file}", "http://127.0.0.1:9/v1", tmp_path))
    assert not file.exists()


def test_a_second_learner_on_the_same_versions_is_refused(tmp_path: Path) -> None:
    url = write_traffic(tmp_path, 1)
    settings = build_settings(url, "http://127.0.0.1:9/v1", tmp_path)
    with writer_lock(tmp_path, "versions.learner", wait=False) as is_free:
        assert is_free
        with pytest.raises(ConfigError, match="another learner"):
            learn(settings)
