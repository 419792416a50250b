from .base import (
    Database as Database,
    Dialect as Dialect,
    DownError as DownError,
    Prepare as Prepare,
    RowError as RowError,
    Rows as Rows,
    RunStatement as RunStatement,
    Statement as Statement,
    existing_tables as existing_tables,
    refuse_newer as refuse_newer,
    storable as storable,
    storable_count as storable_count,
)
from .postgres import (
    AsyncPostgresDatabase as AsyncPostgresDatabase,
    PostgresDatabase as PostgresDatabase,
    PostgresStatement as PostgresStatement,
)
from .sqlite import (
    ServedSqliteDatabase as ServedSqliteDatabase,
    SqliteDatabase as SqliteDatabase,
    refusals as refusals,
)
