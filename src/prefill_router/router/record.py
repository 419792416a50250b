"""What is known of how a router came to be: it decides nothing, and it explains everything."""

from typing import Any

from pydantic import BaseModel, ConfigDict, Field

from prefill_router.brief import brief
from prefill_router.evaluation import OperatingPoints


class Interval(BaseModel):
    """A number with its 95 % bootstrap interval; null where it has no value."""

    model_config = ConfigDict(extra="forbid", frozen=True)
    value: float | None
    lower: float | None
    upper: float | None


class TrainedOn(BaseModel):
    """The dataset of a router."""

    model_config = ConfigDict(extra="forbid", frozen=True)
    fingerprint: str = Field(description="RoutingDataset.fingerprint of the whole dataset")
    queries: dict[str, int] = Field(description="queries of each part of the split")
    benchmarks: dict[str, int] = Field(description="queries of each benchmark, all parts")
    missing_labels: int = Field(description="(query, target) pairs that weren't measured")


@brief
class Record(BaseModel):
    """Everything that a router's card tells, beside what the router decides with.

    Attributes:
        created: Day of the fit, ISO 8601.
        package: Version of prefill-router that fitted it.
        trained_on: The dataset.
        options: The options of the fit, by name.
        verdict: Whether it is worth having, judged on the test part: `evaluation.Verdict.to_dict`.
        chosen: The settings that were chosen on train rows, out of fold.
        metrics: On the test part, by the keys of `metrics.json`.
        training: The training curves, as `predictors` gives them.
        notes: What the reader should know, such as targets that couldn't be judged.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)
    created: str
    package: str
    trained_on: TrainedOn
    options: dict[str, Any] = {}
    verdict: dict[str, Any] | None = None
    chosen: OperatingPoints | None = None
    metrics: dict[str, Interval] = {}
    training: dict[str, Any] = {}
    notes: tuple[str, ...] = ()
