"""Requests, forecasts and decisions.

A request is a text or a chat. A forecast is what a router predicts for it, before a target is
chosen. A decision is the chosen target with everything that explains the choice.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, final

import numpy as np
from jaxtyping import Float
from numpy.typing import NDArray

from prefill_router.cost import CostScale
from prefill_router.data import CHANCES, Kind, Message, Prompt
from prefill_router.errors import ConfigError, DataError
from prefill_router.policy import Cascade, Policy, score
from prefill_router.short_repr import html_table, short_repr

Request = Prompt | Sequence[Mapping[str, Any]]
"""Text, messages, or chat messages as dictionaries with `role` and `content`."""


def as_prompt(request: object) -> Prompt:
    """A request as text or messages.

    Raises:
        DataError: The request is something else, or has no messages.
    """
    if isinstance(request, str):
        return request
    if not isinstance(request, Sequence):
        raise DataError("the request must be a text, or a list of messages with role and content")
    turns = [turn if isinstance(turn, Message) else _read_message(turn) for turn in request]
    if not turns:
        raise DataError("the request has no messages; give at least one, or a text")
    return tuple(turns)


def _read_message(turn: object) -> Message:
    role, content = (
        (turn.get("role"), turn.get("content")) if isinstance(turn, Mapping) else (None, None)
    )
    if not isinstance(role, str) or not isinstance(content, str):
        raise DataError("a chat message needs a role and a content, both texts")
    return Message(role, content)


@short_repr
@final
@dataclass(frozen=True, eq=False)
class Forecast:
    """A router's predictions for one request.

    Attributes:
        correctness: Every target's probability of a correct answer, in the order of the pool.
        tokens: The length of the prompt in the encoder's tokens, before truncation.
        truncated: Whether the prompt was too long for the encoder and was truncated.
        novelty: The share of train rows that are closer to the other train rows than this request
            is: near 1 for a request unlike the train rows. None where the router has no reference
            of its train rows.
        bins: For each watched feature of the reference, the decile of the train rows in which this
            request lies, 0 to 9. Empty without a reference.
        output: The expected output of every target (`cost.Expected`); NaN where unknown; None where
            Equation 1's medians are used.
        output_high: The 0.9 quantile of the output of every target; None like `output`.
    """

    correctness: Float[NDArray[np.float64], " target"]
    tokens: int
    truncated: bool
    novelty: float | None = None
    bins: tuple[int, ...] = ()
    output: Float[NDArray[np.float64], " target"] | None = None
    output_high: Float[NDArray[np.float64], " target"] | None = None


@final
@dataclass(frozen=True)
class Segment:
    """A range of lam in which one target wins: above `lam_from`, up to `lam_to`."""

    lam_from: float
    lam_to: float
    target: str


@short_repr
@final
@dataclass(frozen=True)
class Decision:
    """Which target answers a request, and why.

    Attributes:
        target: The winner.
        lam: The lam at which it was chosen.
        correctness: Every target's predicted probability of a correct answer.
        estimated_cost: Every target's estimated cost, US dollars; None where no costs are known.
        policy: The kind of the policy.
        score: Every target's score (Equation 2), which only the policy `lambda` uses.
        order: The targets from best to worst.
        path: The winners over lam from 0 to 1, exactly.
        input_tokens: The length of the prompt in the encoder's tokens, before truncation.
        truncated: Whether the prompt was too long for the encoder and was truncated.
        labels: What the router learned from. From votes, `correctness` is the chance to win against
            the average target.
    """

    target: str
    lam: float
    correctness: Mapping[str, float]
    estimated_cost: Mapping[str, float | None]
    policy: str
    score: Mapping[str, float]
    order: tuple[str, ...]
    path: tuple[Segment, ...]
    input_tokens: int
    truncated: bool
    labels: Kind = "right"

    @property
    def chance_title(self) -> str:
        """What `correctness` is called in tables: P(correct), or P(win) from votes."""
        return CHANCES[self.labels]

    @property
    def changes_below(self) -> Segment | None:
        """The next winner at lower lam and its range; None if there is none."""
        place = self._segment_index()
        return self.path[place - 1] if place > 0 else None

    @property
    def changes_above(self) -> Segment | None:
        """The next winner at higher lam and its range; None if there is none."""
        place = self._segment_index()
        return self.path[place + 1] if place + 1 < len(self.path) else None

    def _segment_index(self) -> int:
        return next(i for i, segment in enumerate(self.path) if segment.target == self.target)

    def _repr_html_(self) -> str:
        rows = [
            (name, self.correctness[name], self.estimated_cost[name], self.score[name])
            for name in self.order
        ]
        head = ("target", self.chance_title, "estimated cost, $", "score")
        return html_table(f"{self.target}, at lam = {self.lam:g}", head, rows)

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON."""
        below, above = self.changes_below, self.changes_above
        chance = "chance_to_win" if self.labels == "vote" else "correctness"
        return {
            "target": self.target,
            "lam": self.lam,
            "policy": self.policy,
            "order": list(self.order),
            "targets": {
                name: {
                    chance: self.correctness[name],
                    "estimated_cost": self.estimated_cost[name],
                    "score": self.score[name],
                }
                for name in self.order
            },
            "changes_below": None if below is None else {"lam": below.lam_to, "to": below.target},
            "changes_above": None if above is None else {"lam": above.lam_from, "to": above.target},
            "path": [vars(segment) for segment in self.path],
            "input_tokens": self.input_tokens,
            "truncated": self.truncated,
        }


