"""The record of how a router was made, its card, and the targets that joined or left since.

Nothing in the record affects decisions but the lam that versions serve at. The card is what a
person should know before trusting a router, as Markdown.

The log-odds of a target that joined after the fit are a linear function of those of the targets
that the router was fitted for,

    z_new = w[0] + w[1] * m + sum over j of w[j + 2] * (z[j] - m)

with `z` the log-odds of their shrunk and calibrated probabilities and `m` their mean. The weights
have a normal distribution, the posterior after the target's labels (`fitting.add_target`), so
that every prediction has a standard deviation, which few labels leave large. The probability is
the mean over this distribution, after its log-odds are lowered by `caution` standard deviations.
The fitted parts stay as they are: the other targets' probabilities and costs don't change.
"""

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Any, ClassVar, NamedTuple, final

import numpy as np
from jaxtyping import Float64
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict, Field, NonNegativeFloat, NonNegativeInt

from prefill_router.cost import Expected
from prefill_router.data import Kind, LabelMeaning
from prefill_router.errors import ConfigError
from prefill_router.policy import OperatingPoints
from prefill_router.predictors import Correctness
from prefill_router.serialization import Names, Part
from prefill_router.short_repr import html_table, short_repr
from prefill_router.statistics import log_odds, sigmoid
from prefill_router.targets import Pool


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


