"""A router's submission to RouterArena: three JSON files that its rules accept.

Its rules are those of `README.md`, `router_inference/check_config_prediction_files.py` and
`global_utils/robustness.py` of the public repository RouteWorks/RouterArena:

- `config/NAME.json` names the router and the models that it chooses from;
- `predictions/NAME.json` has an entry for each question, with the question's index, its exact
  prompt, and one of those models; `generated_result`, `cost` and `accuracy` are null until
  RouterArena's own programs fill them in;
- `predictions/NAME-robustness.json` has the same for reworded questions under the same indices;
- no part of the router was fitted on the questions.

Whether RouterArena knows the models' names and prices is in lists of its own, which aren't read.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, final

from prefill_router.data import Query
from prefill_router.errors import ConfigError, DataError
from prefill_router.router.router import Router
from prefill_router.short_repr import short_repr

ARENA_SIZES = {"questions": (8400, 809), "reworded": (420,)}
"""How many questions RouterArena has: all and a tenth of them, and reworded ones."""
_SHOWN = 3
Chosen = Sequence[tuple[Query, str]]
"""Questions, each with the target that the router chose."""


@short_repr
@final
@dataclass(frozen=True)
class ArenaSubmission:
    """A submission that RouterArena's rules accept.

    Attributes:
        name: The router's name, which is that of the files.
        models: The targets' names.
        predictions: An entry per question.
        robustness: An entry per reworded question.
    """

    name: str
    models: tuple[str, ...]
    predictions: list[dict[str, Any]]
    robustness: list[dict[str, Any]]

    @classmethod
    def of(cls, name: str, router: Router, asked: Chosen, reworded: Chosen) -> "ArenaSubmission":
        """Make the files' content.

        Args:
            name: The router's name.
            router: The router.
            asked: The questions with their targets.
            reworded: The reworded questions with their targets.

        Raises:
            DataError: RouterArena would refuse it; the message has the reasons.
        """
        questions, others = ([query for query, _ in chosen] for chosen in (asked, reworded))
        errors = [
            *_fitted_on(router, questions),
            *_entry_errors("predictions", questions),
            *_entry_errors("robustness", others),
        ]
        if not errors and not {q.id for q in questions} & {q.id for q in others}:
            errors.append("no reworded question has the index of a question")
        if errors:
            more = f"; and {len(errors) - _SHOWN:,} more" if len(errors) > _SHOWN else ""
            raise DataError(f"RouterArena would refuse it: {'; '.join(errors[:_SHOWN])}{more}")
        entries = ([_entry(*pair) for pair in chosen] for chosen in (asked, reworded))
        return cls(name, router.pool.names, *entries)

    @property
    def files(self) -> dict[str, Any]:
        """The content of the files by their paths in a checkout of RouterArena."""
        config = {"pipeline_params": {"router_name": self.name, "models": list(self.models)}}
        return {
            f"router_inference/config/{self.name}.json": config,
            f"router_inference/predictions/{self.name}.json": self.predictions,
            f"router_inference/predictions/{self.name}-robustness.json": self.robustness,
        }

    @property
    def robustness_score(self) -> float:
        """RouterArena's robustness: the share of reworded questions whose target stays."""
        chosen = {entry["global index"]: entry["prediction"] for entry in self.predictions}
        stays = [
            chosen[entry["global index"]] == entry["prediction"]
            for entry in self.robustness
            if entry["global index"] in chosen
        ]
        return sum(stays) / len(stays)


def arena_name(text: str) -> str:
    """Check the name of a router, which is a file's name and a word of RouterArena's commands.

    Raises:
        ConfigError: It can't be one.
    """
    if not text or text.startswith((".", "-")) or set(text) & set('/\\:*?"<>|\n'):
        raise ConfigError(f"{text!r} can't name RouterArena's files; rename the router's folder")
    if text.endswith("-robustness"):
        raise ConfigError(f"{text!r} is how RouterArena names a robustness file; rename the folder")
    return text


def _entry(query: Query, target: str) -> dict[str, Any]:
    unknown = dict.fromkeys(("generated_result", "cost", "accuracy"))
    chosen = {"global index": query.id, "prompt": query.prompt, "prediction": target}
    return {**chosen, **unknown, "for_optimality": False}


def _entry_errors(file: str, queries: Sequence[Query]) -> Iterator[str]:
    seen = set[str]()
    for number, query in enumerate(queries, 1):
        if not query.id or query.id in seen:
            yield f"{file}, entry {number}: {query.id!r} is no index, or is repeated"
        elif not isinstance(query.prompt, str) or not query.prompt:
            yield f"{file}, entry {number} ({query.id}): the prompt must be a text that isn't empty"
        seen.add(query.id)


def _fitted_on(router: Router, questions: Sequence[Query]) -> Iterator[str]:
    parts = router.split.parts
    fitted = {i for part in ("train", "calibration") for i in parts.get(part, ())}
    both = sorted(fitted & {query.id for query in questions})
    if both:
        yield (
            f"the router was fitted on {len(both):,} of the questions, the first is {both[0]!r}, "
            "and RouterArena's questions are for evaluation alone"
        )
