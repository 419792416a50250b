"""What every policy must hold to."""

import json

import numpy as np
import pytest

from packages.router.tests.part_cases import check_cases
from packages.router.tests.policy.tables import NAMES, POLICIES, random_tables
from prefill_router.errors import ConfigError, CorruptError
from prefill_router.policy import POLICIES as KINDS, from_dict

every_policy = pytest.mark.parametrize("name", POLICIES)
# Above every candidate's own probability a record's cost may fall only where costs aren't ordered.
COST_RISES = ("lambda", "tolerance", "quantile tiers", "cascade")


@pytest.mark.slow
@every_policy
@pytest.mark.parametrize("coarse", [False, True])
def test_the_exact_path_is_the_plain_choice_on_a_fine_grid(name: str, *, coarse: bool) -> None:
    policy, plain = POLICIES[name]
    correctness, cost = random_tables(seed=1, coarse=coarse)
    path = policy.path(correctness, cost, targets=NAMES)
    # On the coarse tables Equation 2 has ties in the middle of the range that rounding decides.
    grid = np.linspace(0, 1, 65) if not coarse else np.array([0, 0.25, 0.5, 0.75, 1])
    if coarse and name == "lambda":
        grid = np.array([0.0, 1.0])
    for at in grid.tolist():
        expected = [plain(p, c, at) for p, c in zip(correctness, cost, strict=True)]
        assert path.at(at).tolist() == expected, at
        assert policy.choose(correctness, cost, at, targets=NAMES).tolist() == expected


@every_policy
def test_changes_are_where_the_path_says(name: str) -> None:
    policy, plain = POLICIES[name]
    correctness, cost = random_tables(queries=40, seed=2)
    path = policy.path(correctness, cost, targets=NAMES)
    ends = np.append(path.lam[1:], 1.0)
    ends[path.start[1:] - 1] = 1.0
    assert (ends >= path.lam).all()
    for query, low, high, target in zip(path.query, path.lam, ends, path.target, strict=True):
        for part in (0.001, 0.5, 0.999):
            at = float(low + part * (high - low))
            assert plain(correctness[query], cost[query], at) == target


@every_policy
def test_permuting_targets_permutes_choices(name: str) -> None:
    policy, _ = POLICIES[name]
    correctness, cost = random_tables(seed=3)
    order = np.random.default_rng(1).permutation(6)
    moved = tuple(NAMES[k] for k in order)
    path = policy.path(correctness, cost, targets=NAMES)
    permuted = policy.path(correctness[:, order], cost[:, order], targets=moved)
    assert (order[permuted.target] == path.target).all()
    assert (permuted.lam == path.lam).all()


@every_policy
def test_each_query_is_on_its_own(name: str) -> None:
    policy, _ = POLICIES[name]
    correctness, cost = random_tables(seed=4)
    path = policy.path(correctness, cost, targets=NAMES)
    alone = policy.path(correctness[[17]], cost[[17]], targets=NAMES)
    assert (alone.target == path.target[path.query == 17]).all()
    assert (alone.lam == path.lam[path.query == 17]).all()


@pytest.mark.parametrize("name", COST_RISES)
@pytest.mark.parametrize("coarse", [False, True])
def test_the_chosen_cost_never_falls(name: str, *, coarse: bool) -> None:
    policy, _ = POLICIES[name]
    correctness, cost = random_tables(seed=5, coarse=coarse)
    path = policy.path(correctness, cost, targets=NAMES)
    same = np.diff(path.query) == 0
    assert same.any()
    assert (np.diff(cost[path.query, path.target])[same] >= 0).all()


@pytest.mark.parametrize("name", ["lambda", "tolerance", "tiers", "quantile tiers"])
def test_the_chosen_probability_never_falls(name: str) -> None:
    policy, _ = POLICIES[name]
    correctness, cost = random_tables(seed=6)
    path = policy.path(correctness, cost, targets=NAMES)
    same = np.diff(path.query) == 0
    assert same.any()
    assert (np.diff(correctness[path.query, path.target])[same] >= 0).all()


@pytest.mark.parametrize("name", ["lambda", "argmax", "tolerance", "quantile tiers"])
def test_at_1_the_most_probable_answers(name: str) -> None:
    correctness, cost = random_tables(seed=7)
    chosen = POLICIES[name][0].choose(correctness, cost, 1.0, targets=NAMES)
    assert (chosen == correctness.argmax(axis=1)).all()


@pytest.mark.parametrize("name", ["lambda", "tolerance", "cascade"])
def test_at_0_the_cheapest_answers(name: str) -> None:
    correctness, cost = random_tables(seed=8)
    chosen = POLICIES[name][0].choose(correctness, cost, 0.0, targets=NAMES)
    assert (chosen == cost.argmin(axis=1)).all()


@every_policy
def test_the_order_starts_with_the_winner_and_names_everyone(name: str) -> None:
    policy, _ = POLICIES[name]
    correctness, cost = random_tables(seed=9)
    order = policy.order(correctness, cost, 0.6, targets=NAMES)
    assert (order[:, 0] == policy.choose(correctness, cost, 0.6, targets=NAMES)).all()
    assert (np.sort(order, axis=1) == np.arange(6)).all()


@every_policy
def test_save_then_load_gives_the_same(name: str) -> None:
    policy, _ = POLICIES[name]
    saved = json.loads(json.dumps(policy.to_dict()))
    assert from_dict(saved) == policy
    assert saved["kind"] == policy.kind


@every_policy
def test_an_unknown_option_is_refused(name: str) -> None:
    with pytest.raises(CorruptError, match="unknown options"):
        from_dict({**POLICIES[name][0].to_dict(), "surprise": 1})


@every_policy
def test_tables_that_cannot_be_used_are_refused(name: str) -> None:
    policy, _ = POLICIES[name]
    correctness, cost = random_tables(queries=3)
    with pytest.raises(ConfigError, match="finite"):
        policy.path(np.full_like(correctness, np.nan), cost, targets=NAMES)
    with pytest.raises(ConfigError, match="at least one target"):
        policy.path(np.zeros((2, 0)), np.zeros((2, 0)), targets=NAMES)
    with pytest.raises(ConfigError, match="lam is"):
        policy.choose(correctness, cost, 1.5, targets=NAMES)


def test_every_kind_is_in_the_suite() -> None:
    cases = {policy.kind for policy, _ in POLICIES.values()}
    to = "POLICIES in packages/router/tests/policy/tables.py"
    check_cases(KINDS.own, cases, to=to, guide="policies.md")


@pytest.mark.parametrize("kind", [None, 3, "best"])
def test_an_unknown_kind_is_refused(kind: object) -> None:
    with pytest.raises(CorruptError, match="known are"):
        from_dict({"kind": kind})
