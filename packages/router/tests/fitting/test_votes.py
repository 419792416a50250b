"""Routers that learn from votes, and their verdict in win rate."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from packages.router.tests.fakes.planted_signal import states_of
from prefill_router.cost import CostScale
from prefill_router.data import LabelMeaning, RoutingDataset
from prefill_router.errors import ConfigError, DataError, FitError
from prefill_router.evaluation import (
    FixedRanking,
    SettingRule,
    Trial,
    VotedPart,
    WinVerdict,
    judge_votes,
    paired_mean,
)
from prefill_router.fitting import (
    FitConfig,
    RouterFit,
    add_target,
    fit_chosen,
    fit_router,
    recipe_from_dict,
    remove_target,
)
from prefill_router.policy import Predictions
from prefill_router.reporting import plot
from prefill_router.router import Router, read_light
from prefill_router.testing import make_routing_dataset

VOTES = LabelMeaning(kind="vote")
FAST = {"kind": "logistic", "votes": True, "scaling": "common", "folds": 2}


def make_votes(queries: int = 240, *, seed: int = 0, shuffled: bool = False) -> RoutingDataset:
    """Votes among three targets: one wins easy prompts, one hard ones, and one is average."""
    scored, random = make_routing_dataset(queries=queries, seed=seed), np.random.default_rng(seed)
    easy = scored.correct[:, 1] == 1
    strength = np.stack([np.where(easy, 2, 0), np.ones(queries), np.where(easy, 0, 2)], axis=1)
    labels = np.full((queries, 3), np.nan)
    for row, each in enumerate(strength):
        a, b = random.choice(3, 2, replace=False)
        labels[row, [a, b]] = [[0, 1], [0.5, 0.5], [1, 0]][int(np.sign(each[a] - each[b])) + 1]
    order = random.permutation(queries) if shuffled else np.arange(queries)
    return RoutingDataset.of(scored.queries, scored.pool, labels[order], meaning=VOTES)


def fit_votes(dataset: RoutingDataset, **options: object) -> RouterFit:
    """A router on the states of a fake encoder, judged by cross-fitting."""
    recipe = recipe_from_dict(
        {"features": {"kind": "prefill", "dim": 6}, "predictor": FAST, **options}
    )
    config = FitConfig(recipe=recipe, assumed_output_tokens=100)
    return fit_router(dataset, [states_of(dataset)], config=config)


@pytest.fixture(scope="module")
def votes_fit() -> RouterFit:
    return fit_votes(make_votes())


def verdict_of(fit: RouterFit) -> WinVerdict:
    assert fit.evaluation is None
    assert fit.win_verdict is not None
    assert fit.verdict is fit.win_verdict
    return fit.win_verdict


@pytest.mark.slow
def test_a_planted_preference_is_worth_it_in_win_rate(votes_fit: RouterFit) -> None:
    verdict = verdict_of(votes_fit)
    assert verdict.word == "worth it"
    assert verdict.votes == 240
    assert verdict.gain.lower > 0
    assert verdict.win_rate.value > 0.8
    assert verdict.win_rate.value - verdict.ranking_win_rate == pytest.approx(verdict.gain.value)
    assert sum(verdict.shares.values()) == pytest.approx(1)
    words = " ".join((verdict.because, *verdict.lines))
    assert "of 240 votes, a tie being half a win" in words
    assert "best fixed ranking" in words
    assert "accura" not in words
    assert "right" not in words
    assert min(verdict.cost, verdict.ranking_cost) > 0
    assert "its picks cost $" in verdict.lines[-1]
    json.dumps(verdict.to_dict(), allow_nan=False)


@pytest.mark.slow
def test_shuffled_votes_gain_nothing() -> None:
    verdict = verdict_of(fit_votes(make_votes(shuffled=True)))
    assert verdict.word != "worth it"
    assert verdict.gain.lower < 0 < verdict.gain.upper
    assert "judged votes would decide it" in verdict.because or verdict.word == "not worth it"


@pytest.mark.slow
def test_a_router_from_votes_says_chances_to_win(votes_fit: RouterFit, tmp_path: Path) -> None:
    router = votes_fit.router
    assert (router.is_voted, router.setting) == (True, 1.0)
    assert router.references is None
    ranking = router.ranking
    assert ranking is not None
    assert ranking.targets == router.pool.names
    chosen = router.record.chosen
    assert chosen is not None
    assert chosen.rule.startswith("the most probable winner")
    router.save(tmp_path / "router")
    card = (tmp_path / "router" / "README.md").read_text()
    assert "chance to win against the average target, and no accuracy is claimed" in card
    assert "share of votes that its pick won" in card
    assert "worth it" in card.lower()
    assert "accuracy" not in card.replace("no accuracy is claimed", "")
    loaded = Router.load(tmp_path / "router")
    assert loaded.record == router.record
    assert "win rate on train rows" in loaded._repr_html_()
    light = read_light(tmp_path / "router")
    assert (light.labels, light.lam) == ("vote", 1.0)
    assert light.verdict is not None
    assert light.verdict["word"] == "worth it"
    repriced = router.with_pool(router.pool.with_prices({"target-0": (9.0, 9.0)}))
    assert repriced.ranking == ranking


@pytest.mark.slow
def test_the_recipe_for_votes_is_taken_without_a_trial() -> None:
    dataset = make_votes(60)
    config = FitConfig(assumed_output_tokens=100)
    fit, choice = fit_chosen(dataset, [states_of(dataset)], config=config, verdict=False)
    assert (choice.name, choice.trials) == ("votes", ())
    options = fit.router.record.options["recipe"]
    assert options["predictor"]["kind"] == "logistic"
    assert options["predictor"]["votes"]
    assert [family["kind"] for family in options["features"]] == ["joint"]
    assert fit.verdict is None


@pytest.mark.slow
def test_a_sealed_part_judges_alone() -> None:
    dataset = make_votes()
    recipe = recipe_from_dict({"features": {"kind": "prefill", "dim": 6}, "predictor": FAST})
    config = FitConfig(recipe=recipe, assumed_output_tokens=100, test=0.25)
    fit = fit_router(dataset, [states_of(dataset)], config=config)
    verdict = verdict_of(fit)
    assert verdict.votes == len(fit.router.split["test"])
    assert fit.router.cross_fit is None


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"predictor": "constant"}, "learns from votes; name it in the recipe"),
        ({"calibration": "platt"}, "a calibration needs labels"),
        ({"policy": "frugal_cascade"}, "the policy frugal_cascade needs labels"),
    ],
)
def test_what_needs_graded_answers_is_refused(options: dict[str, object], reason: str) -> None:
    with pytest.raises(FitError, match=reason):
        fit_votes(make_votes(30), **options)


def test_settings_that_trade_accuracy_for_cost_are_refused() -> None:
    dataset = make_votes(30)
    config = FitConfig(setting=SettingRule(max_cost=1.0))
    with pytest.raises(FitError, match="a limit on cost, or a goal other than accuracy"):
        fit_chosen(dataset, [states_of(dataset)], config=config)


def test_labels_that_are_no_votes_are_refused() -> None:
    graded = make_routing_dataset(queries=30)
    with pytest.raises(FitError, match="the labels should be votes, but row 0 has 3 labels"):
        fit_votes(replace(graded, meaning=VOTES))
    with pytest.raises(FitError, match="the labels aren't votes"):
        fit_votes(graded)
    decided = np.where(np.isnan(make_votes(30).correct), np.nan, 0.5)
    ties = RoutingDataset.of(graded.queries, graded.pool, decided, meaning=VOTES)
    with pytest.raises(FitError, match="nothing to learn"):
        fit_votes(ties)


def test_accuracies_are_not_claimed_of_votes(votes_fit: RouterFit) -> None:
    dataset = make_votes()
    crossed = votes_fit.router.cross_fit
    assert crossed is not None
    with pytest.raises(DataError, match="These labels are votes"):
        Trial.join(crossed.predictions, dataset)
    new = dataset.pool.select(["target-0"])
    with pytest.raises(ConfigError, match="the router learned from votes"):
        add_target(votes_fit.router, new, dataset, lambda _: dataset, labels=1)
    assert remove_target(votes_fit.router, "target-0").is_voted


def test_a_plot_of_the_router_says_win_rate(votes_fit: RouterFit) -> None:
    labels = [axes.get_ylabel() for axes in plot(votes_fit.router).figure.axes]
    assert labels == ["Win rate (%)"]


def judge_chances(
    labels: list[list[float]], chances: list[list[float]], cost: list[list[float]] | None = None
) -> WinVerdict:
    """The verdict on given chances, against a ranking a > b > c; the cost is that observed."""
    scored = make_routing_dataset(queries=len(labels))
    paid = None if cost is None else np.array(cost)
    dataset = RoutingDataset.of(
        scored.queries, scored.pool, np.array(labels), recorded_cost=paid, meaning=VOTES
    )
    predictions = Predictions(
        query_ids=dataset.query_ids,
        targets=dataset.pool.names,
        correctness=np.array(chances),
        estimated_cost=np.zeros((len(labels), 3)),
        scale=CostScale(0, 0),
    )
    ranking = FixedRanking(dataset.pool.names, (1.0, 0.0, -1.0))
    return judge_votes([VotedPart(predictions, dataset, ranking)])


NAN = np.nan


def test_the_pick_between_the_two_of_a_vote_is_what_counts() -> None:
    verdict = judge_chances(
        [[1, 0, NAN], [0, 1, NAN], [NAN, 0.5, 0.5], [NAN, 0, 1], [NAN, NAN, NAN]],
        [[0.6, 0.4, 0.9], [0.4, 0.6, 0.9], [0.1, 0.2, 0.3], [0.5, 0.5, 0.5], [0.1, 0.2, 0.3]],
    )
    assert verdict.votes == 4
    assert verdict.win_rate.value == pytest.approx((1 + 1 + 0.5 + 0.5) / 4)
    assert verdict.ranking_win_rate == pytest.approx((1 + 0 + 0.5 + 0) / 4)
    assert verdict.differ == 3
    assert verdict.shares["target-2"] == pytest.approx(3 / 4)
    assert np.isnan(verdict.cost)


def test_costs_are_compared_only_where_those_of_both_picks_are_known() -> None:
    verdict = judge_chances([[1, 0, NAN]] * 2, [[0.4, 0.7, 0.1]] * 2, [[NAN, 0.01, NAN]] * 2)
    assert verdict.cost == pytest.approx(0.01)
    assert np.isnan(verdict.ranking_cost)
    assert not any("cost" in line for line in verdict.lines)


def test_the_interval_does_not_collapse_where_all_picks_agree() -> None:
    verdict = judge_chances([[1, 0, NAN]] * 9, [[0.7, 0.4, 0.1]] * 9)
    assert verdict.gain.value == 0
    assert verdict.gain.lower < -0.1 < 0.1 < verdict.gain.upper
    assert verdict.word == "can't tell"
    assert verdict.needed > 9


def test_votes_between_targets_that_left_judge_nothing() -> None:
    dataset = make_votes(30)
    names = dataset.pool.names[:2]
    predictions = Predictions(
        query_ids=dataset.query_ids,
        targets=names,
        correctness=np.full((30, 2), 0.5),
        estimated_cost=np.zeros((30, 2)),
        scale=CostScale(0, 0),
    )
    ranking = FixedRanking(dataset.pool.names, (1.0, 0.0, -1.0))
    verdict = judge_votes([VotedPart(predictions, dataset, ranking)])
    is_compared = (~np.isnan(dataset.correct[:, :2])).all(axis=1)
    assert verdict.votes == is_compared.sum()
    nobody = dataset.select(np.array(dataset.query_ids, dtype=object)[~is_compared].tolist())
    part = VotedPart(predictions.select(nobody.query_ids), nobody, ranking)
    with pytest.raises(DataError, match="no vote between two of the router's targets"):
        judge_votes([part])


def test_votes_on_one_prompt_count_as_one_observation_in_the_error() -> None:
    differences = np.repeat([1.0, -1.0, 1.0, 0.0], 25)
    alone, error = paired_mean(differences)
    together, wider = paired_mean(differences, [str(n // 25) for n in range(100)])
    assert alone == together
    assert wider > 4 * error
    assert paired_mean(differences, [str(n) for n in range(100)]) == pytest.approx((alone, error))
