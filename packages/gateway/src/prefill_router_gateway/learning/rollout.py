"""Decides from labelled traffic whether a candidate takes over, and takes the step that follows.

Each request is a pair: the value of the candidate's choice minus that of the current router's. Both
are doubly robust estimates. These are right on average whatever the predictions, since chance
decided what was labelled. Tests by betting (`log_capital`) on these differences are valid however
often they are looked at. What can't be known, for lack of overlap, counts against each claim.

A test's hypothesis is about the mean of each difference given the earlier ones: it is meant for
traffic whose mix stays about the same while the candidate is tested. The turns of a conversation
may share an outcome, so they are one pair: the mean of their differences, once the last one came.

A candidate is tried on traffic that it wasn't fitted on, and on no conversation that began before
that. What serves now is watched in the same way: if it is surely worse than what served before, it
is rolled back.
"""

import math
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Annotated, Any, Final, Literal, final

import numpy as np
from jaxtyping import Bool, Float, Int, Shaped
from numpy.typing import NDArray
from pydantic import Field

from prefill_router.activations import Activations
from prefill_router.data import RoutingDataset
from prefill_router.errors import ConfigError, DataError
from prefill_router.options import (
    NOT_NEGATIVE,
    SHARE_BETWEEN,
    Fraction,
    NotNegative,
    Positive,
    check_options,
)
from prefill_router.policy import Predictions
from prefill_router.progress import Progress
from prefill_router.router import (
    EncoderSources,
    Router,
    VersionLineage,
    VersionRegistry,
    VersionState,
)
from prefill_router.short_repr import short_repr
from prefill_router.statistics import log_capital
from prefill_router.targets import Pool
from prefill_router_gateway import Receipt
from prefill_router_gateway.learning.target_changes import (
    current_samples,
    current_scores,
    follows_change,
)
from prefill_router_gateway.receipts import (
    LabelledSample,
    export,
    labelled_samples,
    scored_receipts,
    sessions_before,
    turns_by_request,
)

PerRequest = Float[NDArray[np.float64], " request"]
PerPair = Float[NDArray[np.float64], " pair"]
PerCell = Float[NDArray[np.float64], "request target"]
Choices = Int[NDArray[np.int64], " request"]
Action = Literal["wait", "share", "promote", "withdraw"]
Claim = Literal["not far worse", "no worse", "better", "worse", "cheaper", "not more expensive"]
_CLAIMS: Final = 6
_LEAST_ERROR: Final = 1e-9


@final
@dataclass(frozen=True, kw_only=True)
class RolloutSettings:
    """When a candidate takes over.

    Attributes:
        most_dollars: The most that one answer counts as costing, in US dollars; fixed beforehand,
            for example the 99th percentile of costs so far.
        margin: How much lower the share of correct answers may be.
        first_margin: The same before the candidate decides on a share of the conversations.
        cost_margin: How much more a better candidate may cost, as a share of the current cost.
        level: The probability of a wrong decision, ever, at most.
        floor: The lowest probability of being labelled that counts as overlap.
        most_error: The largest probability of a wrong label that is used.
        share: The share of conversations that the candidate decides on first.
        least_live: Sampled requests that the candidate must have decided on before it takes over.

    Raises:
        ConfigError: One is outside its limits.
    """

    most_dollars: Positive
    margin: Annotated[float, SHARE_BETWEEN] = 0.01
    first_margin: Annotated[float, SHARE_BETWEEN] = 0.05
    cost_margin: NotNegative = 0.0
    level: Annotated[float, SHARE_BETWEEN] = 0.05
    floor: Fraction = 0.1
    most_error: Annotated[float, Field(ge=0, lt=0.5)] = 0.2
    share: Annotated[float, SHARE_BETWEEN] = 0.1
    least_live: Annotated[int, NOT_NEGATIVE] = 50

    def __post_init__(self) -> None:
        check_options(self)
        if self.first_margin < self.margin:
            raise ConfigError(
                f"first_margin is {self.first_margin}; it must be at least margin, {self.margin}"
            )


