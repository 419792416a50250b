"""Is a router worth using? A verdict, by comparison with fixed mixes of targets at equal cost.

The router at one operating point is compared with the best fixed mix of targets at equal cost, and
with the best mix that knows each query's domain; both are chosen on the train part. Every
difference is paired: on the queries where the outcomes of both sides are known.
"""

import math
from dataclasses import dataclass
from typing import Any, Literal, final

import numpy as np

from prefill_router.data import RoutingDataset
from prefill_router.evaluation.bootstrap import (
    Bootstrap,
    Estimate,
    PerResample,
    Weights,
    mean_over,
    ones,
    plain,
)
from prefill_router.evaluation.chance_labels import Choice
from prefill_router.evaluation.fixed_mix import FixedChoice, FixedOutcome
from prefill_router.evaluation.judged_predictions import Trial
from prefill_router.evaluation.metrics import NO_PAIR, PairRankings
from prefill_router.evaluation.scores import interval, worded
from prefill_router.short_repr import short_repr

Word = Literal["worth it", "can't tell", "not worth it"]
WORTH = 0.01
"""A gain of accuracy that can't reach this counts as none: one percentage point."""
HALF = 0.5
"""Where fewer than this share of the labelled queries can be compared, the verdict is open."""


@final
@dataclass(frozen=True)
class MixReference:
    """A reference for the router, and the router's gain over it.

    Attributes:
        gain: The router's accuracy minus the reference's at the same mean cost.
        accuracy: The reference's accuracy.
        router_accuracy: The router's accuracy on the same queries.
        cost: The router's mean cost on them, US dollars; NaN where unknown.
        queries: Number of these queries.
        refusal: Why no gain is known, where the labels lack overlap; else empty.
    """

    gain: Estimate
    accuracy: float
    router_accuracy: float
    cost: float
    queries: int
    refusal: str = ""

    @property
    def is_free(self) -> bool:
        """Whether no cost is known, so that accuracies alone are compared."""
        return math.isnan(self.cost)

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON."""
        return {
            "gain": self.gain.to_dict(),
            "accuracy": plain(self.accuracy),
            "router_accuracy": plain(self.router_accuracy),
            "mean_cost": plain(self.cost),
            "queries": self.queries,
        }


@short_repr
@final
@dataclass(frozen=True)
class Verdict:
    """The verdict on a router at one operating point.

    Attributes:
        word: The verdict in two or three words.
        because: The reason, as a sentence.
        lam: The operating point.
        queries: How many queries were judged.
        mix: The comparison with the best fixed mix.
        domains: The comparison with the best mix that knows the domain; None where there is only
            one domain.
        choice_auc: How well the probabilities identify which of two targets is right.
        needed: About how many judged queries would decide it, where the verdict is open; else 0.
    """

    word: Word
    because: str
    lam: float
    queries: int
    mix: MixReference
    domains: MixReference | None
    choice_auc: Estimate
    needed: int = 0

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON."""
        return {
            "word": self.word,
            "because": self.because,
            "lam": self.lam,
            "queries": self.queries,
            "figures": {
                "best_mix": self.mix.to_dict(),
                "best_by_domain": None if self.domains is None else self.domains.to_dict(),
                "choice_auc": self.choice_auc.to_dict(),
            },
            "queries_needed": self.needed,
        }


def judge(
    trial: Trial,
    train: RoutingDataset,
    *,
    lam: float,
    resamples: int = 1000,
    seed: int = 0,
    choice_auc: Estimate | None = None,
) -> Verdict:
    """Compare a router at one lam with the best fixed mixes of targets.

    Args:
        trial: The router on queries that it was not fitted on.
        train: The data it was fitted on, on which the references are chosen. Its targets include
            the router's.
        lam: The operating point, chosen on other queries than these.
        resamples: Bootstrap resamples for the intervals.
        seed: Random seed of the resamples.
        choice_auc: The choice AUC of the trial, where it is known already.
    """
    train = train.select(targets=trial.targets)
    choice = trial.path.at(lam)
    reference = FixedChoice.mix(train)
    mix = _against(trial, choice, reference, resamples, seed)
    by_domain = FixedChoice.by_domain(train)
    domains = None
    if len(by_domain.groups) > 1 and trial.domains:
        domains = _against(trial, choice, by_domain, resamples, seed)
    labelled = int((~np.isnan(trial.correct)).any(axis=1).sum())
    only = trial.targets[choice[0]] if (choice == choice[0]).all() else ""
    word, because = _decided(mix, labelled, only)
    needed = _needed(mix) if word == "can't tell" else 0
    known = choice_auc or _choice_auc(trial, resamples, seed)
    clear = domains if domains is not None and domains.queries >= HALF * labelled else None
    parts = (
        because,
        _domains_clause(clear),
        _choice_auc_clause(known),
        f"about {needed:,} judged queries would decide it" if needed else "",
    )
    return Verdict(
        word, "; ".join(filter(None, parts)), lam, len(trial), mix, domains, known, needed
    )


