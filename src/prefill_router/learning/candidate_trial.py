"""Tries a candidate on labelled traffic that it wasn't fitted on, and takes the step that follows.

What serves now is watched in the same way: if it is surely worse than what served before, it is
rolled back.
"""

import math
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Final, final

import numpy as np

from prefill_router.activations import Activations
from prefill_router.data import RoutingDataset
from prefill_router.errors import DataError
from prefill_router.gateway import Receipt
from prefill_router.gateway.receipts import export, labelled_samples, scored_receipts
from prefill_router.learning.change_steps import (
    current_samples,
    current_scores,
    follows_change,
)
from prefill_router.learning.rollout import (
    Choices,
    RolloutData,
    RolloutDecision,
    RolloutSettings,
    advance,
    decide_rollout,
)
from prefill_router.policy import Predictions
from prefill_router.progress import Progress
from prefill_router.router import EncoderSources, Router, VersionLineage, VersionRegistry
from prefill_router.short_repr import short_repr
from prefill_router.targets import Pool

_USUAL_LAM: Final = 0.5
"""The lam of routers without one of their own, as the gateway has it."""


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
        tried, against = state.candidate, state.current
        if tried is None:
            tried, against = state.current, state.before
        if tried is None or follows_change(state, tried):
            return None
        found = self._data(state[tried], against, progress)
        if isinstance(found, str):
            return CandidateStep(
                version=tried, decision=RolloutDecision("wait", found), is_taken=False
            )
        data, settings = found
        decision = decide_rollout(data, settings)
        after = advance(self.registry, decision, tried, settings)
        return CandidateStep(version=tried, decision=decision, is_taken=after is not None)

    def _data(
        self, tried: VersionLineage, against: str | None, progress: Progress
    ) -> tuple[RolloutData, RolloutSettings] | str:
        """The labelled traffic since the version was fitted, or why there is none."""
        router = Router.load(self.registry.router(tried.name), sources=self.sources)
        since = -math.inf if tried.traffic is None else math.nextafter(tried.traffic[1], math.inf)
        samples = current_samples(labelled_samples(self.receipts, since=since), self.since)
        scored = current_scores(scored_receipts(self.receipts, since=since), self.since)
        known = [pair for pair in scored if pair[0].choice.id in samples]
        if not known:
            return "no request was kept since those that it was fitted on"
        try:
            made = export(known, pool=self.pool, samples=samples, errors=self.errors)
        except DataError as error:
            return str(error)
        dataset = made.dataset
        running = None
        if against is not None:
            running = Router.load(self.registry.router(against), sources=self.sources)
        for name, one in ((tried.name, router), (against, running)):
            names = () if one is None else one.pool.names
            if lacking := [target for target in names if target not in dataset.pool.names]:
                return f"the pool lacks targets of {name}: {', '.join(lacking)}"
        served = {receipt.choice.id: receipt for receipt, _ in known}
        states = self.states(dataset)
        made_by, candidate = _choices(router, dataset, states, progress)
        most = made_by.scale.high
        if running is None:
            current = _default(made_by, served, tried)
            if current is None:
                return f"what served before {tried.name} isn't one of its targets"
        else:
            theirs, chosen = _choices(running, dataset, states, progress)
            made_by, current = _with_others(made_by, theirs, chosen)
            most = max(most, theirs.scale.high)
        cells = dataset.select(made_by.query_ids, targets=made_by.targets)
        unknown = np.zeros(cells.correct.shape)
        asked = [samples[name].questions for name in made_by.query_ids]
        drawn = [[o is not None and t in o.drawn for t in made_by.targets] for o in asked]
        data = RolloutData(
            current=current,
            candidate=candidate,
            predicted=made_by.correctness,
            label=cells.correct,
            propensity=unknown if cells.propensity is None else cells.propensity,
            expected_dollars=made_by.estimated_cost,
            dollars=cells.observed_cost,
            label_error=cells.label_error,
            lost=np.array(drawn) & np.isnan(cells.correct),
            live=np.array([served[i].router == tried.fingerprint for i in made_by.query_ids]),
        )
        return data, RolloutSettings(most_dollars=most)


def _choices(
    router: Router, dataset: RoutingDataset, states: Activations, progress: Progress
) -> tuple[Predictions, Choices]:
    """A router's predictions, and its choices at the lam that was chosen on its train rows."""
    wanted = dataset.select(targets=router.pool.names)
    made = router.predict(wanted, stores=[states], progress=progress)
    path = router.policy.path(made.correctness, made.normalised_cost, targets=made.targets)
    points = router.record.chosen
    return made, path.at(_USUAL_LAM if points is None else points.worth)


def _with_others(
    made: Predictions, theirs: Predictions, chosen: Choices
) -> tuple[Predictions, Choices]:
    """Predictions with those for further targets of another router, and its choices in them."""
    more = [k for k, name in enumerate(theirs.targets) if name not in made.targets]
    names = (*made.targets, *(theirs.targets[k] for k in more))
    columns = np.array([names.index(name) for name in theirs.targets], dtype=np.int64)
    both = replace(
        made,
        targets=names,
        correctness=np.hstack([made.correctness, theirs.correctness[:, more]]),
        estimated_cost=np.hstack([made.estimated_cost, theirs.estimated_cost[:, more]]),
    )
    return both, columns[chosen]


def _default(
    made: Predictions, served: Mapping[str, Receipt], tried: VersionLineage
) -> Choices | None:
    """The target that answers most requests that the version didn't decide on."""
    others = [served[i] for i in made.query_ids if served[i].router != tried.fingerprint]
    names = Counter(receipt.outcome.target for receipt in others)
    found = names.most_common(1)[0][0] if names else None
    if found not in made.targets:
        return None
    return np.full(len(made), made.targets.index(found), dtype=np.int64)
