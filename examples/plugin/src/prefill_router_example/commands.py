"""The table of this distribution's commands; `prefill-router --help` reads it, and nothing else."""

from prefill_router.cli import list_commands

COMMANDS = list_commands(
    "prefill_router_example",
    "Example",
    {"list-plugins": ("list_plugins", "List the parts that other distributions add.")},
)