@short_repr
@final
@dataclass(frozen=True, kw_only=True, eq=False)
class RolloutData:
    """Sampled requests in order of time, none of which the candidate was fitted on.

    Attributes:
        current: The column of the target that the current router chooses.
        candidate: The column of the target that the candidate chooses.
        predicted: Predicted probability of a correct answer, made without these labels.
        label: Whether the answer was correct, from 0 to 1; NaN where it wasn't labelled.
        propensity: The probability with which a cell was to be labelled; NaN counts as 0.
        expected_dollars: Estimated cost in US dollars.
        dollars: Observed cost where labelled; NaN where unknown, which leaves the prediction.
        label_error: The probability that a label is wrong; NaN for none.
        live: Whether the candidate itself decided on the request.
        lost: Whether a cell was to be labelled and no label came, so that it isn't known; None for
            none.
        conversations: The conversation of each request, as `RoutingDataset.conversations`.

    Raises:
        ConfigError: Shapes differ, or values are missing or outside their limits.
    """

    current: Choices
    candidate: Choices
    predicted: PerCell
    label: PerCell
    propensity: PerCell
    expected_dollars: PerCell
    dollars: PerCell | None = None
    label_error: PerCell | None = None
    live: Bool[NDArray[np.bool_], " request"] | None = None
    lost: Bool[NDArray[np.bool_], "request target"] | None = None
    conversations: Shaped[NDArray[np.str_], " request"] | None = None

    def __post_init__(self) -> None:
        shape = self.predicted.shape
        for name, value in vars(self).items():
            if value is not None and value.shape not in (shape, shape[:1]):
                raise ConfigError(f"{name} has the shape {value.shape}; {shape} is needed")
        for name in ("predicted", "label", "propensity"):
            values = getattr(self, name)
            if name == "predicted" and np.isnan(values).any():
                raise ConfigError("predicted holds NaN; every target needs a prediction")
            if (values < 0).any() or (values > 1).any():
                raise ConfigError(f"{name} holds values outside 0 to 1")
        if not np.isfinite(self.expected_dollars).all():
            raise ConfigError("expected_dollars holds NaN; every target needs an estimated cost")

    def __len__(self) -> int:
        return len(self.current)


@short_repr
@final
@dataclass(frozen=True)
class RolloutDecision:
    """What to do with a candidate, and why.

    Attributes:
        action: `wait` for more labels; let it decide on a `share` of conversations; `promote` it;
            or `withdraw` it.
        why: The reason, one sentence.
        proven: The claims that are proven, and after how many pairs each was.
        evidence: Counts, mean differences, and the e-value of each claim, for the registry.
        labels_needed: About how many more labels it takes at the present rate; None where more like
            these won't do, or none are needed.
    """

    action: Action
    why: str
    proven: dict[Claim, int] = field(default_factory=dict)
    evidence: dict[str, Any] = field(default_factory=dict)
    labels_needed: int | None = None


def decide_rollout(data: RolloutData, settings: RolloutSettings) -> RolloutDecision:
    """Decide from all requests so far; with more requests, what was proven stays proven.

    The level is divided equally among the six claims.
    """
    if not len(data):
        return RolloutDecision("wait", "there are no sampled requests yet")
    differences = _Differences.of(data, settings)
    margins = differences.margins(settings)
    bar = math.log(_CLAIMS / settings.level)
    proven, e_values = _test_claims(margins, bar)
    action, why, lacking = _choose_action(proven, data, settings)
    if lacking:
        without_overlap, beyond_bound = differences.count_losses()
        why += _describe_losses(without_overlap, beyond_bound, len(data))
    evidence = differences.evidence(data)
    evidence |= {"e_values": e_values, "needed_e_value": _round_value(math.exp(bar))}
    lacking_margins = [margins[claim][0] for claim in lacking]
    needed = _count_labels_needed(lacking_margins, bar, evidence["labels"])
    return RolloutDecision(action, why, proven, evidence, needed)


