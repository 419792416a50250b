"""The paper's own numbers, as printed in its tables, and the differences to our definitions.

`DIFFERENCES` lists where our definitions or methods differ from the paper's.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Any, final

import yaml

from prefill_router.short_repr import short_repr

Value = str | float | Mapping[str, float]


@final
@dataclass(frozen=True)
class PublishedNumber:
    """One number of the paper.

    Attributes:
        value: The number.
        lower: The lower bound of its 95 % interval, where the paper gives one.
        upper: The upper bound.
        sd: Its standard deviation over training seeds, where the paper gives one.
        count: The number of queries that it is based on, where the paper gives it.
    """

    value: float
    lower: float | None = None
    upper: float | None = None
    sd: float | None = None
    count: int | None = None

    def to_dict(self) -> dict[str, float | int]:
        """Plain values for JSON; what the paper doesn't give is left out."""
        return {name: value for name, value in vars(self).items() if value is not None}


@short_repr
@final
@dataclass(frozen=True)
class Published:
    """One table of the paper.

    Attributes:
        number: The table's number in the paper.
        label: Its label in the paper's source.
        where: Its section in the paper.
        title: Its title.
        keys: The columns that name a row.
        rows: Its rows by column, as printed; shares are of 1.
    """

    number: int
    label: str
    where: str
    title: str
    keys: tuple[str, ...]
    rows: tuple[Mapping[str, Value], ...]

    def of_pool(self, pool: str) -> list[Mapping[str, Value]]:
        """The rows of one pool; all rows where the table has only one pool."""
        return [row for row in self.rows if row.get("pool", pool) == pool]

    def find(self, pool: str, name: str) -> Mapping[str, Value]:
        """The row of a pool with this name in the last key column; empty if there is none."""
        found = [row for row in self.of_pool(pool) if row[self.keys[-1]] == name]
        return found[0] if found else {}

    def number_of(self, pool: str, name: str, column: str) -> PublishedNumber | None:
        """One cell; None where the paper has none."""
        return number(self.find(pool, name), column)


def number(row: Mapping[str, Value], column: str) -> PublishedNumber | None:
    """A cell of a row; None where the paper has none."""
    value = row.get(column)
    if value is None or isinstance(value, str):
        return None
    if not isinstance(value, Mapping):
        return PublishedNumber(float(value))
    known = {name: value[name] for name in ("value", "lower", "upper", "sd") if name in value}
    return PublishedNumber(**known, count=int(value["count"]) if "count" in value else None)


@cache
def published() -> Mapping[str, Published]:
    """All tables of the paper by label, in its order."""
    folder = files("prefill_router.reproduce") / "paper"
    texts = [entry.read_text(encoding="utf-8") for entry in folder.iterdir() if _counts(entry.name)]
    found = sorted((_table(yaml.safe_load(text)) for text in texts), key=lambda one: one.number)
    return {one.label: one for one in found}


def _counts(name: str) -> bool:
    return name.endswith(".yaml")


def _table(value: Mapping[str, Any]) -> Published:
    return Published(
        number=value["table"],
        label=value["label"],
        where=value["where"],
        title=value["title"],
        keys=tuple(value["keys"]),
        rows=tuple(value["rows"]),
    )


_CURVE = (
    "Ours uses every operating point of the exact path over lam with inverse cost; the paper uses "
    "a grid. Its own router has 0.4377 on the frontier pool in Table 5 and 0.4536 in Table 24, so "
    "the paper itself has more than one definition."
)
_BEST = (
    "Max-lam accuracy is the highest along the curve, chosen on the queries that it is measured "
    "on, as the paper's appendix defines it; it is chosen again in each resample."
)
_SWEEP = (
    "Test AUC of a logistic probe on PCA components of last-token states at the layer of greatest "
    "Fisher J for each target, all chosen and fitted on the train part. Our intervals are Hanley "
    "and McNeil's (1982) for a single AUC; the paper gives none."
)
_EXTREMES = (
    "The paper ranks its semantic experiments without SharedTrunkNet; ours are ranked among all "
    "fitted routers, including the prefill ones."
)
_SHIFT = (
    "Every router is tested on the same queries, all of the test part: no reference has seen any "
    "of them. The paper tests on all questions of the shifted kind, 3,503 and 1,225, and doesn't "
    "say that its reference, trained on the whole train part, hasn't seen some of those. The last "
    "reference is trained on as many queries as the shifted router, so that the effect of less "
    "data isn't mistaken for shift; the paper has no such reference. Every router is a single "
    "network here, not an ensemble, which lowers all three arms alike."
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
        "kNN is the majority vote of 25 neighbours, as the paper's kNN voting. Routed-to accuracy "
        "is at lam = 1, weighted by the queries routed to each target.",
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
        "Every router is a single network here, not an ensemble, as in the paper: the numbers are "
        "therefore a little lower than those of the ensembles in the other tables. ± is the sample "
        "standard deviation over seeds, not a confidence interval.",
    ),
    **{f"tab:bootstrap_{pool}": (_BEST, _CURVE) for pool in ("frontier", "small", "mixed")},
    "tab:paired_bootstrap_unified": (
        "Both systems are judged on the same resampled queries; an interval that excludes 0 shows "
        "a significant difference.",
    ),
    "tab:end_to_end_cost_points": (
        "The encoder is charged at the paper's price for Qwen3.5-35B, or at the given price, for "
        "the tokens that it reads; for a small encoder that is far more than its real cost. The "
        "semantic router is Unified Multitask, which is not charged, as in the paper. The best "
        "single target is the best on the train part. Totals are mean costs times the number of "
        "test queries.",
    ),
    "tab:end_to_end_latency": (
        "Routing is timed on this machine, one request after the other, encoding included; the "
        "completion time of a target needs its published or measured speed.",
    ),
    "tab:lambda_operating_points": (
        "Points that several values of lam share are counted once; the paper's first step keeps "
        "all 101. Q1 to Q4 are four equal parts of the range of cost, Q4 the most expensive.",
    ),
}
"""Notes by the label of the table."""
