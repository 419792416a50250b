"""The commands of the tiny pool, for `prefill-router --help`."""

from prefill_router.cli import CommandEntry, list_commands

_HERE = "prefill_router_minipool.cli"
COMMANDS: dict[str, CommandEntry] = {
    **list_commands(
        _HERE,
        "Try it out",
        {
            "demo": (
                "demo",
                "Run every step on the pool of tiny language models, without key, download or GPU.",
            ),
        },
    ),
    "minipool": CommandEntry(
        "Serve a pool of tiny language models, which needs no key and no download.",
        panel="Try it out",
        commands=list_commands(
            _HERE,
            None,
            {
                "serve": (
                    "demo",
                    "Serve the tiny pool over the OpenAI protocol until it is interrupted.",
                ),
                "tasks": (
                    "demo",
                    "Make new questions with their answers; no tiny model was trained on them.",
                ),
            },
        ),
    ),
}