@final
@dataclass(frozen=True, eq=False)
class _Differences:
    """What the candidate's choices gain and cost over the current ones, as far as it is known.

    Attributes:
        pairs: The pairs that are compared.
        quality: The difference in quality of each request.
        has_overlap: Which requests say something of quality.
        within: Which differences in quality are within the bound.
        worst: The bound of each pair's quality.
        dollars: The difference in US dollars.
        excess: That beyond what is allowed.
        has_dollars: Which requests have both.
        most: The bound of each pair's US dollars.
    """

    pairs: "_Pairs"
    quality: PerRequest
    has_overlap: Bool[NDArray[np.bool_], " request"]
    within: Bool[NDArray[np.bool_], " request"]
    worst: PerPair
    dollars: PerRequest
    excess: PerRequest
    has_dollars: Bool[NDArray[np.bool_], " request"]
    most: PerPair

    @classmethod
    def of(cls, data: RolloutData, settings: RolloutSettings) -> "_Differences":
        """The differences of these requests."""
        pairs = _Pairs.of(data)
        quality = _quality_differences(data, settings, pairs)
        return cls(pairs, *quality, *_cost_differences(data, settings, pairs))

    @property
    def has_quality(self) -> Bool[NDArray[np.bool_], " request"]:
        """Which requests have a difference in quality that counts."""
        return self.has_overlap & self.within

    def margins(self, settings: RolloutSettings) -> dict[Claim, tuple[PerPair, PerPair]]:
        """By how much each pair speaks for each claim, and how far it can speak against it.

        What isn't known counts as its worst.
        """
        mean, most = self.pairs.mean, settings.most_dollars
        low, high = (mean(np.where(self.has_quality, self.quality, u)) for u in (-1.0, 1.0))
        cost = mean(np.where(self.has_dollars, self.dollars, most))
        excess = mean(np.where(self.has_dollars, self.excess, most))
        return {
            "not far worse": (low + settings.first_margin, self.worst),
            "no worse": (low + settings.margin, self.worst),
            "better": (low, self.worst),
            "worse": (-high - settings.margin, self.worst + settings.margin),
            "cheaper": (-cost, self.most),
            "not more expensive": (-excess, self.most * (1 + settings.cost_margin)),
        }

    def count_losses(self) -> tuple[int, int]:
        """How many requests say nothing of quality, and how many are beyond the bound."""
        return int((~self.has_overlap).sum()), int((self.has_overlap & ~self.within).sum())

    def evidence(self, data: RolloutData) -> dict[str, Any]:
        """Counts and mean differences, for the registry."""
        differs = data.current != data.candidate
        without_overlap, beyond_bound = self.count_losses()
        return {
            "requests": len(data),
            "pairs": len(self.pairs.count),
            "differ": int(differs.sum()),
            "without_overlap": without_overlap,
            "beyond_bound": beyond_bound,
            "labels": int((~np.isnan(data.label)).sum()),
            "compared": int((self.has_quality & differs).sum()),
            "quality": _round_mean(self.quality[self.has_quality]),
            "dollars": _round_mean(self.dollars[self.has_dollars]),
        }


def _test_claims(
    margins: Mapping[Claim, tuple[PerPair, PerPair]], bar: float
) -> tuple[dict[Claim, int], dict[Claim, float | None]]:
    """After how many pairs each proven claim was, and the highest e-value of every claim."""
    capital = {claim: log_capital(values, worst=most) for claim, (values, most) in margins.items()}
    proven = {
        claim: int(np.argmax(logs >= bar)) + 1
        for claim, logs in capital.items()
        if logs.max() >= bar
    }
    return proven, {
        claim: _round_value(math.exp(min(logs.max(), 600))) for claim, logs in capital.items()
    }


