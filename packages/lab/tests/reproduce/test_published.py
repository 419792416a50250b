"""The paper's numbers: typed in once, held to the paper's own arithmetic."""

import statistics

import pytest

from prefill_router_lab.reproduce.cells import PublishedTable, Value, number, read_published
from prefill_router_lab.reproduce.systems import POOLS, match_targets, read_names

TARGETS = {"frontier": 11, "small": 20, "mixed": 9}
SYSTEMS = [
    *("SharedTrunkNet", "Unified Multitask", "Matrix Factorization", "Per-Model Multitask"),
    *("GraphRouter", "kNN"),
]


def values(row: dict[str, Value]) -> dict[str, float]:
    return {name: value for name, value in row.items() if isinstance(value, float)}


@pytest.mark.slow
def test_all_thirty_tables_are_there_in_order() -> None:
    assert [table.number for table in read_published().values()] == list(range(1, 31))
    assert len({table.label for table in read_published().values()}) == 30
    assert all(
        table.where.startswith(("section", "appendix")) for table in read_published().values()
    )


def test_regimes_add_up() -> None:
    for row in read_published()["tab:dataset"].rows:
        regimes = [number(row, name) for name in ("all correct", "all incorrect", "disagreement")]
        assert sum(one.count for one in regimes) == row["queries"]
        for one in regimes:
            assert one.count / row["queries"] == pytest.approx(one.value, abs=1e-4)
        # The paper's own contradiction: what no target solves and what the oracle solves exceed 1.
        assert regimes[1].value + row["oracle_accuracy"] > 1


@pytest.mark.parametrize("pool", POOLS)
def test_sweeps_have_every_target_and_the_order_of_the_text(pool: str) -> None:
    rows = read_published()[f"tab:{pool}_sweep"].rows
    assert len(rows) == 6
    for row in rows:
        assert set(values(row)) == set(read_names()[pool])
        assert len(values(row)) == TARGETS[pool]
    means = {row["encoder"]: statistics.fmean(values(row).values()) for row in rows}
    best = sorted(means, key=means.get)[-2:]  # type: ignore[arg-type]
    assert set(best) == {"Qwen3.5-122B", "Qwen3.5-35B"}


@pytest.mark.parametrize("pool", POOLS)
@pytest.mark.parametrize("key", ["auc", "brier"])
def test_means_are_those_of_the_targets(pool: str, key: str) -> None:
    for label in (f"tab:{pool}_{key}", f"tab:{pool}_permodel_{key}"):
        for row in read_published()[label].rows:
            by_target = values(row)
            mean = by_target.pop("mean")
            assert set(by_target) == set(read_names()[pool])
            assert statistics.fmean(by_target.values()) == pytest.approx(mean, abs=1.5e-4), row


@pytest.mark.parametrize("pool", POOLS)
def test_tables_agree_with_each_other(pool: str) -> None:
    metrics, boot = (
        read_published()["tab:per_llm_routing"],
        read_published()[f"tab:bootstrap_{pool}"],
    )
    for system in SYSTEMS:
        for name in ("auc_mean", "brier_mean"):
            single, other = (
                metrics.number_of(pool, system, name),
                boot.number_of(pool, system, name),
            )
            if (system, name) != ("Matrix Factorization", "brier_mean"):  # recalibrated there
                assert single.value == pytest.approx(other.value, abs=1e-4)
            assert other.lower < other.value < other.upper
    for system in SYSTEMS[1:]:
        mean = read_published()[f"tab:{pool}_permodel_auc"].number_of(pool, system, "mean")
        assert mean == metrics.number_of(pool, system, "auc_mean")


@pytest.mark.parametrize("pool", POOLS)
def test_headroom_and_areas_add_up(pool: str) -> None:
    table, areas = read_published()["tab:headroom_summary"], read_published()["tab:global_routing"]
    models = areas.find(pool, "Model-only Pareto")
    for system in SYSTEMS:
        row = values(table.find(pool, system))
        gap = row["oracle_accuracy"] - row["best_single_accuracy"]
        assert row["accuracy_gain"] / gap == pytest.approx(row["headroom_captured"], abs=0.02)
        area = values(areas.find(pool, system))
        above = area["p_auccc"] - number(models, "p_auccc").value
        assert above == pytest.approx(area["mdp_auccc"], abs=2e-4)
        nearer = number(models, "oracle_distance").value - area["oracle_distance"]
        assert nearer == pytest.approx(area["oracle_distance_reduction"], abs=2e-4)


def test_shifts_and_paired_differences_add_up() -> None:
    for label in ("tab:mmlupro_shift", "tab:hle_shift"):
        for row in read_published()[label].rows:
            numbers = values(row)
            assert numbers["shifted"] - numbers["reference"] == pytest.approx(
                numbers["difference"], abs=1.1e-4
            )
    for row in read_published()["tab:paired_bootstrap_unified"].rows:
        difference, numbers = number(row, "difference"), values(row)
        assert difference.lower <= difference.value <= difference.upper
        apart = numbers["SharedTrunkNet"] - numbers["Unified Multitask"]
        assert apart == pytest.approx(difference.value, abs=1.1e-4)


def test_fisher_is_best_or_nearly_everywhere_as_the_paper_says() -> None:
    rows = [values(row) for row in read_published()["tab:layer_selector_ablation"].rows]
    others = ("Random", "Last", "d_eff", "alpha")
    behind = [max(row[name] for name in others) - row["Fisher J"] for row in rows]
    assert len(rows) == 18
    assert sum(gap <= 1e-9 for gap in behind) == 16
    assert max(behind) == pytest.approx(3e-4)


def test_seed_extremes_hold_the_mean() -> None:
    for row in read_published()["tab:seed_variability_all"].rows:
        for value in row.values():
            if isinstance(value, dict) and "lowest" in value:
                assert value["lowest"] < value["value"] < value["highest"]


def test_operating_points_add_up() -> None:
    for row in read_published()["tab:lambda_operating_points"].rows:
        assert sum(row[f"q{i}"] for i in range(1, 5)) == row["points"]


def test_end_to_end_savings_follow_from_the_totals() -> None:
    for row in read_published()["tab:end_to_end_cost_points"].rows:
        for other in ("semantic", "best_single"):
            saved = 1 - row["prefill_total"] / row[f"{other}_total"]
            assert saved == pytest.approx(row[f"savings_vs_{other}"], abs=1e-3)
    for row in read_published()["tab:end_to_end_latency"].rows:
        share = row["routing_seconds"] / (row["routing_seconds"] + row["completion_seconds"])
        assert share == pytest.approx(row["routing_share"], abs=1e-4)


def test_targets_are_found_whatever_they_are_called() -> None:
    names = ["openai/GPT-5", "gpt-5-chat", "Claude Sonnet 4", "deepseek-v3.1-terminus", "gpt-6"]
    assert match_targets("frontier", names) == {
        "Claude Sonnet 4": "claude-sonnet-4",
        "deepseek-v3.1-terminus": "deepseek-v3",
        "openai/GPT-5": "gpt-5",
        "gpt-5-chat": "gpt-5-chat",
    }
    both = ["deepseek-v3.1-terminus", "deepseek-v3-0324"]
    assert match_targets("frontier", both) == {"deepseek-v3-0324": "deepseek-v3"}
    assert match_targets("small", names) == {}


def test_what_the_paper_lacks_is_nothing() -> None:
    table: PublishedTable = read_published()["tab:global_routing"]
    assert table.number_of("mixed", "Model-only Pareto", "mdp_auccc") is None
    assert table.number_of("mixed", "nobody", "p_auccc") is None
