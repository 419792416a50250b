"""The commands by name: what `--help` says of each, and which file holds it.

A command is a function of that file, decorated with `app.command`, `study.command` and so on. The
file is imported when the command is called, so that `--help` reads this table alone.
"""

from dataclasses import dataclass, field
from typing import final


@final
@dataclass(frozen=True)
class CommandEntry:
    """A command, or a group of them, in the list of commands.

    Attributes:
        summary: One sentence, the first of the command's own help.
        home: The file, a module of this package; empty for a group.
        panel: The heading under which it is listed.
        commands: The commands of a group, by name.
    """

    summary: str
    home: str = ""
    panel: str | None = None
    commands: "dict[str, CommandEntry]" = field(default_factory=dict)


_SHARED = {
    **dict.fromkeys(("describe", "split", "merge"), "datasets"),
    **dict.fromkeys(("show", "reprice", "versions", "promote", "rollback"), "routers"),
    **dict.fromkeys(("explain", "canary", "savings", "purge"), "receipts"),
    **dict.fromkeys(("serve", "litellm"), "gateway"),
    **dict.fromkeys(("add_target", "remove_target"), "changed_targets"),
    "tasks": "collect",
    **dict.fromkeys(("study_learning", "study_robustness"), "study"),
    **dict.fromkeys(("study_seeds", "study_ratio", "study_shift"), "study_routers"),
    **{"paired": "compare", "sweep": "layers", "study_dimensions": "study_layers"},
}
"""The files that hold several commands, by the name that a command's own file would have."""


def _listed(panel: str, home: str = "{}", **summaries: str) -> dict[str, CommandEntry]:
    """Commands with files of their own names, or shared; `import_` is `import`, and _ a dash."""
    files = {name: home.format(name) for name in summaries}
    return {
        name.strip("_").replace("_", "-"): CommandEntry(
            summary, _SHARED.get(files[name], files[name]), panel or None
        )
        for name, summary in summaries.items()
    }


COMMANDS: dict[str, CommandEntry] = {
    **_listed(
        "Begin",
        quickstart="Make a router of what you have: a table, logs of calls, or receipts.",
    ),
    **_listed(
        "Collect and grade",
        tasks="Write the tasks of a benchmark or of a file of your own as JSON Lines, to "
        "look at or edit.",
        prices="Refresh a pool's prices from OpenRouter's list of models, and date them.",
        collect="Ask every target every question, and keep each answer as it arrives.",
        grade="Grade a run's answers and write a dataset folder.",
        import_="Read scored answers of another format and write a dataset folder.",
        merge="Join datasets by the ids of their queries and the names of their targets.",
    ),
    **_listed(
        "Look at a dataset",
        describe="Say what a dataset holds: queries, targets, accuracy, cost, oracle, "
        "consensus regimes.",
        split="Draw train and test parts, stratified and saved by query id, for every "
        "stage to share.",
    ),
    **_listed(
        "Fit",
        encode="Read every prompt with an encoder and keep its hidden states.",
        layers="Show Fisher J, effective dimensionality and anisotropy by depth, and "
        "what the layers know.",
        sweep="Compare encoders: the test AUC of a linear probe for every target under "
        "each of them.",
        fit="Fit a router on the train part of a dataset and judge it on the test part.",
        search="Search features, predictors and calibrations; then look at the test part, once.",
        add_target="Add a target to a router from few labels, whose questions are chosen.",
        remove_target="Remove a target from a router without fitting it again.",
    ),
    **_listed(
        "Judge",
        evaluate="Judge a router on queries with known outcomes.",
        paired="Compare two routers by a paired bootstrap, on queries that neither was fitted on.",
        compare="Fit routers of several recipes on one split and compare them.",
        calibration="Show how well a router is calibrated on its test part, and what "
        "calibrators would change.",
        doctor="Examine whether a router is more than a fixed choice.",
        keep="Find the cheapest lam that keeps a share of the best single target's "
        "accuracy, guaranteed.",
        reproduce="Rebuild the paper's tables and figures, our numbers beside the paper's.",
    ),
    "study": CommandEntry(
        "Studies of routers: seeds, routing ratio, shift and more, each with a "
        "page of its own. Interrupted, the same command goes on from there.",
        panel="Judge",
        commands=_listed(
            "",
            home="study_{}",
            seeds="Fit each router with several seeds on one split: mean, standard "
            "deviation, extremes.",
            ratio="Send each share of the queries to the strong target, in the router's own order.",
            shift="Train on some benchmarks or domains and test on others, beside routers "
            "trained on all.",
            dimensions="Probe the targets' correctness by encoder, pooling and number of "
            "PCA components.",
            layers="Compare the ways to select a layer, for every pool under every encoder.",
            learning="Fit each router on fewer labels and say whether more of them would "
            "help, and which.",
            robustness="Count the decisions that change if prompts have typos, other words or "
            "reordered options.",
            end_to_end="Count the encoder's cost and the decision's latency, and see what is left "
            "of the savings.",
        ),
    ),
    **_listed(
        "Route",
        route="Choose the target that should answer a request, and say why.",
        show="Check a router's folder and show its card.",
        reprice="Change a router's prices without fitting it again.",
    ),
    **_listed(
        "Serve",
        serve="Serve the OpenAI protocol, and send each request to the target that the "
        "router picks.",
        litellm="Convert LiteLLM's configuration to a pool file and settings of the gateway.",
        explain="Say why the gateway sent a request where it went, from its receipt.",
        replay="Decide recorded requests again: at another lam, at other prices, or by "
        "another router.",
        savings="Tell what routing saved against one target alone, its own costs deducted.",
        canary="Compare routed traffic with the rest, where only a share is routed "
        "(`traffic.share`).",
        export="Make a dataset of receipts and feedback, or write a router in another "
        "project's format.",
        purge="Delete receipts, by key or age, with all that was kept to learn from them.",
    ),
    **_listed(
        "Serve",
        learn="Label sampled requests within a purse, fit a router on them, and propose it.",
        versions="List the versions of a router, and what led to the one that serves.",
        promote="Let a version serve, at once or on a share of the conversations, without a test.",
        rollback="Let what served before serve again: a version, or the default target.",
    ),
    "key": CommandEntry(
        "Make, list and revoke the API keys of the gateway's clients.",
        panel="Serve",
        commands=_listed(
            "",
            home="gateway",
            new="Make a key, print it once, and keep its hash.",
            list="List the keys of a file, and what they may do.",
            revoke="Remove a key from a file; a running gateway refuses it after its next reload.",
        ),
    ),
    **_listed(
        "Try it out",
        demo="Run every step on the pool of tiny language models, without key, download or GPU.",
    ),
    "minipool": CommandEntry(
        "Serve a pool of tiny language models, which needs no key and no download.",
        panel="Try it out",
        commands=_listed(
            "",
            home="minipool",
            serve="Serve the tiny pool over the OpenAI protocol until it is interrupted.",
            tasks="Make questions that none of the tiny models was trained on, each with "
            "its answer.",
        ),
    ),
}
