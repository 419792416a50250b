"""Who asks, and what: coding agents' requests read without the texts of the agents.

harness          the marks of each agent, from a versioned file
request_reading  the ask, its kind and its conversation
"""

from prefill_router.lazy_imports import face

__getattr__, __dir__, __all__ = face(__name__, __file__)
