"""The tables that replicas share, and the statements on them.

Each replica writes only its own rows of spending and presence, with absolute values: a statement
whose success never became known can be repeated. Times are the database's, in seconds since 1970,
since replicas' clocks differ; only `shared_affinity` has the time of an answer's end.
"""

from prefill_router.database import AsyncPostgresDatabase, refuse_newer
from prefill_router.errors import StoreError

VERSION = 1
"""The version of the tables; other versions are refused."""
TABLES_LOCK, LEASES_LOCK = 7_346_513, 7_346_514
"""Advisory locks: for making the tables, and for leases, which are granted one after another."""
DEAD_SECONDS = 10
"""A replica that hasn't been heard of for this long has ended, as far as the others know."""
_NOW = "extract(epoch FROM clock_timestamp())::float8"

_CREATE = (
    "CREATE TABLE IF NOT EXISTS shared_replicas "
    "(replica TEXT PRIMARY KEY, seen DOUBLE PRECISION NOT NULL)",
    # `owner` is a key's name, or empty for the whole gateway; `win` is the number of the hour or
    # day; `granted` is all that was leased to the replica, what it has spent included
    "CREATE TABLE IF NOT EXISTS shared_spend (owner TEXT, per TEXT, win BIGINT, replica TEXT, "
    "spent DOUBLE PRECISION NOT NULL, granted DOUBLE PRECISION NOT NULL, "
    "PRIMARY KEY (owner, per, win, replica))",
    "CREATE TABLE IF NOT EXISTS shared_affinity (name TEXT PRIMARY KEY, kind TEXT NOT NULL, "
    "target TEXT NOT NULL, owner TEXT, tokens BIGINT NOT NULL, at DOUBLE PRECISION NOT NULL)",
    "CREATE INDEX IF NOT EXISTS shared_affinity_at ON shared_affinity (kind, at)",
    # `in_flight` has each replica's number of requests; it is in the same row as the bucket, so
    # that one statement checks and takes both
    "CREATE TABLE IF NOT EXISTS shared_limits (owner TEXT PRIMARY KEY, "
    "filled DOUBLE PRECISION NOT NULL, at DOUBLE PRECISION NOT NULL, in_flight JSONB NOT NULL)",
    "CREATE TABLE IF NOT EXISTS shared_breakers (target TEXT PRIMARY KEY, "
    "opened_at DOUBLE PRECISION NOT NULL, tried_at DOUBLE PRECISION)",
    "CREATE TABLE IF NOT EXISTS shared_lam (lam DOUBLE PRECISION NOT NULL)",
    "CREATE TABLE IF NOT EXISTS shared_schema (version BIGINT NOT NULL)",
    f"INSERT INTO shared_schema SELECT {VERSION} WHERE NOT EXISTS (SELECT FROM shared_schema)",
)
_EXISTS = "SELECT to_regclass('shared_schema') IS NOT NULL"
_READ_VERSION = "SELECT max(version) FROM shared_schema"
LOCK = "SELECT pg_advisory_xact_lock(%s)"
DURABLE = "SET LOCAL synchronous_commit = on"

BURY = (
    "WITH gone AS (DELETE FROM shared_replicas "
    f"WHERE seen < {_NOW} - {DEAD_SECONDS} OR replica = %s RETURNING replica), "
    "names AS (SELECT coalesce(array_agg(replica), '{}') AS found FROM gone) "
    "UPDATE shared_limits SET in_flight = in_flight - found FROM names WHERE owner IN "
    "(SELECT owner FROM shared_limits, names WHERE in_flight ?| found ORDER BY owner FOR UPDATE "
    "OF shared_limits)"
)
"""Forgets replicas that have ended, and their requests in flight; their leases stay granted."""
FRESH = (
    "DELETE FROM shared_lam WHERE NOT EXISTS (SELECT FROM shared_replicas)",
    "DELETE FROM shared_breakers WHERE NOT EXISTS (SELECT FROM shared_replicas)",
)
"""What the first replica forgets that begins after all have ended, as a gateway by itself would."""
SEEN = (
    f"INSERT INTO shared_replicas VALUES (%s, {_NOW}) "
    "ON CONFLICT (replica) DO UPDATE SET seen = excluded.seen"
)
COUNT_REPLICAS = "SELECT count(*) FROM shared_replicas"

