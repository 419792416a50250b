"""The gateway's settings: one YAML file, overridden by environment variables.

A variable's name is `PREFILL_ROUTER_` and the path of the setting, joined by two underscores:
`PREFILL_ROUTER_ROUTING__LAM=0.7`. Targets' keys are never settings: the pool names their variables.
"""

from prefill_router.lazy_imports import face

__getattr__, __dir__, __all__ = face(__name__, __file__, needed_for="the gateway")
