"""SQLite and PostgreSQL behind one interface: statements, transactions, waiting, errors.

base        what both can do, and the errors of both
sqlite      an SQLite file, and one that a server writes
postgres    a PostgreSQL database, from threads and from an event loop
"""

from prefill_router.lazy_imports import face

__getattr__, __dir__, __all__ = face(__name__, __file__)
