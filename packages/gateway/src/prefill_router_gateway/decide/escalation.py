"""Whether a task that doesn't get on may go to a stronger target, once.

An agent keeps its target for what a person asks. Where its tools fail again and again, or it
repeats itself, a stronger target may get on.
"""

from typing import final

from prefill_router_gateway.decide.affinity import Sessions
from prefill_router_gateway.records import EscalationCause, RoutingRequest
from prefill_router_gateway.settings import AgentSettings

_TASKS = ("main", "plan", "subagent")


@final
class EscalationRule:
    """Says which requests may go to a stronger target.

    Args:
        settings: The settings of agents.
        sessions: What is remembered of conversations.
    """

    def __init__(self, settings: AgentSettings, sessions: Sessions) -> None:
        self._mode, self._after = settings.escalation, settings.escalate_after
        self._sessions = sessions
        self.changes_target = self._mode == "on"

    def find_cause(self, question: RoutingRequest) -> tuple[EscalationCause, int] | None:
        """Why a request may go to a stronger target, and how often it was seen; None if it may not.

        A task is escalated once, so only in a conversation that is remembered. One with what only
        its target can read stays there.
        """
        if self._mode == "off" or question.holds_state or question.agent.kind not in _TASKS:
            return None
        if self._sessions.last_state(question.session) is None or self.was_escalated(question):
            return None
        counts: dict[EscalationCause, int] = {
            "failing_steps": question.agent.failing_steps,
            "repeated_calls": question.agent.repeated_calls,
            "stalled_steps": question.agent.stalled_steps,
        }
        return next(((c, n) for c, n in counts.items() if n >= getattr(self._after, c)), None)

    def was_escalated(self, question: RoutingRequest) -> bool:
        """Whether a request goes on with a task that was escalated."""
        goes_on = question.agent.is_ongoing or question.in_tool_loop
        state = self._sessions.last_state(question.session) if goes_on else None
        return state is not None and state.is_escalated
