"""Replays recorded requests at another lam, with conversations that keep their target.

The gateway's own code decides, on the data in receipts. Each setting has its own memory of
conversations, in which answers end at their recorded times.
"""

import heapq
from collections.abc import Hashable, Iterable, Sequence
from dataclasses import replace
from typing import final

import numpy as np

from prefill_router.cost import CostScale
from prefill_router.errors import DataError
from prefill_router.gateway.decide import (
    Allowance,
    CostScores,
    RequestEstimate,
    Sessions,
    TargetChooser,
)
from prefill_router.gateway.receipts.explanation import AffinityRule, affinity_rule_of
from prefill_router.gateway.receipts.receipt_replay import (
    LATENCY,
    Replay,
    ReplaySetting,
    check_any,
    replay_setting,
)
from prefill_router.gateway.receipts.replay_table import PerRequest, Recorded, TargetColumns
from prefill_router.gateway.records import Receipt, RoutingRequest
from prefill_router.gateway.settings import (
    GatewaySettings,
    LatencySettings,
    RoutingSettings,
    SessionSettings,
    TrafficSettings,
)

_HOLDS = ("answered", "disconnected", "routed")
"""The outcomes after which a request's target is the conversation's target."""
_MOST = 10_000_000
_End = tuple[float, int, str, str, int]


def replay_sessions(
    receipts: Iterable[Receipt], lams: Sequence[float], *, latency: LatencySettings | None = None
) -> Replay:
    """Decide recorded requests again, each after the earlier ones of its conversation.

    A request in a tool loop goes to its conversation's target; so does one without a forecast, if
    that target could answer it. Neither is counted, nor are requests for a named target. Requests
    outside the routed share keep their target. Answers have as many tokens as they did, converted
    to the tokens of the target that gives them.

    Args:
        receipts: Receipts in order of their requests' arrival.
        lams: The trade-offs to try; each request's own is tried too.
        latency: Settings of latency to try, at each request's own lam; None for none.

    Raises:
        DataError: No request can be decided again, or no receipt has the settings by which
            conversations keep their target.
        ConfigError: A lam is outside [0, 1].
    """
    rows = [replace(receipt, prompt=None) for receipt in receipts]
    recorded = Recorded.of(rows)
    check_any(recorded)
    keeping = [None if r.choice.session is None else affinity_rule_of(r) for r in rows]
    lacking = sum(
        found is None and row.choice.session is not None
        for found, row in zip(keeping, rows, strict=True)
    )
    if lacking and not any(keeping):
        raise DataError(
            "no receipt has the settings by which conversations keep their target: an older "
            "version of this package wrote them; replay without --sessions"
        )
    replayed = _RecordedSessions(recorded, rows, keeping)
    notes = [f"{lacking:,} older receipts lack the settings of conversations"] if lacking else []
    tried = (replayed.at(f"lam = {lam:g}", recorded.at(lam), lam) for lam in lams)
    own = replayed.at("at its own lam", recorded.at_own_lam(), None)
    settings = [replayed.as_it_was(), own, *tried]
    if latency is not None:
        other = recorded.with_latency(latency)
        sessions = _RecordedSessions(other, rows, keeping)
        settings.append(sessions.at(LATENCY, other.at_own_lam(), None))
    return Replay(recorded, tuple(settings), tuple(notes), sessions=True)


@final
class _RecordedSessions:
    """The recorded requests, and their replay at settings."""

    def __init__(
        self,
        recorded: Recorded,
        receipts: Sequence[Receipt],
        keeping: Sequence[AffinityRule | None],
    ) -> None:
        self._recorded, self._receipts, self._keeping = recorded, receipts, keeping
        self._row = {name: row for row, name in enumerate(recorded.ids)}
        self._column = {name: k for k, name in enumerate(recorded.targets)}

    def as_it_was(self) -> ReplaySetting:
        """The recorded choices."""
        rows = {r.choice.id: r.choice for r in self._receipts if r.choice.id in self._row}
        choices = [rows[name] for name in self._recorded.ids]
        cost = np.array([choice.estimated_cost.get(choice.target, 0.0) for choice in choices])
        return replay_setting(self._recorded, "as it was", self._recorded.chosen, cost=cost)

    def at(self, name: str, alone: TargetColumns, lam: float | None) -> ReplaySetting:
        """The replayed choices at a lam.

        Args:
            name: The setting's name.
            alone: The column that the policy chooses for each request by itself.
            lam: The trade-off; None for each request's own.
        """
        world = _ReplayedSessions(self._recorded, alone, lam)
        who = alone.copy()
        cost: PerRequest = np.zeros(len(alone))
        for receipt, keeping in zip(self._receipts, self._keeping, strict=True):
            row = self._row.get(receipt.choice.id)
            target, dollars = world.decide(receipt, keeping, row)
            world.ends(receipt, keeping, target)
            if row is not None:
                column = who[row] = self._column[target]
                known = self._recorded.estimated_cost[row, column]
                cost[row] = known if dollars is None else dollars
        return replay_setting(self._recorded, name, who, cost=cost)


