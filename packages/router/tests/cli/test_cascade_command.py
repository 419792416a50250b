"""A cascade that is learned by `fit`, judged by `evaluate`, and asked by `route`."""

import json
from pathlib import Path

import pytest

from packages.router.tests.commands import (
    FIT,
    SEALED_FIT,
    Job,
    check_malformed,
    check_refused,
    run_ok,
)
from prefill_router.data import read_dataset
from prefill_router.policy import Cascade, Threshold
from prefill_router.router import Router
from prefill_router.targets import Pool, Target, write_pool
from prefill_router_minipool.server import ScriptedModel, serve

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def cascade(job: Job, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("cascade")
    recipe = folder / "recipe.yaml"
    recipe.write_text("features: {kind: prefill, dim: 6}\npredictor: logistic\n")
    fit = (*FIT, job.answers, "--recipe", recipe, "--store", job.states, "--split", job.split)
    output = run_ok(*fit, "--policy", "frugal_cascade", "--out", folder / "router")
    assert "note: the cascade calls target-" in output
    return folder / "router"


def test_order_and_thresholds_are_learned_and_kept(cascade: Path, job: Job) -> None:
    policy = Router.load(cascade).policy
    assert isinstance(policy, Cascade)
    assert policy.targets
    assert policy.knots
    assert policy.scorer is not None
    evaluate = ("evaluate", cascade, "--data", job.answers, "--store", job.states)
    to = cascade.parent / "report"
    run_ok(*evaluate, "--resamples", 0, "--out", to)
    policy = json.loads((to / "metrics.json").read_text())["definitions"]["policy"]
    assert "thresholds: learned on the train part" in policy


def test_route_says_whom_it_asks(cascade: Path, job: Job) -> None:
    arguments = ("route", cascade, "Hello there", "--encoder-folder", job.tiny)
    value = json.loads(run_ok(*arguments, "--json", "--lam", 0.5))
    policy = Router.load(cascade).policy
    assert isinstance(policy, Cascade)
    assert tuple(stage["target"] for stage in value["stages"]) == policy.targets
    expected = (*policy.thresholds(0.5, stages=len(policy.targets)), None)
    assert tuple(stage["threshold"] for stage in value["stages"]) == expected
    assert "the first answer that scores enough is taken" in run_ok(*arguments)
    check_refused("leave out --only", *arguments, "--only", policy.targets[0])


def test_route_asks_until_an_answer_is_good_enough(cascade: Path, job: Job, tmp_path: Path) -> None:
    names = read_dataset(job.answers).pool.names
    models = [ScriptedModel(name, lambda _, name=name: f"{name} says so") for name in names]
    with serve(models) as server:
        write_pool(
            Pool(tuple(Target(name=n, base_url=server.base_url) for n in names)), tmp_path / "p"
        )
        arguments = ("route", cascade, "Hello", "--encoder-folder", job.tiny, "--answer")
        value = json.loads(run_ok(*arguments, "--pool", tmp_path / "p", "--lam", 0, "--json"))
        assert [request["target"] for request in value["asked"]] == [value["stages"][0]["target"]]
        assert value["reply"]["text"] == f"{value['target']} says so"
        output = run_ok(*arguments, "--pool", tmp_path / "p", "--lam", 1)
    trail = [entry.model for entry in server.log[1:]]
    assert trail == [stage["target"] for stage in value["stages"]][: len(trail)]
    assert all(f"asked {name}: scored" in output for name in trail)
    assert f"{trail[-1]} says so" in output
    check_malformed("needs the pool file", *arguments)


def test_a_policy_that_needs_more_is_refused(job: Job, tmp_path: Path) -> None:
    fit = (*SEALED_FIT, job.answers, "--store", job.states, "--out", tmp_path / "router")
    check_refused("lacks the options", *fit, "--policy", "threshold", code=2)
    check_refused("there is no policy 'best'; known are", *fit, "--policy", "best", code=2)
    check_refused("there is no policy ''", *fit, "--policy", "", code=2)
    check_refused("--policy can't be read", *fit, "--policy", "{kind: threshold", code=2)
    check_refused("policy needs a kind", *fit, "--policy", "{strong: target-2}", code=2)


def test_a_policy_takes_options_as_in_a_recipe(job: Job, tmp_path: Path) -> None:
    recipe = tmp_path / "recipe.yaml"
    recipe.write_text("features: {kind: prefill, dim: 6}\npredictor: logistic\n")
    fit = (*FIT, job.answers, "--recipe", recipe, "--store", job.states, "--split", job.split)
    policy_text = "{kind: threshold, strong: target-2, weak: target-0}"
    run_ok(*fit, "--policy", policy_text, "--out", tmp_path / "router")
    policy = Router.load(tmp_path / "router").policy
    assert policy == Threshold(strong="target-2", weak="target-0")
