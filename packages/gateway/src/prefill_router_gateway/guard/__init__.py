"""The guard: client keys, their limits, and the checks of every request.

http_protocol   connections with limits on size and time (uvicorn)
refusals        refusals and unexpected errors as responses
admission       admits or refuses every request, and adds security headers to responses
checks          the checks: headers, host names, sizes, capacity, and keys with their limits
key_file        the file that keeps the keys
"""

from prefill_router.lazy_imports import face

__getattr__, __dir__, __all__ = face(__name__, __file__, needed_for="the gateway")