@final
class _ReplayedSessions:
    """The conversations at one setting, up to the request being decided."""

    def __init__(self, recorded: Recorded, alone: TargetColumns, lam: float | None) -> None:
        self._recorded, self._alone, self._lam = recorded, alone, lam
        self._sessions = Sessions(SessionSettings(most=_MOST))
        self._ends: list[_End] = []
        self._choosers: dict[Hashable, TargetChooser] = {}

    def decide(
        self, receipt: Receipt, keeping: AffinityRule | None, row: int | None
    ) -> tuple[str, float | None]:
        """The target of a request, and its estimated cost with the target's cache.

        Args:
            receipt: The request.
            keeping: The settings that keep its conversation's target; None where unknown.
            row: Its row among the requests that can be decided again; None where it can't.

        Returns:
            The target, and US dollars; None where nothing is cached.
        """
        while self._ends and self._ends[0][0] <= receipt.at:
            end, _, session, target, tokens = heapq.heappop(self._ends)
            self._sessions.answered(session, target=target, tokens=tokens, at=end)
        choice, held = receipt.choice, None
        if keeping is not None:
            self._sessions.use(SessionSettings(seconds=keeping.seconds, most=_MOST))
            state = self._sessions.state(choice.session, receipt.at)
            held = None if state is None or choice.opening else state.target
        if row is None:
            free = choice.reason not in ("tool_loop", "stored")
            stays = held is not None and (not free or held in choice.order)
            return (held or choice.target) if stays else choice.target, None
        if choice.reason == "share":
            return choice.target, None
        if held is None or keeping is None:
            return self._recorded.targets[self._alone[row]], None
        return self._chosen(receipt, keeping, row)

    def ends(self, receipt: Receipt, keeping: AffinityRule | None, target: str) -> None:
        """End the request at this target, or at the fallback that answered after it."""
        choice, outcome = receipt.choice, receipt.outcome
        known = outcome.target is not None or outcome.kind == "routed"
        if choice.session is None or outcome.kind not in _HOLDS or not known:
            return
        was = outcome.target or choice.target
        who = was if target == choice.target else target
        usage = outcome.usage
        counts = () if usage is None else (usage.input_tokens, usage.output_tokens)
        tokens = sum(n for n in counts if n is not None) or choice.input_tokens
        if keeping is not None and who != was:
            tokens = round(tokens * keeping.ratio.get(who, 1.0) / keeping.ratio.get(was, 1.0))
        end = receipt.at + outcome.total_seconds
        heapq.heappush(self._ends, (end, len(self._ends), choice.session, who, tokens))

    def _chosen(self, receipt: Receipt, keeping: AffinityRule, row: int) -> tuple[str, float]:
        """Choose as the gateway does where the conversation has a target."""
        choice, names = receipt.choice, tuple(receipt.choice.correctness)
        own = choice.lam or 0.0
        spent = own == 0 and bool(choice.lam_asked)
        lam = Allowance(own, exhausted=spent) if self._lam is None else Allowance(self._lam)
        columns = [self._recorded.targets.index(name) for name in names]
        chosen = self._chooser(names, keeping, row).choose(
            RoutingRequest(endpoint=receipt.endpoint, at=receipt.at, session=choice.session),
            RequestEstimate(
                tokens=choice.input_tokens,
                cost=self._recorded.estimated_cost[row, columns],
                correctness=self._recorded.correctness[row, columns],
            ),
            lam,
            [k for k, name in enumerate(names) if name in choice.order],
            decision=choice.id,
            waits=self._recorded.waits[row],
            limited=[k for k, name in enumerate(names) if name in choice.limited],
        )
        first = chosen.order[0]
        return names[first], float(chosen.cost[first])

    def _chooser(self, names: tuple[str, ...], keeping: AffinityRule, row: int) -> TargetChooser:
        policy, (low, high) = self._recorded.policies[row], self._recorded.scales[row].tolist()
        parts = (*keeping.ratio.items(), *keeping.saved.items())
        key = (id(policy), names, low, high, keeping.cache_seconds, keeping.margin, parts)
        if key not in self._choosers:
            self._choosers[key] = TargetChooser(
                names,
                policy,
                CostScores(
                    CostScale(low, high),
                    saved=np.array([keeping.saved.get(name, 0.0) for name in names]),
                    ratio=np.array([keeping.ratio.get(name, 1.0) for name in names]),
                ),
                None,
                settings=GatewaySettings.model_construct(  # ignores the environment
                    sessions=SessionSettings(
                        seconds=keeping.seconds,
                        cache_seconds=keeping.cache_seconds,
                        margin=keeping.margin,
                    ),
                    routing=RoutingSettings(),
                    traffic=TrafficSettings(),
                ),
                sessions=self._sessions,
            )
        return self._choosers[key]
