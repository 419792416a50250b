"""What came of the demo: each target alone, the routers along lam, the oracle."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, final

from rich.table import Table

from prefill_router.cli.app import out

if TYPE_CHECKING:
    from prefill_router.evaluation import Comparison, Estimate, Evaluation


_LAMS = (0.25, 0.5, 0.75, 1.0)
_PER = 1000
_COMPARED = {
    "auc_mean": "mean AUC",
    "argmax_accuracy": "accuracy, lam 1",
    "headroom_captured": "headroom captured",
}


@final
@dataclass(frozen=True, eq=False)
class DemoVerdict:
    """The routers of the demo, judged on its test part.

    Attributes:
        systems: By what they read; the first is the router of the demo.
        comparison: The first against the second, paired; None where there is one alone.
        seconds: What the demo took.
    """

    systems: Mapping[str, "Evaluation"]
    comparison: "Comparison | None"
    seconds: float

    @classmethod
    def of(cls, folder: Path, encoders: Mapping[str, str], *, seconds: float) -> "DemoVerdict":
        """Judge the routers in `folder`, by the encoders' names and what they are called."""
        from prefill_router.activations import ActivationStore
        from prefill_router.data import read_dataset
        from prefill_router.evaluation import compare, evaluate
        from prefill_router.router import Router

        answers = read_dataset(folder / "answers")
        predicted, systems = [], {}
        for encoder, reads in encoders.items():
            router = Router.load(folder / f"router-{encoder}")
            test = answers.select(router.split["test"])
            store = ActivationStore.open(folder / f"states-{encoder}")
            predicted.append(router.predict(test, stores=[store]))
            systems[reads] = evaluate(predicted[-1], test)
        first, *others = predicted
        compared = compare(first, others[0], test) if others else None
        return cls(systems, compared, seconds)

    def draw(self, path: Path) -> Path:
        """Draw the accuracy-cost plane of both; the picture's path."""
        from prefill_router.reporting.accuracy_cost_figures import write_side_by_side

        named = {f"router on {reads}": one for reads, one in self.systems.items()}
        return write_side_by_side(named, path, title="Accuracy against cost, tiny pool")[0]

    def show(self) -> None:
        """Print the table and the plane."""
        from prefill_router.cli.headline import picture

        first = next(iter(self.systems.values()))
        table = Table(box=None, pad_edge=False)
        table.add_column(f"{first.queries:,} test questions")
        for title in ("accuracy", "95 % interval", f"$ per {_PER:,}"):
            table.add_column(title, justify="right")
        for row in self._rows():
            table.add_row(*row)
        out.print(table)
        out.print("\n" + picture(first) + "\n")
        if self.comparison is not None:
            self._show_comparison(self.comparison)
        head = first.headline["headroom_captured"]
        out.print(
            f"\nThe router captures {head.value:.1%} [{head.lower:.1%}, {head.upper:.1%}] of what "
            f"lies between the best single target and the oracle. All of it took "
            f"{self.seconds:.0f} s.",
            soft_wrap=True,
        )

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON."""
        return {
            "seconds": self.seconds,
            "systems": {reads: one.to_dict() for reads, one in self.systems.items()},
            "comparison": None if self.comparison is None else self.comparison.to_dict(),
        }

    def _rows(self) -> list[tuple[str, str, str, str]]:
        import numpy as np

        first = next(iter(self.systems.values()))
        rows = [
            _row(name, values["accuracy"], values["mean_cost"].value)
            for name, values in first.per_target.items()
        ]
        for reads, one in self.systems.items():
            for lam in _LAMS[:-1]:
                at = int(np.searchsorted(one.curve.lam_to, lam))
                accuracy, cost = one.curve.accuracy[at], one.curve.mean_cost[at]
                rows.append(
                    (f"router on {reads}, lam {lam:g}", f"{accuracy:.1%}", "", _money(cost))
                )
            best = one.headline["argmax_accuracy"]
            rows.append(_row(f"router on {reads}, lam 1", best, one.headline["argmax_cost"].value))
        rows.append(_row("oracle", first.headline["oracle_accuracy"], float("nan")))
        return rows

    def _show_comparison(self, comparison: "Comparison") -> None:
        names = list(self.systems)
        table = Table(box=None, pad_edge=False)
        table.add_column("")
        for title in (*names, "difference [95 % interval]"):
            table.add_column(title, justify="right")
        for key, title in _COMPARED.items():
            gap = comparison.difference[key]
            table.add_row(
                title,
                f"{comparison.first[key]:.3f}",
                f"{comparison.second[key]:.3f}",
                f"{gap.value:+.3f} [{gap.lower:+.3f}, {gap.upper:+.3f}]",
            )
        out.print(table)


def _row(name: str, accuracy: "Estimate", cost: float) -> tuple[str, str, str, str]:
    bounds = f"{accuracy.lower:.1%} to {accuracy.upper:.1%}"
    return name, f"{accuracy.value:.1%}", bounds, _money(cost)


def _money(cost: float) -> str:
    import numpy as np

    return "" if np.isnan(cost) else f"{cost * _PER:.5f}"
