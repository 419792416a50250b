"""When a candidate takes over, or is given up."""

from dataclasses import replace
from pathlib import Path
from typing import Any, get_args

import numpy as np
import pytest

from prefill_router.errors import ConfigError
from prefill_router.router import VersionRegistry
from prefill_router_gateway.learning import (
    RolloutData,
    RolloutDecision,
    RolloutSettings,
    advance,
    decide_rollout,
)
from prefill_router_gateway.learning.rollout import Action

SETTINGS = RolloutSettings(most_dollars=0.01, floor=0.3, most_error=0.1)


def simulate_traffic(
    gain: float, *, requests: int = 4000, dollars: float = 0.001, seed: int = 0
) -> RolloutData:
    """Requests that the candidate sends to a target whose quality differs by `gain`."""
    rng = np.random.default_rng(seed)
    truth = np.tile(rng.uniform(0.3, 0.7, (requests, 1)), 2)
    truth[:, 1] += gain
    propensity = np.tile([1.0, 0.3], (requests, 1))
    is_asked = rng.random((requests, 2)) < propensity
    right = rng.random((requests, 2)) < truth
    label = right ^ (rng.random((requests, 2)) < 0.1)
    return RolloutData(
        current=np.zeros(requests, dtype=np.int64),
        candidate=np.ones(requests, dtype=np.int64),
        predicted=np.clip(truth + rng.normal(0, 0.1, truth.shape), 0, 1),
        label=np.where(is_asked, label, np.nan),
        label_error=np.full((requests, 2), 0.1),
        propensity=propensity,
        expected_dollars=np.tile([0.002, dollars], (requests, 1)),
        live=np.ones(requests, dtype=bool),
    )


def take_rows(data: RolloutData, end: int) -> RolloutData:
    columns: dict[str, Any] = {n: None if v is None else v[:end] for n, v in vars(data).items()}
    return RolloutData(**columns)


@pytest.mark.parametrize(
    ("gain", "dollars", "action"),
    [(0.15, 0.001, "promote"), (-0.15, 0.001, "withdraw"), (-0.01, 0.001, "wait")],
)
def test_candidates_take_over_or_are_withdrawn(gain: float, dollars: float, action: str) -> None:
    decision = decide_rollout(simulate_traffic(gain, dollars=dollars), SETTINGS)
    assert decision.action == action
    assert decision.evidence["quality"] == pytest.approx(gain, abs=0.05)
    assert decision.evidence["dollars"] == pytest.approx(-0.001)


def test_a_better_one_that_is_dearer_takes_over_only_where_that_is_allowed() -> None:
    data = simulate_traffic(0.15, dollars=0.0025)
    assert decide_rollout(data, SETTINGS).action == "share"
    allowed = decide_rollout(data, replace(SETTINGS, cost_margin=0.5))
    assert (allowed.action, "better" in allowed.why) == ("promote", True)


def test_what_is_proven_stays_proven() -> None:
    data = simulate_traffic(0.15)
    proven = decide_rollout(data, SETTINGS).proven
    assert proven
    for end in (500, 1000, 2000):
        part = decide_rollout(take_rows(data, end), SETTINGS).proven
        assert part == {claim: at for claim, at in proven.items() if at <= end}


def test_errors_of_labels_are_corrected_for() -> None:
    data = simulate_traffic(0.15)
    naive = replace(data, label_error=None)
    assert decide_rollout(naive, SETTINGS).evidence["quality"] == pytest.approx(0.12, abs=0.03)
    assert decide_rollout(data, SETTINGS).evidence["quality"] == pytest.approx(0.15, abs=0.03)


def test_without_overlap_nothing_is_proven_of_quality() -> None:
    data = simulate_traffic(0.3)
    chance = data.propensity.copy()
    chance[::2, 1] = 0.05
    decision = decide_rollout(replace(data, propensity=chance), SETTINGS)
    assert decision.evidence["without_overlap"] == 2000
    assert (decision.action, list(decision.proven)) == ("wait", ["cheaper", "not more expensive"])


def test_requests_beyond_the_bound_of_earlier_ones_have_overlap() -> None:
    data = simulate_traffic(0.0, requests=200)
    chance = np.ones(data.propensity.shape)
    chance[100:, 1] = 0.5
    chance[150:, 1] = 0.05
    decision = decide_rollout(replace(data, propensity=chance), SETTINGS)
    assert decision.evidence["without_overlap"] == 50
    assert decision.evidence["beyond_bound"] == 1
    assert "50 of 200 requests say nothing" in decision.why
    assert "1 of 200 requests are left out" in decision.why


def test_requests_where_both_choose_the_same_count_no_more_than_others() -> None:
    data = simulate_traffic(-0.3)
    differs = np.random.default_rng(1).random(len(data)) < 0.2
    far_worse = replace(data, candidate=differs.astype(np.int64))  # by 0.06 on average
    decision = decide_rollout(far_worse, SETTINGS)
    assert not {"not far worse", "no worse", "better"} & set(decision.proven)


