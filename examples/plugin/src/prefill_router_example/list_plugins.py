"""`prefill-router list-plugins`: the entry points of all groups; none is loaded."""

from prefill_router.cli.application import app, columns, out
from prefill_router.plugins import GROUPS, find_plugins


@app.command(
    name="list-plugins",
    help="List the parts that other distributions add.\n\nExample: prefill-router list-plugins",
)
def list_plugins() -> None:
    """List the parts that other distributions add."""
    table = columns("part", "kind", "distribution")
    for group in GROUPS:
        for name, point in sorted(find_plugins(group).items()):
            owner = "" if point.dist is None else point.dist.name
            table.add_row(name, group.partition(".")[2], owner)
    out.print(table)