def refuse_cascade(policy: Policy) -> None:
    """Check that a policy can choose before any target is called.

    Raises:
        ConfigError: The policy is a cascade.
    """
    if isinstance(policy, Cascade):
        raise ConfigError(
            "a cascade decides after each answer, so it can't choose a target beforehand; see "
            "its plan with router.plan_cascade, or with: prefill-router route"
        )


def decide(
    names: Sequence[str],
    correctness: Float[NDArray[np.float64], " target"],
    estimated_cost: Float[NDArray[np.float64], " target"],
    scale: CostScale,
    *,
    policy: Policy,
    lam: float,
    input_tokens: int,
    truncated: bool,
    priced: bool = True,
    labels: Kind = "right",
) -> Decision:
    """Decide for one request.

    Args:
        names: The targets to choose from.
        correctness: Their predicted probabilities.
        estimated_cost: Their estimated costs, US dollars.
        scale: Normalises the costs for Equation 2.
        policy: The policy; `lam` is its parameter.
        lam: From 0, cheapest, to 1, most probable.
        input_tokens: The encoder's token count of the prompt.
        truncated: Whether the encoder truncated the prompt.
        priced: Whether costs are known; otherwise `estimated_cost` is zero, and isn't reported.
        labels: What the router learned from.
    """
    costs = estimated_cost.tolist() if priced else [None] * len(names)
    p, cost = correctness[None, :], scale.normalise(estimated_cost)[None, :]
    path = policy.path(p, cost, targets=tuple(names))
    ordered = policy.order(p, cost, lam, targets=tuple(names))[0]
    ends = np.append(path.lam[1:], 1.0)
    return Decision(
        target=names[int(ordered[0])],
        lam=lam,
        correctness=dict(zip(names, correctness.tolist(), strict=True)),
        estimated_cost=dict(zip(names, costs, strict=True)),
        policy=str(policy.kind),
        score=dict(zip(names, score(p, cost, lam)[0].tolist(), strict=True)),
        order=tuple(names[int(k)] for k in ordered),
        path=tuple(
            Segment(float(begin), float(end), names[int(k)])
            for begin, end, k in zip(path.lam, ends, path.target, strict=True)
        ),
        input_tokens=input_tokens,
        truncated=truncated,
        labels=labels,
    )
