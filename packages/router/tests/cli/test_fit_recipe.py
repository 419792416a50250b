"""`fit` with a recipe: encoders that are folders, and what it refuses before it fits."""

from pathlib import Path

import pytest

from packages.router.tests.commands import SEALED_FIT, Job, check_malformed, check_refused, run_ok
from prefill_router.router import Router


@pytest.mark.slow
def test_an_encoder_that_a_recipe_names_is_found_by_its_folder(
    job: Job, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PREFILL_ROUTER_CACHE", str(tmp_path / "cache"))
    recipe, to = tmp_path / "recipe.yaml", tmp_path / "router"
    recipe.write_text("features: {kind: embedding, encoder: tiny}\npredictor: constant\n")
    run_ok(*SEALED_FIT, job.answers, "--recipe", recipe, "--out", to, "--encoder-folder", job.tiny)
    [source] = Router.load(to).features.sources
    assert source.provenance.encoder == "tiny"


@pytest.mark.slow
def test_a_negative_seed_is_refused(job: Job, tmp_path: Path) -> None:
    arguments = (*SEALED_FIT, job.answers, "--store", job.states, "--out", tmp_path / "router")
    check_malformed("--seed is -1", *arguments, "--seed", -1)
    assert not (tmp_path / "router").exists()


@pytest.mark.slow
def test_the_papers_recipe_by_name_is_what_few_rows_take(job: Job, tmp_path: Path) -> None:
    arguments = ("fit", "--no-verdict", "--test=0.15", job.answers, "--store", job.states)
    run_ok(*arguments, "--out", tmp_path / "named", "--recipe", "paper")
    output = run_ok(*arguments, "--out", tmp_path / "tried")
    why = "the recipe is 'paper'; no other was tried, since fewer than 1,000"
    assert why in " ".join(output.split())
    by_name, by_default = (Router.load(tmp_path / name) for name in ("named", "tried"))
    assert by_default.record.options["recipe"] == by_name.record.options["recipe"]
    assert (by_default.record.options["effort"], "effort" in by_name.record.options) == (
        "normal",
        False,
    )
    run_ok(*arguments, "--out", tmp_path / "tried")  # the same fit may replace its result
    check_refused("another router", *arguments, "--out", tmp_path / "tried", "--effort", "quick")


def test_an_effort_beside_a_recipe_is_refused(job: Job, tmp_path: Path) -> None:
    arguments = (*SEALED_FIT, job.answers, "--store", job.states, "--out", tmp_path / "router")
    check_malformed(
        "--effort chooses a recipe", *arguments, "--effort", "best", "--select", "mean.1"
    )
    check_malformed(
        "--effort chooses a recipe", *arguments, "--effort", "best", "--recipe", "paper"
    )
    check_malformed("--effort is 'much'", *arguments, "--effort", "much")
