"""A sandbox for the programs that language models write."""

from prefill_router.sandbox.command import Limits, Outcome, Status
from prefill_router.sandbox.sandbox import Sandbox

__all__ = ["Limits", "Outcome", "Sandbox", "Status"]