def _describe_losses(without_overlap: int, beyond_bound: int, requests: int) -> str:
    """How many requests say nothing about quality, and why; empty for none."""
    words = ""
    if without_overlap:
        words += (
            f"; {without_overlap:,} of {requests:,} requests say nothing, since one of both "
            "answers had next to no chance of a label"
        )
    if beyond_bound:
        words += (
            f"; {beyond_bound:,} of {requests:,} requests are left out, since their labels were "
            "less likely than those of all earlier ones"
        )
    return words


def advance(
    registry: VersionRegistry, decision: RolloutDecision, version: str, settings: RolloutSettings
) -> VersionState | None:
    """Take the step that a decision about a version means, with its evidence.

    In the shadow, a candidate that could be promoted gets a share of the conversations first. A
    version that serves already, and is surely worse than the one before, is rolled back.

    Args:
        registry: The versions.
        decision: The decision.
        version: The version that it is about.
        settings: When a candidate takes over.

    Returns:
        The state after the step; None where there is none to take.
    """
    state, action = registry.state(), decision.action
    evidence = {"why": decision.why, **decision.evidence}
    if state.current == version and action == "withdraw":
        return registry.roll_back(evidence=evidence, by="learner")
    if state.candidate != version:
        return None
    if action == "withdraw":
        return registry.withdraw(evidence=evidence)
    if action == "promote" and state.stage == "share":
        return registry.promote(version, evidence=evidence)
    if action in ("share", "promote") and state.stage == "shadow":
        return registry.widen(settings.share, evidence=evidence)
    return None


def _choose_action(
    proven: dict[Claim, int], data: RolloutData, settings: RolloutSettings
) -> tuple[Action, str, list[Claim]]:
    """The action, why, and the claims that are lacking for the next."""
    if "worse" in proven:
        return "withdraw", f"it is surely worse by more than {settings.margin:g}", []
    cheap: list[Claim] = ["no worse", "cheaper"]
    good: list[Claim] = ["better", "not more expensive"]
    lacking = [[claim for claim in claims if claim not in proven] for claims in (cheap, good)]
    live = 0 if data.live is None else int(data.live.sum())
    if "not far worse" not in proven:
        return "wait", f"it may be worse by {settings.first_margin:g} or more", ["not far worse"]
    if all(lacking):
        fewest = min(lacking, key=len)
        return "share", f"it isn't surely {' and '.join(fewest)} yet", fewest
    if live < settings.least_live:
        need = settings.least_live
        return "share", f"it has decided on {live} of the {need} requests that are needed", []
    met = cheap if not lacking[0] else good
    return "promote", f"it is surely {' and '.join(met)}", []


@final
@dataclass(frozen=True)
class _Pairs:
    """What is compared: requests, or whole conversations, in the order in which they ended.

    Attributes:
        place: The pair of each request.
        count: The number of requests of each pair.
    """

    place: Int[NDArray[np.int64], " request"]
    count: Int[NDArray[np.int64], " pair"]

    @classmethod
    def of(cls, data: RolloutData) -> "_Pairs":
        """The pairs of these requests."""
        rows = np.arange(len(data))
        if data.conversations is None:
            return cls(rows, np.ones(len(data), dtype=np.int64))
        _, group = np.unique(data.conversations, return_inverse=True)
        last = np.zeros(int(group.max()) + 1, dtype=np.int64)
        np.maximum.at(last, group, rows)
        place = np.argsort(np.argsort(last))[group]
        return cls(place, np.bincount(place))

    def mean(self, values: PerRequest) -> PerPair:
        """The mean of the values of each pair's requests."""
        return np.bincount(self.place, values) / self.count

    def highest(self, values: PerRequest) -> PerPair:
        """The highest value of each pair's requests."""
        highest = np.full(len(self.count), -np.inf)
        np.maximum.at(highest, self.place, values)
        return highest


