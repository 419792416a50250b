"""The gateway's state: the pieces joined, until the process is asked to end.

configuration   where everything is, read with every error at once
request_scope   what one request goes on with, a reload or not, and what is recorded of it
activity        what metrics read of the gateway's parts
gateway         what lasts as long as the process
"""

from prefill_router.lazy_imports import face

__getattr__, __dir__, __all__ = face(__name__, __file__, needed_for="the gateway")
