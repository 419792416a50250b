"""Whether a conversation keeps its target: what a switch gains, against what it throws away.

A provider reads the turns that it has just seen from its cache, at a lower price. So the present
target is priced with what its cache should hold, and every other one in full; by these costs the
scores of Equation 2 are compared.
"""

from prefill_router.gateway.deciding.costs import PerTarget, Scoring
from prefill_router.gateway.deciding.sessions import Seat
from prefill_router.gateway.settings import Sessions as SessionSettings


def cached_tokens(seat: Seat, *, at: float, settings: SessionSettings) -> int:
    """Tokens that the present target's provider should still hold, in the target's own."""
    return seat.tokens if at - seat.at <= settings.cache_seconds else 0


def stays(
    correctness: PerTarget,
    cost: PerTarget,
    lam: float,
    *,
    present: int,
    winner: int,
    costs: Scoring,
    margin: float,
) -> bool:
    """Whether the present target is kept: where the policy's winner gains no more than the margin.

    By the policy `lambda` the winner has the best score of the others; by other policies it is
    whom they would choose, and must be better by the same rule.

    Args:
        correctness: Every target's probability.
        cost: Every target's estimated cost, the present one's with its cache, US dollars.
        lam: The trade-off.
        present: The column of the present target.
        winner: The column of whom the policy would choose, with nothing cached.
        costs: The router's costs.
        margin: What a switch must gain in score.
    """
    if winner == present:
        return True
    score = costs.scores(correctness, cost, lam)
    return bool(score[winner] - score[present] <= margin)