def _quality_differences(
    data: RolloutData, settings: RolloutSettings, pairs: _Pairs
) -> tuple[
    PerRequest, Bool[NDArray[np.bool_], " request"], Bool[NDArray[np.bool_], " request"], PerPair
]:
    """The differences in quality, which have overlap, which are within bounds, and the bounds."""
    error = np.zeros(data.label.shape) if data.label_error is None else data.label_error
    error = np.nan_to_num(error)
    corrected = (data.label - error) / np.maximum(1 - 2 * error, _LEAST_ERROR)
    usable = np.where(error <= settings.most_error, np.nan_to_num(data.propensity), 0.0)
    if data.lost is not None:
        usable = np.where(data.lost, 0.0, usable)
    values, has_overlap = _estimate_values(data, data.predicted, corrected, usable, settings.floor)
    beyond = settings.most_error / (1 - 2 * settings.most_error)  # of a corrected label
    first, second = _values_of_choices(data, 1 / np.maximum(usable, settings.floor))
    within, worst = _bound_pairs((1 + beyond) * (first + second) - 1, pairs)
    return values[1] - values[0], has_overlap, within, worst


def _cost_differences(
    data: RolloutData, settings: RolloutSettings, pairs: _Pairs
) -> tuple[PerRequest, PerRequest, Bool[NDArray[np.bool_], " request"], PerPair]:
    """The differences in cost, those beyond what is allowed, which are known, and the bounds."""
    most = settings.most_dollars
    expected = np.clip(data.expected_dollars, 0, most)
    if data.dollars is None:
        values = np.stack(_values_of_choices(data, expected))
        is_priced = np.ones(len(data), dtype=bool)
        widest = np.full(len(data), most)
    else:
        observed, chance = np.clip(data.dollars, 0, most), np.nan_to_num(data.propensity)
        values, is_priced = _estimate_values(data, expected, observed, chance, settings.floor)
        first, second = _values_of_choices(data, 1 / np.maximum(chance, settings.floor))
        widest = most * (first + second - 1)
    beyond = values[1] - (1 + settings.cost_margin) * values[0]
    same = data.current == data.candidate
    beyond = np.where(
        same, -settings.cost_margin * expected[np.arange(len(data)), data.current], beyond
    )
    within, worst = _bound_pairs(widest, pairs)
    return values[1] - values[0], beyond, is_priced & within, worst


def _bound_pairs(
    widest: PerRequest, pairs: _Pairs
) -> tuple[Bool[NDArray[np.bool_], " request"], PerPair]:
    """Which differences are of pairs within the widest bound of earlier ones, and that bound.

    A bet must not depend on the pair that it is about. If pairs with a narrow bound counted for
    more, such as where both choose the same, the test would be about another mean.
    """
    each = pairs.highest(widest)
    worst = np.maximum.accumulate(np.concatenate([each[:1], each[:-1]]))
    return (each <= worst)[pairs.place], worst


def _estimate_values(
    data: RolloutData, predicted: PerCell, observed: PerCell, propensity: PerCell, floor: float
) -> tuple[Float[NDArray[np.float64], "choice request"], Bool[NDArray[np.bool_], " request"]]:
    """The doubly robust values of both choices, and where both are known or the same."""
    chance = np.maximum(propensity, floor)
    missing = np.isnan(observed) | (propensity < floor)
    robust = predicted + np.where(missing, 0.0, (observed - predicted) / chance)
    same = data.current == data.candidate
    enough = np.stack(_values_of_choices(data, propensity)) >= floor
    return np.stack(_values_of_choices(data, robust)), same | enough.all(axis=0)


def _values_of_choices(data: RolloutData, values: PerCell) -> tuple[PerRequest, PerRequest]:
    rows = np.arange(len(data))
    return values[rows, data.current], values[rows, data.candidate]


def _count_labels_needed(lacking: list[PerPair], bar: float, labels: int) -> int | None:
    """How many labels until the slowest claim is proven, if shortfalls go on like these.

    The logarithm of the capital grows by about half the squared mean over the mean square.
    """
    needed = [0.0]
    for shortfall in lacking:
        mean, square = float(shortfall.mean()), float((shortfall**2).mean())
        if mean <= 0:
            return None
        needed.append(2 * bar * square / mean**2 - len(shortfall))
    return math.ceil(max(needed) * labels / len(lacking[0])) if lacking else None