LOOK_UP = (
    "SELECT name, target, owner, tokens, at FROM shared_affinity "
    "WHERE name = ANY(string_to_array(%s, ' '))"
)
WRITE = (
    "WITH spends AS (INSERT INTO shared_spend SELECT *, 0 FROM json_to_recordset(%s) "
    "AS row (owner text, per text, win bigint, replica text, spent float8) "
    "ON CONFLICT (owner, per, win, replica) "
    "DO UPDATE SET spent = greatest(shared_spend.spent, excluded.spent)), "
    "leaves AS (UPDATE shared_limits AS l SET in_flight = CASE "
    "WHEN (l.in_flight ->> gone.replica)::bigint > gone.n THEN l.in_flight || "
    "jsonb_build_object(gone.replica, (l.in_flight ->> gone.replica)::bigint - gone.n) "
    "ELSE l.in_flight - gone.replica END FROM (SELECT owner, replica, n FROM shared_limits "
    "JOIN json_to_recordset(%s) AS row (owner text, replica text, n bigint) USING (owner) "
    "ORDER BY owner FOR UPDATE OF shared_limits) AS gone WHERE l.owner = gone.owner) "
    "INSERT INTO shared_affinity SELECT * FROM json_to_recordset(%s) AS row "
    "(name text, kind text, target text, owner text, tokens bigint, at float8) "
    "ON CONFLICT (name) DO UPDATE SET target = excluded.target, owner = excluded.owner, "
    "tokens = excluded.tokens, at = excluded.at WHERE excluded.at > shared_affinity.at - 60"
)
"""Writes spending, ended requests, and answers; an answer that is a minute older than the known
one, written after the database was away, isn't the conversation's latest. Rows come as JSON, which
takes a fraction of the processor time of arrays. Wherever several limits are locked, it is in the
order of their owners, so that replicas don't wait for each other in a circle."""

GRANT = (
    "UPDATE shared_spend AS own SET granted = greatest(own.granted, own.spent) "
    "+ least(%(want)s, greatest(0, least(used.free, greatest(used.free / %(parts)s, %(least)s)))) "
    "FROM (SELECT %(dollars)s - sum(greatest(spent, granted)) AS free, "
    "coalesce(sum(spent) FILTER (WHERE replica <> %(replica)s), 0) AS others FROM shared_spend "
    "WHERE (owner, per, win) = (%(owner)s, %(per)s, %(win)s)) AS used "
    "WHERE (owner, per, win, replica) = (%(owner)s, %(per)s, %(win)s, %(replica)s) "
    "RETURNING own.granted, used.others"
)
"""Grants a lease of what neither spending nor leases use. As a budget runs out leases get smaller,
so that no replica has the rest of it alone."""
RETURN = (
    "UPDATE shared_spend SET granted = %s "
    "WHERE (owner, per, win, replica) = (%s, %s, %s, %s) AND granted > %s"
)
SPENT_BY_OTHERS = (
    "SELECT owner, per, win, sum(spent) FROM shared_spend WHERE replica <> %s AND "
    "(owner, per, win) IN (SELECT * FROM unnest(%s::text[], %s::text[], %s::bigint[])) "
    "GROUP BY owner, per, win"
)

