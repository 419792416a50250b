"""What public objects say of themselves: one line, whatever they hold."""

from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

from packages.router.tests.commands import Job
from prefill_router import ActivationStore, Message, Pool, Router, Target, read_dataset
from prefill_router.evaluation import Trial, evaluate
from prefill_router.router import EncoderSources
from prefill_router.short_repr import MOST_CHARACTERS, short_repr


@pytest.fixture(scope="module")
def objects(job: Job) -> dict[str, Any]:
    dataset, store = read_dataset(job.answers), ActivationStore.open(job.states)
    sources = EncoderSources(folders={job.tiny.name: job.tiny})
    router = Router.load(job.router, sources=sources)
    predictions = router.predict(dataset, stores=[store])
    trial = Trial.join(predictions, dataset.with_pool(router.pool), policy=router.policy)
    evaluation = evaluate(predictions, dataset.with_pool(router.pool), resamples=5)
    return {
        "dataset": dataset,
        "store": store,
        "router": router,
        "predictions": predictions,
        "trial": trial,
        "evaluation": evaluation,
        "curve": evaluation.curve,
        "decision": router.route("Why?"),
        "forecast": router.forecast_many(["Why?"])[0],
        "encoder": next(iter(router._encoders.values())),
        "split": router.split,
        "record": router.record,
        "features": router.features,
        "family": router.features.families[0],
        "predictor": router.predictor,
        "costs": router.costs,
        "reference": router.reference,
        "pool": Pool(tuple(Target(name=f"t{k}") for k in range(200))),
        "message": Message("user", "why\n" * 9999),
    }


@pytest.mark.slow
def test_what_a_session_holds_says_so_in_one_line(objects: dict[str, Any]) -> None:
    for name, value in objects.items():
        text = repr(value)
        assert "\n" not in text, name
        assert len(text) <= MOST_CHARACTERS, name


@pytest.mark.slow
def test_the_words_that_count_are_there(objects: dict[str, Any], job: Job) -> None:
    router = objects["router"]
    assert repr(router) == (
        f"<Router: 3 targets, shared_trunk on prefill, fitted {router.record.created}>"
    )
    assert repr(objects["store"]).endswith(f"sites of {job.tiny.name}, in {job.states}>")
    assert repr(objects["decision"]).startswith(
        f"Decision(target={objects['decision'].target!r}, lam={router.setting:.4g}"
    )
    assert (
        repr(objects["message"])
        == r"Message(role='user', content='why\nwhy\nwhy\nwh...y\nwhy\nwhy\nwhy\n')"
    )


@short_repr
@dataclass(frozen=True)
class Held:
    array: Any
    mapping: Any
    inner: Any = None


def test_arrays_are_told_by_shape_and_objects_by_type() -> None:
    held = Held(np.zeros((3, 4), np.float32), {f"k{i}": 1 / 3 for i in range(9)}, Held(1, 2))
    assert repr(held) == (
        "Held(array=float32[3, 4], mapping={'k0': 0.3333, 'k1': 0.3333, 'k2': 0.3333, ...}, "
        "inner=Held(...))"
    )
    assert (
        repr(Held(np.float64(0.12345678), np.int64(3)))
        == "Held(array=0.1235, mapping=3, inner=None)"
    )
    assert len(repr(Held({("x" * 99) + str(i): ["y" * 99] * 9 for i in range(9)}, {}))) <= 300
