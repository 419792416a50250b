"""The commands of the lab, for `prefill-router --help`."""

from prefill_router.cli import CommandEntry, list_commands

_HERE = "prefill_router_lab.cli"
COMMANDS: dict[str, CommandEntry] = {
    **list_commands(
        _HERE,
        "Collect and grade",
        {
            "tasks": (
                "collect",
                "Write the tasks of a benchmark or of a file of your own as JSON Lines, to look at "
                "or edit.",
            ),
            "collect": (
                "collect",
                "Ask every target every question, and keep each answer as it arrives.",
            ),
        },
    ),
    **list_commands(
        _HERE,
        "Fit",
        {
            "layers": (
                "layers",
                "Show Fisher J, effective dimensionality and anisotropy by depth, and what the "
                "layers know.",
            ),
            "sweep": (
                "layers",
                "Compare encoders by the test AUC of a linear probe for every target.",
            ),
            "search": (
                "search",
                "Search features, predictors and calibrations; then look at the test part, once.",
            ),
        },
    ),
    **list_commands(
        _HERE,
        "Judge",
        {
            "reproduce": (
                "paper",
                "Rebuild the paper's tables and figures, with our numbers beside the paper's.",
            ),
        },
    ),
    "study": CommandEntry(
        "Studies of routers: seeds, routing ratio, shift and more, each with a page of its own. "
        "Interrupted, the same command goes on from there.",
        panel="Judge",
        commands=list_commands(
            _HERE,
            None,
            {
                "seeds": (
                    "paper",
                    "Fit each router with several seeds on one split: mean, standard deviation, "
                    "extremes.",
                ),
                "ratio": (
                    "paper",
                    "Send each share of the queries to the strong target, in the router's own "
                    "order.",
                ),
                "peers": (
                    "study_peers",
                    "Compare a router with the best fixed mix, price alone, and LiteLLM's local "
                    "classifiers.",
                ),
                "effort": (
                    "study_effort",
                    "Compare fixed reasoning efforts with routing over models, efforts, and both.",
                ),
                "shift": (
                    "paper",
                    "Train on some benchmarks or domains, test on others, and compare with "
                    "training on all.",
                ),
                "dimensions": (
                    "study_layers",
                    "Probe the targets' correctness by encoder, pooling and number of PCA "
                    "components.",
                ),
                "layers": (
                    "study_layers",
                    "Compare the ways to select a layer, for every pool under every encoder.",
                ),
                "learning": (
                    "study",
                    "Fit each router on fewer labels, and say whether more labels would help, "
                    "and which.",
                ),
                "robustness": (
                    "study",
                    "Count the decisions that change if prompts get typos, other words or "
                    "reordered options.",
                ),
                "end-to-end": (
                    "study_end_to_end",
                    "Count the encoder's cost and the decision's latency, and see what is left of "
                    "the savings.",
                ),
            },
        ),
    ),
}
