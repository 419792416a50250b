"""A file of prompts under a budget: each prompt's target, batches to send, and what came back.

The expected number of right answers is made as large as possible, while the estimated cost keeps to
the budget and no target gets more prompts than its limit. `assign` chooses; `write_assignment`
writes the batches that providers take; `check_results` compares the forecast with their results.
"""

from prefill_router.lazy_imports import face

__getattr__, __dir__, __all__ = face(__name__, __file__)
