"""A router without its encoder and predictor: enough to price, to choose, and to plan a cascade.

Reading it loads no network and no library that runs one, so that a server whose forecasts are made
in another process stays small.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar, final

import numpy as np
from jaxtyping import Float
from numpy.typing import NDArray

from prefill_router import policy
from prefill_router.cost import CostEstimator
from prefill_router.data import Kind
from prefill_router.errors import ConfigError, CorruptError, FormatError
from prefill_router.policy import Cascade, CascadeRun, Lambda, Policy
from prefill_router.remote import PathOrUrl, reading
from prefill_router.router.decision import Request
from prefill_router.router.reference import outline
from prefill_router.router.storage import FILES, fingerprint, read_checked, read_costs, read_json
from prefill_router.short_repr import short_repr
from prefill_router.targets import Pool, Target

if TYPE_CHECKING:
    from prefill_router.router.router import Router

_ASSUMED_OUTPUT = 500.0  # tokens


@short_repr
@final
@dataclass(frozen=True, eq=False)
class LightRouter:
    """The parts of a router besides its encoder and predictor.

    Attributes:
        costs: Equation 1, with the pool and its prices.
        policy: Chooses a target, given probabilities and costs.
        fingerprint: A hash, 16 hexadecimal digits, of everything in the folder that decides; empty
            where there is no router yet (`without_router`).
        encoders: The names of the encoders, for people; empty for features of the text alone.
        reference_accuracy: Every target's share of correct answers on the train rows, in the order
            of the pool, NaN where none are known. None where the folder has none.
        reference_shares: The share of train rows in each decile of every column that is watched for
            drift, to compare `Forecast.bins` with. None where the folder has none.
        verdict: Whether the router is worth it: `word`, `lam` and `gain`. The gain is in accuracy
            over the best fixed mix of targets at equal cost, or from votes in win rate over the
            best fixed ranking. None where it wasn't evaluated.
        labels: What it learned from: `vote`, or else `right`, which scores are too.
        lam: The lam that it is used at, chosen on its train rows; None where none was.
        rule: How that was chosen, in words.
    """

    costs: CostEstimator
    policy: Policy
    fingerprint: str
    encoders: tuple[str, ...] = ()
    reference_accuracy: Float[NDArray[np.float64], " target"] | None = None
    reference_shares: Float[NDArray[np.float64], "watched bin"] | None = None
    verdict: dict[str, Any] | None = None
    lam: float | None = None
    rule: str = ""
    labels: Kind = "right"

    @property
    def pool(self) -> Pool:
        """The targets and their prices."""
        return self.costs.pool

    def with_pool(self, pool: Pool) -> "LightRouter":
        """The same router with other prices, endpoints and abilities.

        Raises:
            ConfigError: The pool has other names.
        """
        return replace(self, costs=self.costs.with_pool(pool))


def without_router(pool: Pool) -> LightRouter:
    """What serves a pool for which no router has been fitted: prices, and no forecast.

    An answer is assumed to have `_ASSUMED_OUTPUT` tokens. If a target has no price, no cost is
    estimated, since the targets' costs couldn't be compared.

    Args:
        pool: The targets.
    """
    if not all(target.has_price for target in pool):
        targets = tuple(target.with_prices_of(Target(name=target.name)) for target in pool)
        pool = replace(pool, targets=targets)
    ones, unknown = np.ones(len(pool)), np.full(len(pool), np.nan)
    costs = CostEstimator(
        pool=pool,
        median_output=_ASSUMED_OUTPUT * ones,
        token_ratio=ones,
        least_input=ones,
        most_input=_ASSUMED_OUTPUT * ones,
        fixed=unknown,
    )
    return LightRouter(costs=costs, policy=Lambda(), fingerprint="")


def read_light(place: PathOrUrl | str) -> LightRouter:
    """Read these parts of a router's folder; all its files are checked as by `Router.load`.

    Raises:
        ConfigError: There is no router.
        CorruptError: A file is missing, isn't what was written, or is of another version.
    """
    with reading(place, FILES) as folder:
        return _read_folder(folder)


def _read_folder(folder: Path) -> LightRouter:
    model = read_checked(folder)
    try:
        costs = read_costs(model, folder)
        chosen = policy.from_dict(model.policy)
        nothing = np.zeros((1, len(costs.pool)))
        chosen.path(nothing, nothing, targets=costs.pool.names)  # checks the targets that it names
        accuracy, shares = (
            (None, None)
            if model.reference is None
            else outline(model.reference, targets=len(costs.pool))
        )
    except (FormatError, ConfigError, CorruptError) as error:
        raise CorruptError(f"{folder} is inconsistent: {error}") from None
    record = read_json(folder / "record.json")
    return LightRouter(
        costs=costs,
        policy=chosen,
        fingerprint=fingerprint(folder),
        encoders=tuple(dict.fromkeys(_find_encoders(model.features))),
        reference_accuracy=accuracy,
        reference_shares=shares,
        verdict=_read_verdict(record),
        lam=_read_lam(record),
        rule=_read_rule(record),
        labels="vote" if record.get("labels") == "vote" else "right",
    )


def _read_verdict(record: Any) -> dict[str, Any] | None:
    """The part of the verdict that may be public: it names no target."""
    try:
        verdict = record["verdict"]
        return {
            "word": str(verdict["word"]),
            "lam": float(verdict["lam"]),
            "gain": verdict["curve"][0]["best_mix"]["gain"]
            if "curve" in verdict
            else verdict["gain"],
        }
    except (KeyError, TypeError, ValueError):
        return None


def _read_lam(record: Any) -> float | None:
    try:
        return min(max(float(record["chosen"]["setting"]), 0.0), 1.0)
    except (KeyError, TypeError, ValueError):
        return None


def _read_rule(record: Any) -> str:
    try:
        return str(record["chosen"]["rule"])
    except (KeyError, TypeError):
        return ""


def _find_encoders(saved: Any) -> Iterator[str]:
    """Every encoder that the saved features name; each family saves it in its own place."""
    if isinstance(saved, list):
        for part in saved:
            yield from _find_encoders(part)
    elif isinstance(saved, dict):
        if isinstance(saved.get("encoder"), str) and isinstance(saved.get("revision"), str):
            yield saved["encoder"]
        for part in saved.values():
            yield from _find_encoders(part)


Answer = TypeVar("Answer")


@final
@dataclass(frozen=True)
class CascadeStage:
    """One target of a cascade.

    Attributes:
        target: The target's name.
        threshold: The score from which its answer is taken; None for the last, which always is.
        correctness: Its predicted probability of a correct answer.
        estimated_cost: US dollars.
    """

    target: str
    threshold: float | None
    correctness: float
    estimated_cost: float


@short_repr
@final
@dataclass(frozen=True)
class CascadePlan:
    """The plan of a cascade for one request, before any target is called.

    Attributes:
        policy: The cascade.
        lam: Its setting.
        stages: The targets, in the order of the calls.
        input_tokens: The length of the prompt in the encoder's tokens, before truncation.
        truncated: Whether the prompt was too long for the encoder and was truncated.
    """

    policy: Cascade
    lam: float
    stages: tuple[CascadeStage, ...]
    input_tokens: int
    truncated: bool

    def score(self, target: str, output_tokens: int | None) -> float:
        """The score of a target's answer; without a scorer its predicted probability.

        Args:
            target: The target's name.
            output_tokens: The length of the answer; None where unknown.
        """
        predicted = next(s.correctness for s in self.stages if s.target == target)
        tokens = np.nan if output_tokens is None else float(output_tokens)
        table = self.policy.scores(np.array([[predicted]]), np.array([[tokens]]), targets=(target,))
        return float(table[0, 0])

    def run(
        self, ask: Callable[[str], Answer], output_tokens: Callable[[Answer], int | None]
    ) -> CascadeRun[Answer]:
        """Call one target after the other until an answer is good enough.

        Args:
            ask: Calls a target and returns its answer.
            output_tokens: The length of an answer; None where unknown.

        Raises:
            UpstreamError: All calls failed; it is the error of the last one.
        """
        return self.policy.run(
            ask,
            lambda target, answer: self.score(target, output_tokens(answer)),
            at=self.lam,
            targets=tuple(stage.target for stage in self.stages),
        )

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON."""
        return {
            "policy": self.policy.kind,
            "lam": self.lam,
            "stages": [vars(stage) for stage in self.stages],
            "input_tokens": self.input_tokens,
            "truncated": self.truncated,
        }


def plan_cascade(router: "Router", request: Request, *, lam: float | None = None) -> CascadePlan:
    """Plan the cascade of a router for one request.

    Args:
        router: A router whose policy is a cascade.
        request: Text, or chat messages.
        lam: The cascade's setting, from 0 (the first answer) to 1 (the most accurate); the router's
            own if not given.

    Raises:
        ConfigError: The policy isn't a cascade, or `lam` is outside [0, 1].
        PromptError: The request can't be encoded.
    """
    cascade, lam = router.policy, router.setting if lam is None else lam
    if not isinstance(cascade, Cascade):
        raise ConfigError(f"the router's policy is {cascade.kind}, not a cascade; use router.route")
    forecast = router.forecast_many([request])[0]
    cost = router.estimated_cost([forecast])
    names = router.pool.names
    turns = cascade.turns(router.costs.scale.normalise(cost), targets=names)[0].tolist()
    thresholds = (*cascade.thresholds(lam, stages=len(turns)), None)
    stages = tuple(
        CascadeStage(names[k], threshold, float(forecast.correctness[k]), float(cost[0, k]))
        for k, threshold in zip(turns, thresholds, strict=True)
    )
    return CascadePlan(cascade, lam, stages, forecast.tokens, forecast.truncated)
