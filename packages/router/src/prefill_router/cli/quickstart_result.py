"""What a quickstart found and made: for the terminal, its page, and programs.

It also makes a first pool file: known models with their providers, which lacks only the keys.
"""

import json
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, final

import numpy as np

from prefill_router import files
from prefill_router.cli.application import CommandRun, format_count
from prefill_router.cli.judged_queries import JudgedQueries
from prefill_router.money import dollars

if TYPE_CHECKING:
    from prefill_router.data import Query, RoutingDataset
    from prefill_router.evaluation import Evaluation, Verdict, WinVerdict
    from prefill_router.reporting import Part, Table
    from prefill_router.targets import KnownProvider, Pool, Target

YOURS: Final = "yours"
"""The provider of models that none is known for; its address is to be replaced."""
_ADDRESS = "http://127.0.0.1:8000/v1"
_FAMILIES: Final[Mapping[str, str]] = {
    **dict.fromkeys(("gpt-", "chatgpt-", "o1", "o3", "o4"), "openai"),
    "claude-": "anthropic",
    "gemini-": "gemini",
    "deepseek-": "deepseek",
    **dict.fromkeys(("mistral-", "ministral-", "codestral-"), "mistral"),
    "grok-": "xai",
}
"""Providers by how the names of their own models begin; open models of theirs have other names."""
_OPEN = ("gpt-oss",)


_NO_COSTS = (
    "no cost is known, so nothing can be saved yet: add a column 'cost' (US dollars an answer), or "
    "columns 'input_tokens' and 'output_tokens' and give --prices; then run this again"
)


def starter_pool(pool: "Pool") -> "Pool":
    """The pool with a provider for each target that has no endpoint.

    A name such as `openai/gpt-4o` tells its provider; with another prefix it is a name of
    OpenRouter's. A model whose provider isn't known gets the provider `YOURS`.
    """
    from prefill_router.targets import KNOWN, Pool, Provider

    providers = {provider.name: provider for provider in pool.providers}
    targets = []
    for target in pool:
        if target.provider is not None or target.base_url is not None:
            targets.append(target)
            continue
        name, model = _find_provider(target.name, KNOWN)
        entry = KNOWN.get(name)
        providers.setdefault(
            name,
            Provider(
                name=name,
                base_url=(entry and entry.base_url) or _ADDRESS,
                dialect="openai" if entry is None else entry.dialect,
                api_key_env=None if entry is None else entry.key_env,
            ),
        )
        targets.append(_place_target(target, name, model))
    return Pool(tuple(targets), pool.prices_date, tuple(providers.values()))


def _list_prices(pool: "Pool") -> dict[str, tuple[float | None, ...]]:
    """What each target costs, by its name."""
    from prefill_router.targets import PRICES

    return {target.name: tuple(getattr(target, name) for name in PRICES) for target in pool}


def _place_target(target: "Target", provider: str, model: str) -> "Target":
    return replace(
        target,
        provider=provider,
        model=target.model or (model if model != target.name else None),
    )


def _find_provider(name: str, providers: "Mapping[str, KnownProvider]") -> tuple[str, str]:
    """The name of a model's provider, and the provider's own name for it."""
    prefix, _, rest = name.partition("/")
    if rest and prefix in providers and providers[prefix].base_url:
        return prefix, rest
    if rest:
        return "openrouter", name
    for start, provider in _FAMILIES.items():
        if name.startswith(start) and not name.startswith(_OPEN):
            return provider, name
    return YOURS, name


_LEARNING = """\
learning:
  share: 0.05  # of the requests; 0 keeps none
  keep_texts: true  # with their texts, as learning needs them
"""
_SAMPLE_SIZE = 300
"""Questions that are asked for the first labels."""
_FEWEST = 20
"""The fewest labels of a target that is fitted on."""


