"""The commands of the gateway, for `prefill-router --help`."""

from prefill_router.cli import CommandEntry, list_commands

_HERE = "prefill_router_gateway.cli"
COMMANDS: dict[str, CommandEntry] = {
    **list_commands(
        _HERE,
        "Serve",
        {
            "serve": (
                "serve",
                "Serve the OpenAI protocol, and send each request to the target that the router "
                "chooses.",
            ),
            "import-litellm": (
                "serve",
                "Convert LiteLLM's configuration to a pool file and settings of the gateway.",
            ),
        },
    ),
    **list_commands(
        _HERE,
        "Watch traffic",
        {
            "explain": (
                "receipts",
                "Say why the gateway sent a request where it went, from its receipt.",
            ),
            "read": (
                "read",
                "Print what the gateway reads in a recorded request: who asks, what, and why.",
            ),
            "replay": (
                "replay",
                "Decide recorded requests again, with another lam, other prices, or another "
                "router.",
            ),
            "savings": (
                "receipts",
                "Say what routing saved over one target alone, after the router's own costs.",
            ),
            "canary": (
                "receipts",
                "Compare routed traffic with the rest, if only a share is routed "
                "(`traffic.share`).",
            ),
            "purge": (
                "receipts",
                "Delete receipts by key or age, with everything that was kept for learning.",
            ),
        },
    ),
    **list_commands(
        _HERE,
        "Learn",
        {
            "learn": (
                "learn",
                "Label sampled requests within a budget, fit a router on them, and propose it.",
            ),
            "export-receipts": ("export_receipts", "Make a dataset of receipts and feedback."),
        },
    ),
    "key": CommandEntry(
        "Make, list and revoke the API keys of the gateway's clients.",
        panel="Serve",
        commands=list_commands(
            _HERE,
            None,
            {
                "new": ("serve", "Make a key, print it once, and keep its hash."),
                "list": ("serve", "List the keys of a file, and what they may do."),
                "revoke": (
                    "serve",
                    "Remove a key from a file; a running gateway refuses it after its next reload.",
                ),
            },
        ),
    ),
}
