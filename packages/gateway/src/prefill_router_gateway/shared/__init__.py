"""What replicas of the gateway share through one PostgreSQL database.

tables    the tables and statements
leases    leases of budgets, limits of keys, and conversations
state     keeps a gateway and the database in step
"""

from prefill_router.lazy_imports import face

__getattr__, __dir__, __all__ = face(__name__, __file__, needed_for="the gateway")