@final
class QuickstartResult:
    """What was found and made, for the terminal, the page and programs."""

    def __init__(
        self, folder: Path, data: Path, dataset: "RoutingDataset", facts: Mapping[str, str]
    ) -> None:
        self.folder, self.data, self.dataset = folder, data, dataset
        self.pool = folder / "pool.yaml"
        self.facts = dict(facts)
        self.lines: list[str] = []
        self.steps: list[str] = []
        self.numbers: dict[str, Any] = {}
        self.evaluation: Evaluation | None = None

    @classmethod
    def begin(
        cls,
        job: CommandRun,
        data: Path,
        facts: Mapping[str, str],
        price_list: str | None,
        *,
        is_shown: bool,
    ) -> "QuickstartResult":
        """Describe the data, and write the pool file unless there is one.

        Args:
            job: Runs the commands.
            data: The dataset's folder.
            facts: How the source was read.
            price_list: Where prices are looked up; None for nowhere.
            is_shown: Whether the commands' results are printed.
        """
        from prefill_router.data import read_dataset
        from prefill_router.targets import read_pool, write_pool

        dataset, pool = read_dataset(data), job.folder / "pool.yaml"
        if not pool.is_file():
            write_pool(starter_pool(dataset.pool), pool)
        if price_list is not None:
            job.do("prices", "--pool", pool, "--from", price_list)
        listed = read_pool(pool)
        if data.parent == job.folder and set(dataset.pool.names) <= set(listed.names):
            dataset = dataset.with_pool(listed.select(dataset.pool.names))
            write_pool(dataset.pool, data / "pool.yaml")
        job.do("describe", data, is_shown=is_shown)
        return cls(job.folder, data, dataset, facts)

    def lacking(self) -> str:
        """What a fit lacks; empty if nothing."""
        has_label = ~np.isnan(self.dataset.correct)
        labelled = (has_label.sum(axis=0) >= _FEWEST).sum()
        if not has_label.any():
            return "no answer has a label: nothing tells which answers were good"
        if len(self.dataset.pool) < 2:
            return f"there is one target, {self.dataset.pool.names[0]}: nothing can be chosen"
        if labelled < 2:
            return f"fewer than two targets have {_FEWEST} labels or more"
        return ""

    def explain_labels(self, reason: str) -> None:
        """Say how to get labels and at what cost, and write the questions to ask."""
        tasks = self.folder / "tasks.jsonl"
        files.write_text(tasks, "".join(map(_make_task, self.dataset.queries)))
        count = min(_SAMPLE_SIZE, len(self.dataset))
        cost, unknown = self._estimate_cost(count)
        cost_text = (
            f"about {dollars(cost)} for the answers, and the judge" if cost else "an unknown sum"
        )
        if unknown:
            cost_text += (
                f" (no cost is known of {', '.join(unknown)}; give --prices or --price-list)"
            )
        self.lines += [
            f"no router can be fitted yet: {reason}",
            f"asking {format_count(len(self.dataset.pool), 'target')} {count:,} of the questions "
            f"and grading the answers takes {cost_text}",
        ]
        self._note_pool()
        run, graded = self.folder / "run", self.folder / "graded"
        ask = ("--sample", count, "--max-cost", f"{max(0.01, 2 * cost):.2f}", "--out", run)
        if not all(target.has_price for target in self.dataset.pool):
            self._add_step("prices", "--pool", self.pool)
        self._add_step("collect", "--pool", self.pool, "--tasks", tasks, *ask)
        self._add_step("grade", run, "--judge", "judge.yaml", "--out", graded)
        self._add_step("quickstart", graded, "--out", f"{self.folder}-fitted")
        self._propose_learning()
        self.numbers |= {"fitted": False, "lacking": reason, "labelling_cost": cost or None}

    def _propose_learning(self) -> None:
        """Write the gateway's settings for learning from traffic, and how that begins."""
        settings, versions = self.folder / "gateway.yaml", self.folder / "versions"
        if not settings.is_file():
            files.write_text(settings, _LEARNING)
        self.lines.append(
            "or let the gateway earn labels, by the last two commands below. All requests go to "
            f"{self._most_expensive()} until a version is proven. By {settings} a twentieth of "
            "them are kept with their texts. The other targets are asked these and judged, for a "
            "dollar a day at most"
        )
        place = ("--versions", versions, "--pool", self.pool)
        receipts = ("--receipts", f"sqlite:///{self.folder.absolute()}/receipts.sqlite")
        named = ("--default", self._most_expensive(), "--config", settings)
        self._add_step("serve", *place, *receipts, *named)
        self._add_step(
            "learn", *place, *receipts, "--judge", "judge.yaml", "--per-day", "1", "--follow"
        )

    def fit(self, job: CommandRun, encoder: str, *, is_shown: bool) -> None:
        """Encode, fit, and say what the router is worth.

        Args:
            job: Runs the commands.
            encoder: The encoder's name.
            is_shown: Whether the commands' results are printed.
        """
        from prefill_router.activations import ActivationStore
        from prefill_router.progress import SilentProgress
        from prefill_router.router import Router

        data, states, folder = self.data, self.folder / "states", self.folder / "router"
        job.do("encode", data, "--encoder", encoder, "--out", states)
        if not self._is_fitted(folder):
            job.do(
                "fit", data, "--store", states, "--out", folder, "--overwrite", is_shown=is_shown
            )
        router = Router.load(folder)
        queries = JudgedQueries.of(router, self.dataset)
        stores, quiet = [ActivationStore.open(states)], SilentProgress()
        verdict: Verdict | WinVerdict | None
        if router.is_voted:
            verdict = queries.judge_votes(stores, quiet)
        else:
            self.evaluation = queries.evaluate(stores, quiet)
            verdict = self.evaluation.verdict
        if verdict is not None:
            self.lines += [f"{verdict.word}: {verdict.because}", *verdict.lines]
        if self.evaluation is not None and not self._mean_costs():
            self.lines.append(_NO_COSTS)
        chosen = router.record.chosen
        rule = "" if chosen is None else f": {chosen.rule}"
        self.lines.append(f"it is used at lam {router.setting:.3g}{rule}")
        word = None if verdict is None else verdict.word
        if verdict is not None and word == "not worth it":
            self._propose_fixed_choice(verdict.best, folder, is_voted=router.is_voted)
        else:
            self._propose_routing(folder)
        result = {"verdict": word, "lam": router.setting, "router": str(folder)}
        self.numbers |= {"fitted": True, **result}

    def _propose_routing(self, folder: Path) -> None:
        self._note_pool()
        self._add_step("route", folder, "a request of yours")
        self._add_step("serve", folder, "--pool", self.pool)

    def _propose_fixed_choice(self, best: str, folder: Path, *, is_voted: bool) -> None:
        """Say what to do instead of routing, and how to see why."""
        self.lines.append(
            f"don't route with it: send all requests to {best}, or a fixed share of them to a "
            "cheaper target. Try again with answers of other targets, or to other questions"
        )
        if is_voted:
            self._add_step("show", folder)
        else:
            examined = ("--data", self.data, "--store", self.folder / "states")
            self._add_step("doctor", folder, *examined, "--out", self.folder / "check-up")

    def write_page(self) -> None:
        """Write `index.html`, with the evaluation's report if there is one.

        Raises:
            MissingExtraError: Matplotlib isn't installed; the numbers are written.
        """
        from prefill_router.reporting import (
            Banner,
            Code,
            Report,
            Section,
            evaluation_figures,
            report_of,
            write_report_files,
        )

        title = f"Quickstart in {self.folder.name}"
        parts: Sequence[Part] = []
        files.write_json(self.folder / "quickstart.json", self.to_dict())
        if self.evaluation is not None:
            figures = evaluation_figures(self.evaluation)
            parts = report_of(self.evaluation, figures, title=title, facts={}).parts
        report = Report(
            name="quickstart",
            title=title,
            parts=[
                Banner(self.lines),
                Section("How the source was read", [self.facts, self._make_table()]),
                Section("Next", [Code("\n".join(self.steps))]),
                *parts,
            ],
            numbers=self.to_dict(),
        )
        write_report_files(report, self.folder)

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON."""
        return {
            "read_as": self.facts,
            "queries": len(self.dataset),
            "targets": list(self.dataset.pool.names),
            **self.numbers,
            "pool": str(self.pool),
            "next": self.steps,
        }

    def _add_step(self, *words: object) -> None:
        self.steps.append(shlex.join(["prefill-router", *map(str, words)]))

    def _is_fitted(self, folder: Path) -> bool:
        from prefill_router.router import Router, is_router

        if not is_router(folder):
            return False
        router = Router.load(folder)
        is_judged = router.cross_fit is not None or "test" in router.split.parts
        is_same = router.record.trained_on.fingerprint == self.dataset.fingerprint
        return (
            is_judged and is_same and _list_prices(router.pool) == _list_prices(self.dataset.pool)
        )

    def _note_pool(self) -> None:
        from prefill_router.targets import read_pool

        providers = read_pool(self.pool).providers
        keys = sorted({p.api_key_env for p in providers if p.api_key_env})
        if keys:
            self.lines.append(f"{self.pool}: set {', '.join(keys)} in the environment")
        if any(provider.name == YOURS for provider in providers):
            self.lines.append(f"{self.pool}: replace the address of the provider {YOURS!r}")

    def _mean_costs(self) -> dict[str, float]:
        """The mean cost of an answer of each target, where it is known."""
        return {
            name: float(np.nanmean(column))
            for name, column in zip(
                self.dataset.pool.names, self.dataset.observed_cost.T, strict=True
            )
            if not np.isnan(column).all()
        }

    def _estimate_cost(self, count: int) -> tuple[float, list[str]]:
        """What asking each target so many questions costs, and the targets of unknown cost."""
        means = self._mean_costs()
        unknown = [name for name in self.dataset.pool.names if name not in means]
        return count * sum(means.values()), unknown

    def _most_expensive(self) -> str:
        means = self._mean_costs()
        return max(self.dataset.pool.names, key=lambda name: means.get(name, 0.0))

    def _make_table(self) -> "Table":
        from prefill_router.data import summarise
        from prefill_router.reporting import Table

        meaning = self.dataset.meaning
        rows = [
            [
                target.name,
                f"{target.measured:,}",
                "?" if target.accuracy is None else meaning.words(target.accuracy),
                "?" if target.mean_cost is None else dollars(target.mean_cost),
            ]
            for target in summarise(self.dataset).whole.targets
        ]
        return Table(["target", "labels", meaning.title, "mean cost"], rows)


def _make_task(query: "Query") -> str:
    """A question for `collect`, graded by a judge."""
    from prefill_router.grading import RUBRIC

    request = (
        {"prompt": query.prompt}
        if isinstance(query.prompt, str)
        else {"messages": [{"role": m.role, "content": m.content} for m in query.prompt]}
    )
    return json.dumps({"id": query.id, **request, "grader": "judge", "rubric": RUBRIC}) + "\n"