@short_repr
class RouterRecord(BaseModel):
    """The content of a router's card, besides the parts that decide.

    Attributes:
        created: The day of the fit, ISO 8601.
        package: The version of prefill-router that fitted it.
        trained_on: The dataset.
        labels: What it learned from: right answers, scores, or votes. From votes its predictions
            are chances to win against the average target.
        options: The options of the fit, by name.
        verdict: Whether it is worth it, by cross-fitting or else on the test part:
            `evaluation.Verdict.to_dict`, or `evaluation.WinVerdict.to_dict` from votes.
        test_verdict: The verdict on the test part alone, where there is one by cross-fitting too.
        chosen: The settings that were chosen on train rows, out of fold.
        references: What a verdict compares it with: `evaluation.References.to_dict`, or
            `evaluation.FixedRanking.to_dict` from votes.
        metrics: Metrics on the test part, or else by cross-fitting, by the keys of `metrics.json`.
        training: The training curves, as `predictors` returns them.
        notes: Notes for the user, such as which targets have too few labels.
        licences: The licences of encoders and benchmarks, by name, as far as somebody gave them.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)
    created: str
    package: str
    trained_on: TrainedOn
    labels: Kind = "right"
    options: dict[str, Any] = {}
    verdict: dict[str, Any] | None = None
    test_verdict: dict[str, Any] | None = None
    chosen: OperatingPoints | None = None
    references: dict[str, Any] | None = None
    metrics: dict[str, Interval] = {}
    training: dict[str, Any] = {}
    notes: tuple[str, ...] = ()
    licences: dict[str, str] = {}

    def with_licences(self, licences: Mapping[str, str]) -> "RouterRecord":
        """The record with the licences of encoders and benchmarks, by name."""
        return self.model_copy(update={"licences": {**self.licences, **licences}})

    def drop_measurements(self, note: str) -> "RouterRecord":
        """The record after its targets changed: without what was measured of the old pool."""
        notes = (*self.notes, f"{note}; metrics and settings of the old pool were dropped")
        names = ("verdict", "test_verdict", "chosen", "references")
        dropped: dict[str, Any] = {"metrics": {}, **dict.fromkeys(names)}
        return self.model_copy(update={"notes": notes, **dropped})


_LICENCES = {
    "minilm": "Apache-2.0 (sentence-transformers/all-MiniLM-L6-v2)",
    "smollm2": "Apache-2.0 (HuggingFaceTB/SmolLM2-135M-Instruct)",
    "minipool": "Apache-2.0, as prefill-router",
}
"""The licences of encoders that a package brings, with their repositories on the hub."""
_is_repository = re.compile(r"[\w.-]+/[\w.-]+").fullmatch
_is_commit = re.compile(r"[0-9a-f]{40}").fullmatch
_TITLES = {
    "chosen_accuracy": "accuracy at the lam chosen on train rows",
    "chosen_gain": "its gain over the best single target",
    "savings": "saved at no less accuracy than the best single target",
    "savings_gain": "accuracy gained at these savings",
    "argmax_accuracy": "accuracy at lam = 1",
    "best_single_accuracy": "best single target",
    "oracle_accuracy": "oracle",
    "auc_mean": "mean AUC over targets",
    "choice_auc": "choice AUC over pairs of targets",
    "choice_auc_best": "choice AUC over pairs of the best six",
    "brier_mean": "mean Brier score",
    "mdp_auccc": "MDP-AUCCC",
    "p_auccc": "P-AUCCC",
    "oracle_distance": "oracle distance",
    "win_rate": "share of votes that its pick won",
    "ranking_win_rate": "the same of the best fixed ranking",
    "win_gain": "its gain over the ranking",
    "max_lam_accuracy": "the paper's, picked on the same queries: highest accuracy over lam",
    "headroom_captured": "likewise: headroom captured there",
    "cost_savings": "likewise: saved there against the most expensive target",
}


def card(
    record: RouterRecord,
    pool: Pool,
    parts_read: Sequence[Sequence[str]],
    encoders: Sequence[dict[str, Any]],
    *,
    version: int,
) -> str:
    """The README.md of a router's folder.

    Args:
        record: The record of the router.
        pool: Its targets and prices.
        parts_read: Rows of a table of the router's parts.
        encoders: The provenance of each encoder.
        version: The version of the folder's format.
    """
    parts = [
        _front_matter(encoders),
        f"# A router over {len(pool)} targets\n\n{_write_summary(record, pool, version)}\n",
        "## Is it worth having?\n\n" + _write_verdict(record),
        "## How to use it\n\n```python\nfrom prefill_router import Router\n\n"
        'router = Router.load("this folder")\nrouter.route("your request").target\n```\n',
        "## Metrics\n\n" + _write_metrics(record.metrics),
        "## Targets and prices\n\n" + _write_prices(pool),
        "## Features, predictor and policy\n\n" + _write_table(("part", "value"), parts_read),
        "## Encoders\n\n" + _write_encoders(encoders),
        "## Licences\n\n" + _write_licences(record, encoders),
        "## Notes\n\n" + ("".join(f"- {note}\n" for note in record.notes) or "None.\n"),
    ]
    return "\n".join(parts)


def record_html(
    title: str,
    record: RouterRecord,
    pool: Pool,
    accuracy: Float64[NDArray[np.float64], " target"] | None,
) -> str:
    """What a notebook shows of a router: its verdict and its targets.

    Args:
        title: The router in a line.
        record: The record of the router.
        pool: Its targets and prices.
        accuracy: Each target's accuracy on the train rows, if known.
    """
    verdict = record.verdict
    verdict_text = (
        "not evaluated" if verdict is None else f"{verdict['word']}: {verdict['because']}"
    )
    shares = [None] * len(pool) if accuracy is None else accuracy.tolist()
    rows = [
        (target.name, share, target.input_price, target.output_price)
        for target, share in zip(pool, shares, strict=True)
    ]
    share = LabelMeaning(kind=record.labels).title
    head = ("target", f"{share} on train rows", "$ per million tokens in", "out")
    return html_table(f"{title}, {verdict_text}", head, rows)


def _write_summary(record: RouterRecord, pool: Pool, version: int) -> str:
    origin = f"{record.created} with prefill-router {record.package}; format {version}"
    if not record.trained_on.queries:
        return f"Imported on {origin}. What it was fitted on is unknown."
    sizes = ", ".join(f"{count:,} {part}" for part, count in record.trained_on.queries.items())
    sources = ", ".join(
        f"{name or 'unnamed'} ({count:,})" for name, count in record.trained_on.benchmarks.items()
    )
    return (
        f"Fitted on {origin}. Queries: {sizes}; from {sources}; "
        f"{record.trained_on.missing_labels:,} labels were missing. The dataset's fingerprint is "
        f"`{record.trained_on.fingerprint}`. Prices as of {pool.prices_date or 'an unknown day'}."
        f"{_VOTE_NOTE if record.labels == 'vote' else ''}"
    )


_VOTE_NOTE = (
    "\n\nThe labels are votes between two answers. So it predicts each target's chance to win "
    "against the average target, and no accuracy is claimed."
)


def _write_verdict(record: RouterRecord) -> str:
    if record.verdict is None:
        return "Not evaluated: fit it again, or see `prefill-router doctor`.\n"
    word, because = record.verdict["word"], record.verdict["because"]
    lines = "".join(f"- {line}.\n" for line in record.verdict["lines"])
    sealed = record.test_verdict
    alone = (
        ""
        if sealed is None
        else f"\nOn the test part alone: {sealed['word']}, {sealed['because']}.\n"
    )
    return f"**{str(word).capitalize()}**: {because}.\n\n{lines}{alone}"


def _write_metrics(metrics: dict[str, Interval]) -> str:
    rows = [
        (title, _format_number(metrics[key].value), _format_interval(metrics[key]))
        for key, title in _TITLES.items()
        if key in metrics
    ]
    return _write_table(("metric", "value", "95 % interval"), rows) if rows else "Not evaluated.\n"


def _write_prices(pool: Pool) -> str:
    rows = [
        (t.name, "unknown", "unknown")
        if t.input_price is None
        else (t.name, f"{t.input_price:g}", f"{t.output_price:g}")
        for t in pool
    ]
    return _write_table(("target", "$ per million tokens in", "out"), rows)


def _write_encoders(encoders: Sequence[dict[str, Any]]) -> str:
    return "".join(
        f"- {facts['encoder']}: "
        + ", ".join(f"{key} `{value}`" for key, value in facts.items() if key != "encoder")
        + "\n"
        for facts in encoders
    )


def _front_matter(encoders: Sequence[dict[str, Any]]) -> str:
    """What hubs read of a card; they show the encoders as those that it was made from."""
    lines = ["library_name: prefill-router", "tags:", "- llm-routing", "- prefill-router"]
    made_from = dict.fromkeys(name for facts in encoders for name in _find_repositories(facts))
    if made_from:
        lines += ["base_model:", *(f"- {json.dumps(name)}" for name in made_from)]
    return "\n".join(["---", *lines, "---\n"])


def _find_repositories(facts: Mapping[str, Any]) -> Iterator[str]:
    """The repository of an encoder on the hub, if it is known to have one."""
    name = str(facts["encoder"])
    _, _, published = _LICENCES.get(name, "").rstrip(")").partition(" (")
    if published:
        yield published
    elif _is_repository(name) and _is_commit(str(facts["revision"])):
        yield name


def _write_licences(record: RouterRecord, encoders: Sequence[dict[str, Any]]) -> str:
    """Whose terms hold besides those of the router's owner, as far as that is known."""
    licences, lines = record.licences, list[str]()
    read = dict.fromkeys(str(facts["encoder"]) for facts in encoders)
    for name in read:
        default = _LICENCES.get(name, "not recorded; see where it was published")
        lines.append(f"The encoder {name}: {licences.get(name, default)}")
    for name in record.trained_on.benchmarks or ("",):
        default = "not recorded; ask who gave them before you publish it"
        lines.append(f"The answers ({name or 'unnamed data'}): {licences.get(name, default)}")
    others = licences.keys() - read.keys() - record.trained_on.benchmarks.keys()
    lines += [f"{name}: {licences[name]}" for name in sorted(others)]
    return "".join(f"- {line}.\n" for line in lines)