def _round_mean(values: PerRequest) -> float | None:
    return _round_value(values.mean() if len(values) else math.nan)


def _round_value(value: float) -> float | None:
    return float(f"{value:.4g}") if math.isfinite(value) else None


@final
@dataclass(frozen=True, kw_only=True)
class CandidateStep:
    """What became of the version that was tried.

    Attributes:
        version: The version.
        decision: The decision, with its evidence.
        is_taken: Whether a step was taken.
    """

    version: str
    decision: RolloutDecision
    is_taken: bool


@short_repr
@final
@dataclass(frozen=True, kw_only=True)
class CandidateTrial:
    """Tries versions against what serves, or served before.

    Attributes:
        receipts: The database of receipts.
        pool: The targets.
        registry: The versions.
        errors: The error of each source of labels.
        states: Makes the states of a dataset.
        sources: The paths of encoders, by name.
        since: By target that changed, the time from which on its answers count.
    """

    receipts: str
    pool: Pool
    registry: VersionRegistry
    errors: Mapping[str, float]
    states: Callable[[RoutingDataset], Activations]
    sources: EncoderSources
    since: Mapping[str, float] = field(default_factory=dict)

    def step(self, progress: Progress) -> CandidateStep | None:
        """Decide about the candidate, or else about what serves; None where there is neither."""
        state = self.registry.state()
        version, against = state.candidate, state.current
        if version is None:
            version, against = state.current, state.before
        if version is None or follows_change(state, version):
            return None
        evidence = self._collect_data(state[version], against, progress)
        if isinstance(evidence, str):
            return CandidateStep(
                version=version, decision=RolloutDecision("wait", evidence), is_taken=False
            )
        data, settings = evidence
        decision = decide_rollout(data, settings)
        after = advance(self.registry, decision, version, settings)
        return CandidateStep(version=version, decision=decision, is_taken=after is not None)

    def _collect_data(
        self, version: VersionLineage, against: str | None, progress: Progress
    ) -> tuple[RolloutData, RolloutSettings] | str:
        """The labelled traffic since the version was fitted, or why there is none."""
        traffic = self._export_since_fit(version)
        if isinstance(traffic, str):
            return traffic
        dataset, samples, served = traffic
        router = self._load(version.name)
        running = None if against is None else self._load(against)
        for name, other in ((version.name, router), (against, running)):
            names = () if other is None else other.pool.names
            if lacking := [target for target in names if target not in dataset.pool.names]:
                return f"the pool lacks targets of {name}: {', '.join(lacking)}"
        states = self.states(dataset)
        predictions, candidate = _predict_choices(router, dataset, states, progress)
        most = predictions.scale.high
        if running is None:
            current = _majority_target(predictions, served, version)
            if current is None:
                return f"what served before {version.name} isn't one of its targets"
        else:
            theirs, choices = _predict_choices(running, dataset, states, progress)
            predictions, current = _add_targets(predictions, theirs, choices)
            most = max(most, theirs.scale.high)
        cells = dataset.select(predictions.query_ids, targets=predictions.targets)
        zeros = np.zeros(cells.correct.shape)
        data = RolloutData(
            current=current,
            candidate=candidate,
            predicted=predictions.correctness,
            label=cells.correct,
            propensity=zeros if cells.propensity is None else cells.propensity,
            expected_dollars=predictions.estimated_cost,
            dollars=cells.observed_cost,
            label_error=cells.label_error,
            lost=_find_drawn(predictions, samples) & np.isnan(cells.correct),
            live=np.array(
                [served[id_].router == version.fingerprint for id_ in predictions.query_ids]
            ),
            conversations=None if cells.conversations is None else np.array(cells.conversations),
        )
        return data, RolloutSettings(most_dollars=most)

    def _load(self, version: str) -> Router:
        return Router.load(self.registry.router(version), sources=self.sources)

    def _export_since_fit(
        self, version: VersionLineage
    ) -> tuple[RoutingDataset, Mapping[str, LabelledSample], Mapping[str, Receipt]] | str:
        """The dataset, samples and receipts since a version was fitted, or why there are none."""
        since = (
            -math.inf if version.traffic is None else math.nextafter(version.traffic[1], math.inf)
        )
        samples = current_samples(labelled_samples(self.receipts, since=since), self.since)
        scored = current_scores(scored_receipts(self.receipts, since=since), self.since)
        turns = turns_by_request(self.receipts, since=since)
        decisions = {
            decision
            for name in samples
            for decision in (turns[name].ids if name in turns else (name,))
        }
        pairs = [pair for pair in scored if pair[0].choice.id in decisions]
        if not pairs:
            return "no request was kept since those that it was fitted on"
        try:
            dataset_export = export(
                pairs, pool=self.pool, samples=samples, turns=turns, errors=self.errors
            )
        except DataError as error:
            return str(error)
        dataset = self._leave_out_earlier(dataset_export.dataset, since)
        if dataset is None:
            return "all requests since it was fitted are of conversations that it was fitted on"
        return dataset, samples, {receipt.choice.id: receipt for receipt, _ in pairs}

    def _leave_out_earlier(self, dataset: RoutingDataset, since: float) -> RoutingDataset | None:
        """The queries without those whose conversation began before a time; None if none is left.

        The version may have been fitted on the earlier turns of these.
        """
        sessions = {query.conversation for query in dataset.queries if query.conversation}
        earlier = sessions_before(self.receipts, since, sessions)
        new = [query.id for query in dataset.queries if query.conversation not in earlier]
        return dataset.select(new) if new else None


