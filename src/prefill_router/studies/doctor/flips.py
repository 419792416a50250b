"""Do decisions change if a request is worded otherwise? The doctor's view of `robustness`."""

from prefill_router.evaluation import interval
from prefill_router.studies.doctor.subject import Finding, Sign, percent, points_with_interval
from prefill_router.studies.robustness import RobustnessStudy


def flip_finding(found: RobustnessStudy) -> Finding:
    """The finding about the share of decisions that flip.

    It fails a router only if the decisions that flip are significantly less accurate: that some
    flip is no fault where targets are about equally good.
    """
    sign: Sign = "bad" if any(one.accuracy.upper < 0 for one in found.kinds) else "note"
    told = [
        f"{one.kind}: {percent(1 - one.kept.value)} of {one.queries:,} flip (stay: "
        f"{interval(one.kept, 'share')}; by chance {percent(one.by_chance)})"
        for one in found.kinds
    ]
    known = [one for one in found.kinds if not one.accuracy.reason]
    if known:
        worst = min(known, key=lambda one: one.accuracy.value)
        told.append(f"accuracy after {worst.kind}: {points_with_interval(worst.accuracy)}")
    title = "Do decisions flip if prompts are perturbed"
    return Finding("robustness", title, sign, "; ".join(told), found.to_dict())