def _write_table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "".join(
        "| " + " | ".join(cell.replace("|", "\\|") for cell in r) + " |\n" for r in lines
    )


def _format_interval(metric: Interval) -> str:
    return f"{_format_number(metric.lower)} to {_format_number(metric.upper)}"


def _format_number(value: float | None) -> str:
    return "-" if value is None else f"{value:.4f}"


Table = Float64[NDArray[np.float64], "query target"]
Present = Float64[NDArray[np.float64], "query present"]
Inputs = Float64[NDArray[np.float64], "query column"]
Weights = Float64[NDArray[np.float64], " column"]
Covariance = Float64[NDArray[np.float64], "column column"]
_SURE = 0.02
"""The least distance of a probability from 0 and 1 as an input; beyond it log-odds are noise."""


class TargetHead(NamedTuple):
    """What was learned of a target that joined.

    Attributes:
        weights: The posterior mean, one per column of `head_inputs`.
        covariance: The posterior covariance.
        caution: The standard deviations by which its log-odds are lowered.
        labels: The number of labels that it was learned from.
        output_ratio: Its output tokens for one of `shared_output`; None where unknown.
    """

    weights: Weights
    covariance: Covariance
    caution: float
    labels: int
    output_ratio: float | None


@short_repr
@final
@dataclass(frozen=True, eq=False)
class PoolChanges(Part):
    """Which targets joined and left, and the heads of those that joined.

    Attributes:
        fitted: The targets that the router was fitted for.
        targets: The targets that it has now: some of the fitted ones in order, then those that
            joined.
        caution: For each that joined, see `TargetHead`; likewise the other attributes.
        labels: The number of labels.
        output_ratio: The output tokens for one of `shared_output`.
        weights: The posterior means.
        covariance: The posterior covariances.
    """

    noun: ClassVar[str] = "changed targets"
    axes: ClassVar = {"head": "labels"}
    fitted: Names
    targets: Names
    caution: tuple[NonNegativeFloat, ...]
    labels: tuple[NonNegativeInt, ...]
    output_ratio: tuple[Annotated[float, Field(gt=0)] | None, ...]
    weights: Float64[NDArray[np.float64], "head column"]
    covariance: Float64[NDArray[np.float64], "head column column"]

    @classmethod
    def none(cls, fitted: tuple[str, ...]) -> "PoolChanges":
        """No change."""
        width = len(fitted) + 2
        nothing = np.zeros((0, width)), np.zeros((0, width, width))
        return cls(fitted, fitted, (), (), (), *nothing)

    def __post_init__(self) -> None:
        heads = {len(self.caution), len(self.labels), len(self.output_ratio), len(self.weights)}
        if heads != {len(self.joined_targets)} or self.weights.shape[1] != len(self.fitted) + 2:
            raise ConfigError(
                f"{len(self.joined_targets)} targets joined {len(self.fitted)}; the heads are "
                f"{self.weights.shape}, and need {len(self.fitted) + 2} weights each"
            )

    @property
    def joined_targets(self) -> tuple[str, ...]:
        """The targets that joined, in order."""
        return tuple(name for name in self.targets if name not in self.fitted)

    @property
    def remaining_places(self) -> list[int]:
        """The positions of the fitted targets that are still there."""
        return [self.fitted.index(name) for name in self.targets if name in self.fitted]

    def with_head(self, name: str, head: TargetHead) -> "PoolChanges":
        """The same with one more target."""
        return replace(
            self,
            targets=(*self.targets, name),
            caution=(*self.caution, head.caution),
            labels=(*self.labels, head.labels),
            output_ratio=(*self.output_ratio, head.output_ratio),
            weights=np.concatenate([self.weights, head.weights[None]]),
            covariance=np.concatenate([self.covariance, head.covariance[None]]),
        )

    def without(self, name: str) -> "PoolChanges":
        """The same without one of the targets."""
        rows = [i for i, other in enumerate(self.joined_targets) if other != name]
        return replace(
            self,
            targets=tuple(other for other in self.targets if other != name),
            caution=tuple(self.caution[i] for i in rows),
            labels=tuple(self.labels[i] for i in rows),
            output_ratio=tuple(self.output_ratio[i] for i in rows),
            weights=self.weights[rows],
            covariance=self.covariance[rows],
        )

    def correctness(self, fitted: Correctness) -> Present:
        """The probabilities of the present targets from those of the fitted ones."""
        inputs, added = head_inputs(fitted), []
        for weights, covariance, caution in zip(
            self.weights, self.covariance, self.caution, strict=True
        ):
            spread = np.sqrt(np.maximum(((inputs @ covariance) * inputs).sum(axis=1), 0))
            lowered = inputs @ weights - caution * spread
            added.append(sigmoid(lowered / np.sqrt(1 + np.pi / 8 * spread**2)))  # MacKay 1992
        return np.column_stack([fitted[:, self.remaining_places], *added])

    def expected(self, fitted: Expected) -> Expected:
        """The predicted outputs of the present targets from those of the fitted ones."""
        shared = shared_output(fitted.mean), shared_output(fitted.high)
        ratios = [np.nan if ratio is None else ratio for ratio in self.output_ratio]
        return Expected(
            *(
                np.column_stack(
                    [table[:, self.remaining_places], np.multiply.outer(column, ratios)]
                )
                for table, column in zip(fitted, shared, strict=True)
            )
        )


def head_inputs(correctness: Correctness) -> Inputs:
    """The columns that a head weights: 1, the mean log-odds, and each target's distance to it."""
    each = log_odds(np.clip(correctness, _SURE, 1 - _SURE))
    mean = each.mean(axis=1, keepdims=True)
    return np.hstack([np.ones_like(mean), mean, each - mean])


def shared_output(expected: Table) -> Float64[NDArray[np.float64], " query"]:
    """The geometric mean of the targets' predicted outputs of each query; NaN without any."""
    is_present = ~np.isnan(expected)
    logs = np.log(np.where(is_present, expected, 1))
    count = is_present.sum(axis=1)
    return np.where(count > 0, np.exp(logs.sum(axis=1) / np.maximum(count, 1)), np.nan)
