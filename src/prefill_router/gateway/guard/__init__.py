"""The guard: keys of clients, their limits, and what no request may do.

http_protocol   connections that hold little and end soon (uvicorn)
admission       what every request passes before the gateway looks at it, and what replies pass
checks          the checks on the way: headers, host names, room, and how much each key may ask
client_keys     which keys there are, what each may do, and the file of them
error_replies   refusals and failures as replies
"""

from prefill_router.lazy_imports import face

__getattr__, __dir__, __all__ = face(__name__, __file__, needed_for="the gateway")
