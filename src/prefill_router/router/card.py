"""The card: what a person should know before trusting a router, as Markdown."""

from collections.abc import Sequence
from typing import Any

from prefill_router.router.record import Interval, Record
from prefill_router.targets import Pool

_TITLES = {
    "auc_mean": "mean AUC over targets",
    "brier_mean": "mean Brier score",
    "argmax_accuracy": "accuracy at lam = 1",
    "max_lam_accuracy": "highest accuracy over lam",
    "best_single_accuracy": "best single target",
    "oracle_accuracy": "oracle",
    "headroom_captured": "headroom captured",
    "cost_savings": "cost savings against the dearest target",
    "p_auccc": "P-AUCCC",
    "mdp_auccc": "MDP-AUCCC",
    "oracle_distance": "oracle distance",
}


def card(
    record: Record,
    pool: Pool,
    parts_read: Sequence[Sequence[str]],
    encoders: Sequence[dict[str, Any]],
    *,
    version: int,
) -> str:
    """The README.md of a router's folder.

    Args:
        record: How the router came to be.
        pool: Its targets and prices.
        parts_read: Rows of what is read, and how.
        encoders: What each encoder was.
        version: Of the folder's format.
    """
    parts = [
        "---\nlibrary_name: prefill-router\ntags:\n- llm-routing\n- prefill-router\n---\n",
        f"# A router over {len(pool)} targets\n\n{_summary(record, pool, version)}\n",
        "## How to use it\n\n```python\nfrom prefill_router import Router\n\n"
        'router = Router.load("this folder")\nrouter.route("your request", lam=0.5).target\n```\n',
        "## How well it does, on queries it has not seen\n\n" + _metrics(record.metrics),
        "## Targets and prices\n\n" + _prices(pool),
        "## What it reads, and what it makes of it\n\n" + _table(("what", "how"), parts_read),
        "## Encoders\n\n" + _encoders(encoders),
        "## Notes\n\n" + ("".join(f"- {note}\n" for note in record.notes) or "None.\n"),
    ]
    return "\n".join(parts)


def _summary(record: Record, pool: Pool, version: int) -> str:
    sizes = ", ".join(f"{count:,} {part}" for part, count in record.trained_on.queries.items())
    sources = ", ".join(
        f"{name or 'unnamed'} ({count:,})" for name, count in record.trained_on.benchmarks.items()
    )
    return (
        f"Fitted on {record.created} with prefill-router {record.package}; format {version}. "
        f"Queries: {sizes}; from {sources}; {record.trained_on.missing_labels:,} labels were "
        f"missing. The dataset's fingerprint is `{record.trained_on.fingerprint}`. Prices as of "
        f"{pool.prices_date or 'an unknown day'}."
    )


def _metrics(metrics: dict[str, Interval]) -> str:
    rows = [
        (_TITLES[key], _number(m.value), f"{_number(m.lower)} to {_number(m.upper)}")
        for key, m in metrics.items()
        if key in _TITLES
    ]
    return _table(("metric", "value", "95 % interval"), rows) if rows else "Not evaluated.\n"


def _prices(pool: Pool) -> str:
    rows = [
        (t.name, "unknown", "unknown")
        if t.input_price is None
        else (t.name, f"{t.input_price:g}", f"{t.output_price:g}")
        for t in pool
    ]
    return _table(("target", "$ per million tokens in", "out"), rows)


def _encoders(encoders: Sequence[dict[str, Any]]) -> str:
    return "".join(
        f"- {facts['encoder']}: "
        + ", ".join(f"{key} `{value}`" for key, value in facts.items() if key != "encoder")
        + "\n"
        for facts in encoders
    )


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "".join(
        "| " + " | ".join(cell.replace("|", "\\|") for cell in r) + " |\n" for r in lines
    )


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.4f}"