def test_before_there_is_enough_it_says_how_many_labels_are_lacking() -> None:
    data = simulate_traffic(0.15)
    at = decide_rollout(data, SETTINGS).proven["no worse"]
    early = decide_rollout(take_rows(data, at // 2), SETTINGS)
    assert early.labels_needed is not None
    assert 0 < early.labels_needed < 4 * at
    assert decide_rollout(take_rows(simulate_traffic(-0.15), 300), SETTINGS).labels_needed is None
    assert decide_rollout(take_rows(data, 0), SETTINGS).action == "wait"


def test_it_takes_over_only_after_it_has_decided_on_requests() -> None:
    data = simulate_traffic(0.15)
    unseen = replace(data, live=np.zeros(len(data), dtype=bool))
    decision = decide_rollout(unseen, SETTINGS)
    assert (decision.action, "0 of the 50" in decision.why) == ("share", True)


def test_the_same_choices_prove_no_gain() -> None:
    data = simulate_traffic(0.0)
    same = replace(data, candidate=data.current)
    decision = decide_rollout(same, SETTINGS)
    assert decision.evidence["differ"] == 0
    assert not {"better", "worse", "cheaper"} & set(decision.proven)


@pytest.mark.parametrize(
    "changes",
    [{"most_dollars": 0.0}, {"margin": 0.0}, {"first_margin": 0.001}, {"most_error": 0.5}],
)
def test_settings_outside_their_limits_are_refused(changes: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=next(iter(changes))):
        replace(SETTINGS, **changes)


@pytest.mark.parametrize(
    "changes",
    [
        {"predicted": np.full((3, 2), np.nan)},
        {"label": np.full((3, 2), 2.0)},
        {"expected_dollars": np.full((3, 2), np.nan)},
        {"propensity": np.full((3, 2), -0.5)},
    ],
)
def test_data_that_cannot_be_used_is_refused(changes: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=next(iter(changes))):
        replace(take_rows(simulate_traffic(0.0), 3), **changes)


class FakeRecord:
    """A record without notes."""

    notes: tuple[str, ...] = ()

    def model_copy(self, *, update: dict[str, Any]) -> "FakeRecord":
        assert set(update) == {"notes"}
        return self


class FakeRouter:
    """A router with a record only."""

    record = FakeRecord()

    def with_record(self, record: FakeRecord) -> "FakeRouter":
        assert record is self.record
        return self


def save_folder(router: FakeRouter, place: Path, *, new: bool) -> None:
    """Save an empty folder in place of a router."""
    assert not new
    assert router.record.notes == ()
    place.mkdir(parents=True)
    (place / "router.json").write_text("{}")


@pytest.fixture
def registry(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> VersionRegistry:
    """Two versions, of which the first serves and the second is the candidate."""
    monkeypatch.setattr("prefill_router.router.versions.fingerprint", lambda _: "0" * 16)
    monkeypatch.setattr("prefill_router.router.versions.save_router", save_folder)
    registry = VersionRegistry.at(tmp_path / "versions")
    for _ in range(2):
        registry.add(FakeRouter(), {})  # type: ignore[arg-type]
    registry.promote("0001")
    registry.shadow("0002")
    return registry


def build_decision(action: Action) -> RolloutDecision:
    return RolloutDecision(action, "because", evidence={"labels": 7})


def test_each_decision_is_one_step_with_its_evidence(registry: VersionRegistry) -> None:
    assert advance(registry, build_decision("wait"), "0002", SETTINGS) is None
    share_state = advance(
        registry, build_decision("promote"), "0002", SETTINGS
    )  # a share comes first
    assert share_state is not None
    assert (share_state.stage, share_state.share, share_state.current) == (
        "share",
        SETTINGS.share,
        "0001",
    )
    assert share_state.steps[-1].evidence == {"why": "because", "labels": 7}
    assert advance(registry, build_decision("share"), "0002", SETTINGS) is None
    promotion = advance(registry, build_decision("promote"), "0002", SETTINGS)
    assert promotion is not None
    assert (promotion.current, promotion.candidate) == ("0002", None)
    rollback = advance(registry, build_decision("withdraw"), "0002", SETTINGS)
    assert rollback is not None
    assert (rollback.current, rollback.steps[-1].event, rollback.steps[-1].by) == (
        "0001",
        "rolled back",
        "learner",
    )


def test_a_worse_candidate_is_withdrawn_from_any_stage(registry: VersionRegistry) -> None:
    state = advance(registry, build_decision("withdraw"), "0002", SETTINGS)
    assert state is not None
    assert (state.current, state.candidate, state.steps[-1].event) == ("0001", None, "withdrawn")


def test_a_decision_about_another_version_changes_nothing(registry: VersionRegistry) -> None:
    before = registry.state()
    for action in get_args(Action):
        assert advance(registry, build_decision(action), "0003", SETTINGS) is None
    assert registry.state() == before
