"""Where our definitions, or our means, aren't the paper's."""

from collections.abc import Mapping

_CURVE = (
    "Ours is read on every operating point of the exact path over lam with inverse cost; the paper "
    "reads a grid. Its own router has 0.4377 on the frontier pool in Table 5 and 0.4536 in Table "
    "24, so the paper has more than one reading itself."
)
_BEST = (
    "Max-lam accuracy is the highest along the curve, found on the queries that it is measured on, "
    "as the paper's appendix defines it; in each resample it is found anew."
)
_SWEEP = (
    "Test AUC of a logistic probe on PCA components of last-token states at the layer of greatest "
    "Fisher J for each target, all chosen and fitted on the train part. Our intervals are Hanley "
    "and McNeil's (1982) for a single AUC; the paper gives none."
)
_EXTREMES = (
    "The paper ranks its semantic experiments without SharedTrunkNet; ours are ranked with all the "
    "routers that were fitted, the prefill ones among them."
)
_SHIFT = (
    "Every router is tested on the same queries, all of the test part: no reference has seen any "
    "of them. The paper tests on all questions of the shifted kind, 3,503 and 1,225, and doesn't "
    "say that its reference, trained on the whole train part, hasn't seen some of those. The last "
    "reference is trained on as many queries as the shifted router, so that less data isn't taken "
    "for shift; the paper has none such. Every router is one network here, none averaged, which "
    "costs all three arms alike."
)

DIFFERENCES: Mapping[str, tuple[str, ...]] = {
    "tab:dataset": (
        "A description of the data, so there are no intervals. Queries are those on which any "
        "target was measured; regimes are over the targets measured on a query.",
        "In the paper, the share that all fail and the oracle's accuracy add up to more than 100 % "
        "(103.5 on the frontier pool, 100.2 on the small, 102.2 on the mixed), though the oracle "
        "can't solve what all fail; its Table 4 repeats these accuracies. Ours add up to 100 % on "
        "labels of 0 and 1.",
    ),
    "tab:frontier_sweep": (_SWEEP,),
    "tab:small_sweep": (_SWEEP,),
    "tab:mixed_sweep": (_SWEEP,),
    "tab:per_llm_routing": (
        "kNN is the majority vote of 25 neighbours, the paper's kNN voting. Routed-to accuracy is "
        "at lam = 1, weighted by the queries routed to each target.",
    ),
    "tab:headroom_summary": (
        _BEST,
        "No setting is chosen on train rows: that would take five more fits of every router.",
        "Gain, headroom and savings are at that point, and oracle and best single target are those "
        "of the test part; savings are against the target with the highest mean cost.",
    ),
    "tab:global_routing": (
        _CURVE,
        "Oracle distance is the mean over the distinct operating points, each counted once; it "
        "depends on how many points a grid meets, and the paper doesn't name its grid.",
    ),
    "tab:layer_selector_ablation": (
        "Mean five-fold probe AUC over the targets, last token, on the train part. Fisher J picks "
        "a layer for each target. It is a mean over folds and has no interval.",
    ),
    "tab:mmlupro_shift": (
        _SHIFT,
        "The paper doesn't list its categories; ours follow MMLU's own grouping.",
    ),
    "tab:hle_shift": (_SHIFT,),
    **{
        f"tab:{pool}_{key}": (_EXTREMES,)
        for pool in ("frontier", "small", "mixed")
        for key in ("auc", "brier")
    },
    "tab:seed_variability_all": (
        "Every router is one network here, none averaged, as in the paper: the numbers are "
        "therefore a little lower than those of the ensembles in the other tables. ± is the sample "
        "standard deviation over seeds, no confidence interval.",
    ),
    **{f"tab:bootstrap_{pool}": (_BEST, _CURVE) for pool in ("frontier", "small", "mixed")},
    "tab:paired_bootstrap_unified": (
        "Both systems are judged on the same resampled queries; an interval that excludes 0 is a "
        "difference that other queries would hardly undo.",
    ),
    "tab:end_to_end_cost_points": (
        "The encoder is charged at the paper's price for Qwen3.5-35B, or the one that was given, "
        "on the tokens that it reads; for a small encoder that is far more than it costs. The "
        "semantic router is Unified Multitask, charged nothing as in the paper, and the best "
        "single target the one that is best on the train part. Totals are mean costs times the "
        "number of test queries.",
    ),
    "tab:end_to_end_latency": (
        "Routing is timed on this machine, one request after the other, encoding included; the "
        "completion time of a target needs its published or measured speed.",
    ),
    "tab:lambda_operating_points": (
        "Points that several steps of lam meet are counted once; the paper's first step keeps all "
        "101. Q1 to Q4 are four equal parts of the range of cost, Q4 the dearest.",
    ),
}
"""Sentences by the label of the table."""
