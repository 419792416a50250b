"""Against what can be had for the same money without the router."""

from prefill_router.evaluation import Verdict
from prefill_router.evaluation.verdict import WORTH, Reference, points
from prefill_router.studies.doctor.finding import Finding, Sign


def findings(found: Verdict) -> list[Finding]:
    """What the comparisons with the best fixed mix, and with the best one of each domain, say."""
    mix = _finding("mix", "Against the best fixed mix at equal cost", "of targets", found.mix)
    if found.domains is None:
        return [mix]
    title = "Against the best targets of each domain at equal cost"
    return [mix, _finding("domains", title, "of targets for each domain", found.domains)]


def _finding(name: str, title: str, what: str, found: Reference) -> Finding:
    gain = found.gain
    sign: Sign = "good" if gain.lower > 0 else "bad" if gain.upper < WORTH else "unclear"
    cost = "where no cost is known" if found.is_free else "for the same money"
    said = (
        f"the best fixed mix {what} answers {100 * found.accuracy:.1f} % correctly {cost}; the "
        f"router answers {points(gain)} more, on {found.queries:,} queries"
    )
    numbers = {**found.to_dict(), "mix_accuracy": found.to_dict()["accuracy"], "worth": WORTH}
    return Finding(name, title, sign, said, numbers)
