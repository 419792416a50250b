"""A router's submission to RouterArena: three JSON files, and a check of them by its rules.

Its rules are those of `README.md`, `router_inference/check_config_prediction_files.py` and
`global_utils/robustness.py` of the public repository RouteWorks/RouterArena:

- `config/NAME.json` names the router and the models that it chooses from;
- `predictions/NAME.json` has an entry for each question, with the question's index, its exact
  prompt, and one of those models; `generated_result`, `cost` and `accuracy` are null until
  RouterArena's own programs fill them in;
- `predictions/NAME-robustness.json` has the same for reworded questions under the same indices;
- no part of the router was fitted on the questions.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, final

from prefill_router.data import Query
from prefill_router.errors import ConfigError, DataError
from prefill_router.router.router import Router
from prefill_router.short_repr import short_repr

ARENA_SIZES = {"questions": (8400, 809), "reworded": (420,)}
"""How many questions RouterArena has: all and a tenth of them, and reworded ones."""
_SHOWN = 3


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
    def of(
        cls,
        name: str,
        router: Router,
        asked: Sequence[tuple[Query, str]],
        reworded: Sequence[tuple[Query, str]],
    ) -> "ArenaSubmission":
        """Make the files' content and check it.

        Args:
            name: The router's name.
            router: The router.
            asked: Each question with its target.
            reworded: Each reworded question with its target.

        Raises:
            DataError: RouterArena would refuse it; the message has the reasons.
        """
        made = cls(name, router.pool.names, *(list(map(_entry, x)) for x in (asked, reworded)))
        questions, others = ({q.id: q.prompt for q, _ in x} for x in (asked, reworded))
        content = made.config, made.predictions, made.robustness
        found = [*_fitted_on(router, questions), *arena_errors(*content, questions, others)]
        if found:
            more = f"; and {len(found) - _SHOWN:,} more" if len(found) > _SHOWN else ""
            raise DataError(f"RouterArena would refuse it: {'; '.join(found[:_SHOWN])}{more}")
        return made

    @property
    def config(self) -> dict[str, Any]:
        """The content of the configuration."""
        return {"pipeline_params": {"router_name": self.name, "models": list(self.models)}}

    @property
    def files(self) -> dict[str, Any]:
        """The content of the files by their paths in a checkout of RouterArena."""
        inference = "router_inference"
        return {
            f"{inference}/config/{self.name}.json": self.config,
            f"{inference}/predictions/{self.name}.json": self.predictions,
            f"{inference}/predictions/{self.name}-robustness.json": self.robustness,
        }


def _entry(pair: tuple[Query, str]) -> dict[str, Any]:
    query, target = pair
    unknown = dict.fromkeys(("generated_result", "cost", "accuracy"))
    asked = {"global index": query.id, "prompt": query.prompt, "prediction": target}
    return {**asked, **unknown, "for_optimality": False}


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


def arena_errors(
    config: Mapping[str, Any],
    predictions: Sequence[Any],
    robustness: Sequence[Any],
    questions: Mapping[str, Any],
    reworded: Mapping[str, Any],
) -> list[str]:
    """Why RouterArena would refuse the content of three files; empty where it wouldn't.

    Whether it knows the models' names and prices is in lists of its own, which aren't read.

    Args:
        config: The configuration.
        predictions: The predictions.
        robustness: The predictions for reworded questions.
        questions: The prompt of every question by its index.
        reworded: The same of the reworded questions.
    """
    params = config.get("pipeline_params")
    models = params.get("models") if isinstance(params, dict) else None
    if not isinstance(models, list) or not models or len(set(models)) < len(models):
        return ["the configuration names no models, or one twice"]
    found = [
        f"{what}, {why}"
        for what, entries, asked in (
            ("predictions", predictions, questions),
            ("robustness", robustness, reworded),
        )
        for why in _entry_errors(entries, asked, models)
    ]
    if not found and arena_robustness(predictions, robustness) is None:
        found.append("no reworded question has the index of a question")
    return found


def _entry_errors(
    entries: Sequence[Any], asked: Mapping[str, Any], models: Sequence[str]
) -> Iterator[str]:
    regular = [one for one in entries if isinstance(one, dict) and not one.get("for_optimality")]
    if len(regular) != len(asked):
        yield f"{len(regular):,} entries for {len(asked):,} questions"
    seen = set[str]()
    for number, entry in enumerate(regular, 1):
        index, prompt = entry.get("global index"), entry.get("prompt")
        if not index or index not in asked or index in seen:
            yield f"entry {number}: {index!r} is no index of a question, or was there before"
        elif not isinstance(prompt, str) or not prompt:
            yield f"entry {number} ({index}): the prompt must be a text that isn't empty"
        elif prompt != asked[index]:
            yield f"entry {number} ({index}): the prompt isn't exactly that of the question"
        elif entry.get("prediction") not in models:
            yield f"entry {number} ({index}): {entry.get('prediction')!r} isn't one of the models"
        seen.add(str(index))


def arena_robustness(predictions: Sequence[Any], robustness: Sequence[Any]) -> float | None:
    """RouterArena's robustness, 1 - flips / matches; None where no index is in both."""
    regular = [one for one in predictions if not one.get("for_optimality")]
    asked = {one["global index"]: one["prediction"] for one in regular}
    both = [
        asked[one["global index"]] == one["prediction"]
        for one in robustness
        if one["global index"] in asked
    ]
    return sum(both) / len(both) if both else None


def _fitted_on(router: Router, questions: Mapping[str, Any]) -> Iterator[str]:
    parts = router.split.parts
    fitted = {i for part in ("train", "calibration") for i in parts.get(part, ())}
    both = sorted(fitted & set(questions))
    if both:
        yield (
            f"the router was fitted on {len(both):,} of the questions, the first is {both[0]!r}, "
            "and RouterArena's questions are for evaluation alone"
        )
