"""The paper's claims about its router, checked on the available data."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, final

from prefill_router.evaluation import HEADLINE
from prefill_router.reproduce.cells import shown, spread
from prefill_router.reproduce.router_tables import minus
from prefill_router.reproduce.systems import SEMANTIC, TRUNK, UNIFIED, PoolRun

Answer = Literal["yes", "no", "undecided"]
_LAYER = 0.0003
"""The AUC by which Fisher J may miss the best selector, as in the paper."""


@final
@dataclass(frozen=True)
class Claim:
    """One claim of the paper.

    Attributes:
        pool: The pool that it was checked on.
        text: The claim.
        answer: `yes` or `no` where the intervals decide, else `undecided`.
        because: The numbers behind the answer.
    """

    pool: str
    text: str
    answer: Answer
    because: str


def check(runs: Sequence[PoolRun]) -> list[Claim]:
    """Check the claims of the paper on every pool."""
    return [claim for run in runs for claim in _of(run)]


def _of(run: PoolRun) -> list[Claim]:
    claims = [
        _leads(run, "auc_mean", "SharedTrunkNet has the highest mean AUC of the six routers."),
        _leads(run, "brier_mean", "SharedTrunkNet has the lowest Brier score of the six."),
        _leads(run, "p_auccc", "SharedTrunkNet has the largest P-AUCCC of the six."),
        _gains(run),
    ]
    if run.system(UNIFIED) is not None:
        claims.append(_over_unified(run))
    if not run.missing("ablation"):
        claims.append(_fisher(run))
    return claims


def _leads(run: PoolRun, name: str, text: str) -> Claim:
    sign = 1 if HEADLINE[name].better == "higher" else -1
    won, lost, open_ = list[str](), list[str](), list[str]()
    for system in SEMANTIC:
        judged = run.system(system)
        if judged is None:
            continue
        lower, upper = sorted(
            sign * end
            for end in (minus(judged.against[name]).lower, minus(judged.against[name]).upper)
        )
        (won if lower > 0 else lost if upper < 0 else open_).append(system)
    answer: Answer = "no" if lost else "undecided" if open_ or not won else "yes"
    said = [
        f"significantly better than {', '.join(won)}" if won else "",
        f"no significant difference to {', '.join(open_)}" if open_ else "",
        f"significantly worse than {', '.join(lost)}" if lost else "",
    ]
    return Claim(run.title, text, answer, "; ".join(part for part in said if part))


def _gains(run: PoolRun) -> Claim:
    judged = run.system(TRUNK)
    text = "Routing answers more questions correctly than the best single target."
    if judged is None:
        return Claim(run.title, text, "undecided", "the router couldn't be fitted")
    gain = judged.headline["accuracy_gain"]
    answer: Answer = "yes" if gain.lower > 0 else "no" if gain.upper < 0 else "undecided"
    said = f"{shown(gain.value, 'points')} ({spread(gain.lower, gain.upper, 'points')})"
    return Claim(run.title, text, answer, f"at its best lam {said}")


def _over_unified(run: PoolRun) -> Claim:
    text = "The paired advantage over Unified Multitask is significant on most numbers."
    judged = run.system(UNIFIED)
    names = ("auc_mean", "brier_mean", "max_lam_accuracy", "p_auccc")
    found: dict[str, list[str]] = {"better": [], "worse": [], "open": []}
    for name in names:
        if judged is None:
            continue
        sign = 1 if HEADLINE[name].better == "higher" else -1
        estimate = minus(judged.against[name])
        low, high = sorted((sign * estimate.lower, sign * estimate.upper))
        found["better" if low > 0 else "worse" if high < 0 else "open"].append(HEADLINE[name].label)
    answer: Answer = "no" if found["worse"] else "yes" if len(found["better"]) >= 3 else "undecided"
    said = [
        f"significantly better in {', '.join(found['better'])}" if found["better"] else "",
        f"significantly worse in {', '.join(found['worse'])}" if found["worse"] else "",
        f"no significant difference in {', '.join(found['open'])}" if found["open"] else "",
    ]
    return Claim(run.title, text, answer, "; ".join(part for part in said if part))


def _fisher(run: PoolRun) -> Claim:
    text = "Fisher J selects the best layer, or one within 0.0003 AUC of it."
    said, held = [], True
    for one in run.parts["ablation"]["encoders"]:
        auc = one["auc"]
        best = max(auc[name] for name in ("Random", "Last", "d_eff", "alpha"))
        held = held and auc["Fisher J"] >= best - _LAYER
        said.append(f"{one['encoder']}: {auc['Fisher J']:.4f} against {best:.4f}")
    return Claim(run.title, text, "yes" if held else "no", "; ".join(said))