_BUCKET = (
    "CASE WHEN %(rpm)s::float8 IS NULL THEN 'Infinity' ELSE least(%(rpm)s::float8, "
    f"l.filled + greatest(0, {_NOW} - l.at) * %(rpm)s::float8 / 60) END"
)
_UNDER_WAY = (
    "(SELECT coalesce(sum(n::bigint), 0)::bigint FROM jsonb_each_text(l.in_flight) AS e(r, n))"
)
_ONE_MORE = (
    "CASE WHEN %(most)s::bigint IS NULL THEN l.in_flight ELSE l.in_flight || jsonb_build_object("
    "%(replica)s::text, coalesce((l.in_flight ->> %(replica)s::text)::bigint, 0) + 1) END"
)
_FIRST = (
    "CASE WHEN %(most)s::bigint IS NULL THEN '{}' ELSE jsonb_build_object(%(replica)s::text, 1) END"
)
ENTER = (
    "INSERT INTO shared_limits AS l VALUES (%(owner)s, coalesce(%(rpm)s::float8 - 1, 'Infinity'), "
    f"{_NOW}, {_FIRST}) ON CONFLICT (owner) DO UPDATE SET filled = {_BUCKET} - 1, at = {_NOW}, "
    f"in_flight = {_ONE_MORE} "
    f"WHERE {_BUCKET} >= %(one)s AND {_UNDER_WAY} < coalesce(%(most)s::bigint, {2**62}) "
    "RETURNING 1"
)
"""Admits a request of a key, if both its limits allow it."""
SEE_LIMITS = f"SELECT {_BUCKET}, {_UNDER_WAY} FROM shared_limits AS l WHERE owner = %(owner)s"
SET_IN_FLIGHT = (
    "INSERT INTO shared_limits SELECT owner, 'Infinity', 0, jsonb_build_object(%s::text, n) "
    "FROM unnest(%s::text[], %s::bigint[]) AS mine(owner, n) "
    "ON CONFLICT (owner) DO UPDATE SET in_flight = shared_limits.in_flight || excluded.in_flight"
)

OPEN_BREAKER = (
    f"INSERT INTO shared_breakers VALUES (%s, {_NOW} - %s) ON CONFLICT (target) "
    "DO UPDATE SET opened_at = excluded.opened_at, tried_at = NULL"
)
CLOSE_BREAKER = "DELETE FROM shared_breakers WHERE target = %s"
READ_BREAKERS = f"SELECT target, {_NOW} - opened_at FROM shared_breakers"
CLAIM = (
    f"WITH claimed AS (UPDATE shared_breakers SET tried_at = {_NOW} WHERE target = %(target)s "
    f"AND greatest(opened_at, tried_at) < {_NOW} - %(seconds)s RETURNING 1) "
    "SELECT EXISTS (SELECT FROM claimed) "
    "OR NOT EXISTS (SELECT FROM shared_breakers WHERE target = %(target)s)"
)
"""Claims the trial call of a breaker that is open for long enough; true where it is closed, too."""
SET_LAM = ("DELETE FROM shared_lam", "INSERT INTO shared_lam VALUES (%s)")
READ_LAM = "SELECT lam FROM shared_lam"

_KINDS = ("session", "call", "key_call", "response")
_OLD = (
    "kind = 'session' AND at < %(expired)s",
    *(
        f"kind = '{kind}' AND at < (SELECT at FROM shared_affinity WHERE kind = '{kind}' "
        "ORDER BY at DESC OFFSET %(most)s LIMIT 1)"
        for kind in _KINDS
    ),
)
PURGE = (
    "DELETE FROM shared_spend WHERE win < CASE per WHEN 'hour' THEN %(hour)s ELSE %(day)s END",
    *(
        "DELETE FROM shared_affinity WHERE name IN "
        f"(SELECT name FROM shared_affinity WHERE {old} LIMIT 5000)"
        for old in _OLD
    ),
)
"""Deletes past windows and expired conversations, some at a time, and keeps the latest entries of
each kind."""


async def prepare(database: AsyncPostgresDatabase) -> None:
    """Make the tables if there are none, or check their version.

    Raises:
        DownError: The database can't be used now.
        StoreError: A newer package made them.
    """
    # what a crash of the database may lose here is written again, or soon forgotten anyway
    await database.run(("SET synchronous_commit = off", None))
    (((exists,),),) = await database.run((_EXISTS, None))
    if not exists:
        statements = ((statement, None) for statement in _CREATE)
        await database.run((LOCK, (TABLES_LOCK,)), *statements, together=True)
    (((version,),),) = await database.run((_READ_VERSION, None))
    try:
        if version is None:
            raise StoreError(
                f"{database.place} has tables of a shared state without a version; name a database "
                "of the gateway's own, or drop these tables"
            )
        refuse_newer(database.place, "shared state", version, newest=VERSION)
    except StoreError:
        await database.close()
        raise
