"""What follows from changes: a version that leaves a worse target, and which labels still count."""

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from datetime import UTC, datetime

import numpy as np

from prefill_router.errors import ConfigError
from prefill_router.fitting import remove_target
from prefill_router.gateway import Receipt
from prefill_router.gateway.receipts import Feedback, LabelledSample, RecordedChange
from prefill_router.policy import OperatingPoints
from prefill_router.router import Router, VersionRegistry, VersionState, read_light
from prefill_router.targets import Pool


def follow_changes(
    registry: VersionRegistry,
    changes: Sequence[RecordedChange],
    pool: Pool,
    *,
    charged: Sequence[str] = (),
    day: str | None = None,
) -> str | None:
    """Let a version serve that leaves the targets that got worse, and has the present prices.

    A target is left once for each change, so that an operator may take the step back.

    Args:
        registry: The versions.
        changes: All changes so far.
        pool: The targets at the prices that their providers charge.
        charged: Those of which these aren't the list prices.
        day: The day of the prices, ISO 8601.

    Returns:
        Its name; None where the version that serves is as it should be, or none serves.
    """
    state = registry.state()
    if state.current is None:
        return None
    version, place = state[state.current], registry.router(state.current)
    running = read_light(place).pool
    known = {target.name: target for target in pool if target.has_price}
    targets = tuple(t.priced_as(known[t.name]) if t.name in known else t for t in running)
    moved = {new.name for old, new in zip(running, targets, strict=True) if old != new}
    worse = _worse(state, changes, len(pool))
    left = [one for one in worse if one.target in running.names]
    if not moved and not left:
        return None
    router = Router.load(place)
    points = router.record.chosen
    if moved:
        router = router.with_pool(replace(running, targets=targets, prices_date=day))
    for one in left:
        with suppress(ConfigError):  # a router needs two targets
            router = remove_target(router, one.target)
    left = [one for one in left if one.target not in router.pool.names]
    if not moved and not left:
        return None
    if left and points is not None:
        router = _at_its_lam(router, points)
    prices = {one.target: one for one in changes if one.kind == "price" and one.target in moved}
    answered = [*left, *prices.values()]
    name = registry.add(
        router,
        {
            **version.model_dump(include={"data", "labels", "traffic", "changes"}),
            "charged": tuple(name for name in charged if name in router.pool.names),
            "notes": tuple(map(change_words, answered)),
        },
    )
    told = {one.id: {"since": one.since, **one.evidence} for one in answered}
    why = "; ".join(map(change_words, answered))
    registry.promote(name, evidence={"why": why, "changes": told})
    return name


def _at_its_lam(router: Router, points: OperatingPoints) -> Router:
    """The router with the lam that it had before targets left."""
    names, reference = router.pool.names, router.reference
    if points.best not in names:
        if reference is None:
            return router
        points = replace(points, best=names[int(np.nanargmax(reference.accuracy))])
    record = router.record.model_copy(update={"chosen": replace(points, thrifty=None)})
    return replace(router, record=record)


def _worse(
    state: VersionState, changes: Iterable[RecordedChange], targets: int
) -> list[RecordedChange]:
    """The changes for the worse that the version that serves doesn't know, and no step answered.

    None where more than half of the targets seem worse: then the judge is probably another.
    """
    told = {one for step in state.steps for one in step.evidence.get("changes", ())}
    known = () if state.current is None else state[state.current].changes
    worse = [one for one in changes if one.evidence.get("direction") == "worse"]
    new = [one for one in worse if one.id not in known]
    if 2 * len({one.target for one in new}) > targets:
        return []
    return [one for one in new if one.id not in told]


def follows_change(state: VersionState, version: str) -> bool:
    """Whether a version serves because of a change, and not because of labels."""
    return any("changes" in step.evidence for step in state.steps if step.version == version)


def fit_is_due(state: VersionState, changes: Iterable[RecordedChange]) -> bool:
    """Whether targets or traffic changed since any version was fitted."""
    known = {one for version in state.versions for one in version.changes}
    return any(one.kind != "price" and one.id not in known for one in changes)


def current_samples(
    samples: Mapping[str, LabelledSample], since: Mapping[str, float]
) -> dict[str, LabelledSample]:
    """Samples without the labels of answers that a target gave before it was another.

    Args:
        samples: The samples, by decision.
        since: By target, the time from which on its answers count, in seconds since 1970.
    """
    return {name: _current(one, since) for name, one in samples.items()}


def _current(sample: LabelledSample, since: Mapping[str, float]) -> LabelledSample:
    questions, answers = sample.questions, sample.answers
    if questions is None:
        return sample
    given = {name: answers[name].at if name in answers else sample.sample.at for name in since}
    old = [name for name in since if given[name] < since[name]]
    kept = [name for name in questions.drawn if name not in old]
    chances = {**questions.propensity, **dict.fromkeys(old, 0.0)}
    return replace(sample, questions=replace(questions, drawn=kept, propensity=chances))


def current_scores(
    scored: Iterable[tuple[Receipt, list[Feedback]]], since: Mapping[str, float]
) -> Iterator[tuple[Receipt, list[Feedback]]]:
    """Receipts without the feedback on such answers; arguments as in `current_samples`."""
    for receipt, scores in scored:
        start = since.get(receipt.outcome.target or "", -math.inf)
        yield receipt, scores if receipt.at >= start else []


def change_words(change: RecordedChange) -> str:
    """A change and its evidence, in words."""
    told, name = change.evidence, change.target
    when = datetime.fromtimestamp(change.since, UTC).isoformat(timespec="seconds")
    if change.kind == "quality":
        return (
            f"{name} is {told['direction']} since {when}: {told['observed']:.0%} of "
            f"{told['labels']:,} answers were right, and {told['expected']:.0%} were expected"
        )
    if change.kind == "mix":
        what = f"predictions for {told['what']} are {told['direction']}"
        return f"the mix of requests is another since {when}: {what}"
    if "answers" not in told:
        return f"{name} has other list prices since {when}"
    return f"{name} costs {told['times the list']:.3g} times its list price since {when}"
