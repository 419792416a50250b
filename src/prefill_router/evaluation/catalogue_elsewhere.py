"""The numbers that other benchmarks of routers quote, and the references they need, in words."""

from collections.abc import Mapping

from prefill_router.evaluation.entry import Entry

ELSEWHERE: Mapping[str, Entry] = {
    "random_accuracy": Entry(
        "Random target",
        "share",
        "neither",
        "Accuracy when every query goes to a target drawn at random, each as likely as the others.",
    ),
    "random_cost": Entry(
        "Cost of a random target", "usd", "neither", "The mean observed cost of a query so."
    ),
    "mix_gain": Entry(
        "Gain over the best mix",
        "points",
        "higher",
        "How far the router's curve runs above the best fixed mix of targets at the same cost, on "
        "average over the costs that both reach. A mix sends fixed shares of the queries to fixed "
        "targets without looking at them; a router that isn't above it knows nothing of use.",
    ),
    "aiq": Entry(
        "AIQ (RouterBench)",
        "number",
        "higher",
        "The area under the best that settings of the router and mixes of them reach at each cost, "
        "divided by the largest cost. It depends on that cost, so on what is compared.",
    ),
    "apgr": Entry(
        "APGR (RouteLLM)",
        "number",
        "higher",
        "For a strong and a weak target: which part of the gap between them is closed, on average "
        "over the share of queries sent to the strong one; 0.5 is a blind choice.",
    ),
    "cpt_20": Entry(
        "CPT 20 % (RouteLLM)",
        "share",
        "lower",
        "The share of queries sent to the strong target that closes 20 % of the gap.",
    ),
    "cpt_50": Entry(
        "CPT 50 % (RouteLLM)",
        "share",
        "lower",
        "The share of queries sent to the strong target that closes half of the gap.",
    ),
    "cpt_80": Entry(
        "CPT 80 % (RouteLLM)",
        "share",
        "lower",
        "The share of queries sent to the strong target that closes 80 % of the gap.",
    ),
    "gain_random": Entry(
        "Gain@R (LLMRouterBench)",
        "share",
        "higher",
        "By which part of a random target's accuracy the router's, at its most accurate end, is "
        "higher.",
    ),
    "gain_best": Entry(
        "Gain@B (LLMRouterBench)",
        "share",
        "higher",
        "By which part of the best single target's accuracy the router's, at the same end, is "
        "higher.",
    ),
    "gap_oracle": Entry(
        "Gap@O (LLMRouterBench)",
        "share",
        "lower",
        "By which part of the oracle's accuracy the router's, at the same end, is lower.",
    ),
    "perf_gain": Entry(
        "PerfGain (LLMRouterBench)",
        "share",
        "higher",
        "By which part of the best single target's accuracy the router's best setting is higher.",
    ),
    "cost_save": Entry(
        "CostSave (LLMRouterBench)",
        "share",
        "higher",
        "How much of the best single target's cost the router saves at no loss of accuracy; 0 "
        "where no setting is as accurate, since one can then stay with that target.",
    ),
    "pareto_dist": Entry(
        "ParetoDist (LLMRouterBench)",
        "number",
        "lower",
        "The mean distance of the router's curve to the nearest point, of all curves and single "
        "targets compared, that nothing beats in both cost and accuracy.",
    ),
    "router_arena": Entry(
        "RouterArena score",
        "number",
        "higher",
        "A weighted harmonic mean of the accuracy at the most accurate end and of the logarithm of "
        "its cost, from $200 per 1,000 queries (0) to $0.0044 (1).",
    ),
    "blueprint_area": Entry(
        "Area over price (NVIDIA blueprint)",
        "number",
        "higher",
        "The area between the router's accuracy and that of the worst target, over price from the "
        "cheapest to the dearest target.",
    ),
}


def elsewhere_definitions(*, max_cost: float | None) -> dict[str, str]:
    """The readings used for these numbers, by subject.

    Args:
        max_cost: The cost that AIQ ends at, US dollars per query; the largest of the compared
            systems if not given.
    """
    largest = "the largest cost of any setting of the compared systems (alone: of its own)"
    ends = largest if max_cost is None else f"{max_cost:g} US dollars per query"
    return {
        "mix": "upper concave envelope of the single targets' (cost, accuracy), level beyond the "
        "best; gain: mean over cost of the linearly joined points minus the mix, from the dearer "
        "of both beginnings to the cheaper of both ends",
        "aiq": "non-decreasing concave envelope of the points, level from the last one to "
        f"{ends}, trapezoid from the first, divided by that cost",
        "strong_weak": "strong: the more accurate of two targets on all the evaluated queries, or "
        "the one that the policy names; the curve over the share of strong calls is completed by "
        "the two targets alone at 0 and 1; queries without a label of either are left out; CPT "
        "interpolates linearly at the first crossing",
        "gains": "relative, at the policy's most accurate end (gain_random, gain_best, "
        "gap_oracle) or its most accurate setting (perf_gain)",
        "pareto_dist": "curves, their points joined by lines, read at 101 costs evenly spread over "
        "their own range; in the plane of linear cost and normalised accuracy; to the nearest of "
        "all compared curves' readings and single targets that none of them dominates",
        "router_arena": "(1 + b) A C / (b A + C), b = 0.1, C = (log2 200 - log2 c) / (log2 200 - "
        "log2 0.0044), c dollars per 1,000 queries, clamped; at the policy's most accurate end",
        "blueprint_area": "trapezoid of accuracy minus floor over linear cost, padded left as "
        "P-AUCCC",
    }
