import pytest

from prefill_router.evaluation.bootstrap import PerResample
from prefill_router.evaluation.scores import (
    HEADLINE,
    REGIME,
    TARGET,
    MetricTable,
    Scores,
    definitions,
)


def accuracy(scores: Scores) -> PerResample:
    """What it means,
    on two lines.

    Reading: as it is
    """
    return scores.headline["argmax_accuracy"]


def test_a_metric_is_what_its_registration_and_its_function_say() -> None:
    table = MetricTable()
    register = table.metric("Accuracy", "share", "higher", quoted="elsewhere")
    assert register(accuracy) is accuracy
    (entry,) = table._registered[__name__].values()
    assert (entry.label, entry.unit, entry.better) == ("Accuracy (elsewhere)", "share", "higher")
    assert entry.meaning == "What it means, on two lines."
    assert entry.readings == {"accuracy": "as it is"}
    assert entry.compares


def test_two_metrics_of_one_name_are_refused() -> None:
    table = MetricTable()
    table.metric("Accuracy", "share", "higher")(accuracy)
    with pytest.raises(ValueError, match="two metrics accuracy"):
        table.metric("Other", "share", "higher", name="accuracy")(accuracy)


@pytest.mark.parametrize("table", [HEADLINE, TARGET, REGIME], ids=["headline", "target", "regime"])
def test_every_metric_can_be_told_from_the_others_and_is_explained(table: MetricTable) -> None:
    labels = [entry.label for entry in table.values()]
    assert len(set(labels)) == len(labels) == len(table)
    assert all(entry.meaning.endswith(".") for entry in table.values())


def test_every_reading_is_told() -> None:
    definition_of = definitions(step=None, axis="inverse", max_cost=0.5)
    for table in (HEADLINE, TARGET, REGIME):
        for entry in table.values():
            assert set(entry.readings) <= set(definition_of)
    assert "0.5 US dollars per query" in definition_of["aiq"]
    assert not any("{" in text for text in definition_of.values())