def _predict_choices(
    router: Router, dataset: RoutingDataset, states: Activations, progress: Progress
) -> tuple[Predictions, Choices]:
    """A router's predictions, and its choices at the lam that was chosen on its train rows."""
    rows = dataset.select(targets=router.pool.names)
    predictions = router.predict(rows, stores=[states], progress=progress)
    path = router.policy.path(
        predictions.correctness, predictions.normalised_cost, targets=predictions.targets
    )
    return predictions, path.at(router.setting)


def _find_drawn(
    predictions: Predictions, samples: Mapping[str, LabelledSample]
) -> Bool[NDArray[np.bool_], "request target"]:
    """Which cells were drawn to be labelled."""
    plans = [samples[name].questions for name in predictions.query_ids]
    return np.array(
        [
            [plan is not None and target in plan.drawn for target in predictions.targets]
            for plan in plans
        ]
    )


def _add_targets(
    predictions: Predictions, theirs: Predictions, choices: Choices
) -> tuple[Predictions, Choices]:
    """Predictions with those for further targets of another router, and its choices in them."""
    more = [k for k, name in enumerate(theirs.targets) if name not in predictions.targets]
    names = (*predictions.targets, *(theirs.targets[k] for k in more))
    columns = np.array([names.index(name) for name in theirs.targets], dtype=np.int64)
    extended = replace(
        predictions,
        targets=names,
        correctness=np.hstack([predictions.correctness, theirs.correctness[:, more]]),
        estimated_cost=np.hstack([predictions.estimated_cost, theirs.estimated_cost[:, more]]),
    )
    return extended, columns[choices]


def _majority_target(
    predictions: Predictions, served: Mapping[str, Receipt], version: VersionLineage
) -> Choices | None:
    """The target that answers most requests that the version didn't decide on."""
    receipts = [
        served[decision]
        for decision in predictions.query_ids
        if served[decision].router != version.fingerprint
    ]
    names = Counter(receipt.outcome.target for receipt in receipts)
    target = names.most_common(1)[0][0] if names else None
    if target not in predictions.targets:
        return None
    return np.full(len(predictions), predictions.targets.index(target), dtype=np.int64)
