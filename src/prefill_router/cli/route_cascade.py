"""What `prefill-router route` shows of a cascade."""

from typing import TYPE_CHECKING

from rich.table import Table

from prefill_router.cli.app import out

if TYPE_CHECKING:
    from prefill_router.policy import Run
    from prefill_router.router import CascadePlan
    from prefill_router.upstream import Reply


def show_plan(plan: "CascadePlan") -> None:
    """Whom it asks, and what score is enough."""
    out.print(f"a cascade at lam = {plan.lam:g}: the first answer that scores enough is taken")
    table = Table(box=None, pad_edge=False)
    for title in ("ask", "enough", "P(correct)", "estimated cost"):
        table.add_column(title, justify="left" if title == "ask" else "right")
    for stage in plan.stages:
        enough = "any" if stage.threshold is None else f"{stage.threshold:.3f}"
        cost = f"${stage.estimated_cost:.6f}"
        table.add_row(stage.target, enough, f"{stage.correctness:.3f}", cost)
    out.print(table)
    cut = ", too long for the encoder: its middle was left out" if plan.truncated else ""
    out.print(f"{plan.input_tokens} tokens read{cut}", style="dim")


def show_trail(run: "Run[Reply]") -> None:
    """Who was asked, and what their answers scored."""
    for asked in run.trail:
        said = asked.failure if asked.score is None else f"scored {asked.score:.3f}"
        out.print(f"asked {asked.target}: {said}", soft_wrap=True)