def _choice_auc(trial: Trial, resamples: int, seed: int) -> Estimate:
    pairs, size = PairRankings.of(trial.correctness, trial.joint), len(trial)
    drawn = Bootstrap(size, resamples, seed, max(size, pairs.width))
    return drawn.estimate(lambda weights: pairs.scores(weights)["choice_auc"], NO_PAIR)


def _against(
    trial: Trial, choice: Choice, fixed: FixedChoice, resamples: int, seed: int
) -> MixReference:
    label, cost = trial.of_choice(trial.correct, choice), trial.of_choice(trial.paid, choice)
    domains = trial.domains or ("",) * len(trial)
    outcome = FixedOutcome.of(fixed, domains, trial.correct, trial.observed_cost)
    known = outcome.known & ~np.isnan(label)
    if not np.isnan(cost).all():
        known &= ~np.isnan(cost)

    def gain(weights: Weights) -> PerResample:
        same = weights * known
        return mean_over(same, label) - outcome.at(same, mean_over(same, cost))

    size = len(trial)
    one = ones(size) * known
    at = mean_over(one, cost)
    overlap = trial.overlap_of([choice, *fixed.choices(domains)])
    refusal = "" if overlap is None else overlap.refusal
    return MixReference(
        Estimate(math.nan, math.nan, math.nan, reason=refusal)
        if refusal
        else Bootstrap(size, resamples, seed, size).estimate(
            gain, "no query has the outcomes of both sides"
        ),
        float(outcome.at(one, at)[0]),
        float(mean_over(one, label)[0]),
        float(at[0]),
        int(known.sum()),
        refusal,
    )


def _decided(mix: MixReference, labelled: int, only: str) -> tuple[Word, str]:
    """The verdict and its reason."""
    gain = mix.gain
    said = (
        f"{points(gain)} of accuracy against the best fixed mix of targets at equal cost, on "
        f"{mix.queries:,} queries"
    )
    if only:
        return "not worth it", f"it sends every query to {only}"
    if mix.refusal:
        return "can't tell", mix.refusal
    if mix.queries < HALF * labelled:
        return "can't tell", (
            f"only {mix.queries:,} of {labelled:,} labelled queries have the outcomes of both the "
            "router's choice and the best fixed mix of targets"
        )
    if gain.lower > 0:
        return "worth it", said
    if gain.upper < WORTH:
        return "not worth it", said
    return "can't tell", said


def _needed(mix: MixReference) -> int:
    """About how many judged queries would decide it: intervals shrink with the square root."""
    gain = mix.gain
    half = max(gain.upper - gain.value, gain.value - gain.lower)
    if not math.isfinite(half):
        return 0
    effect = max(gain.value, WORTH - gain.value)
    needed = mix.queries * (half / effect) ** 2
    return int(round(needed, 1 - len(str(int(needed))))) if needed > mix.queries else 0


def _choice_auc_clause(choice_auc: Estimate) -> str:
    if math.isnan(choice_auc.value):
        return ""
    spread = interval(choice_auc, "number")
    value = worded(choice_auc.value, "number") + (f" [{spread}]" if spread else "")
    return f"choice AUC {value} (0.5 is chance)"


def _domains_clause(domains: MixReference | None) -> str:
    if domains is None or math.isnan(domains.gain.value):
        return ""
    said = f"{points(domains.gain)} against the best targets of each domain at equal cost"
    if domains.gain.lower > 0:
        return said
    return f"{said}: if the domain of a query is known, a table of targets may do as well"


def points(difference: Estimate) -> str:
    """A difference in percentage points, with its interval."""
    spread = interval(difference, "points")
    return worded(difference.value, "points") + (f" [{spread}]" if spread else "")
