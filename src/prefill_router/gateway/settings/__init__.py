"""What can be set of the gateway: one YAML file, and environment variables over it.

A variable is `PREFILL_ROUTER_` and the path of the setting, its parts joined by two underscores:
`PREFILL_ROUTER_ROUTING__LAM=0.7`. Keys of targets are never here: the pool names their variables.
"""

from prefill_router.lazy_imports import face

__getattr__, __dir__, __all__ = face(__name__, __file__, needed_for="the gateway")
