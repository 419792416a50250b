"""A PostgreSQL server of Debian's packages, in its own folder, not as root."""

import os
import pwd
import shutil
import socket
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

PROGRAMS = sorted(Path("/usr/lib/postgresql").glob("*/bin/initdb"))
PASSWORD = "s3cret%word"
IN_URL = "s3cret%25word"


def missing_reason() -> str:
    """Why no server can run on this machine; empty if one can."""
    if not PROGRAMS:
        return "PostgreSQL's server isn't installed"
    if os.geteuid() == 0 and shutil.which("setpriv") is None:
        return "PostgreSQL doesn't run as root, and there is no setpriv"
    return ""


@dataclass(frozen=True)
class PostgresServer:
    folder: Path
    port: int
    durable: bool = False

    @property
    def url(self) -> str:
        return f"postgresql://tester:{IN_URL}@127.0.0.1:{self.port}/postgres"

    def start(self) -> None:
        flags = f"-p {self.port} -h 127.0.0.1 -k {self.folder} -c max_connections=20"
        flags += "" if self.durable else " -c fsync=off"
        self._control("start", "-o", flags, "-l", str(self.folder / "log"))

    def stop(self) -> None:
        self._control("stop", "-m", "immediate")

    def execute(self, *statements: str) -> list[Any]:
        """Run statements. Returns the rows of the last statement."""
        import psycopg

        with psycopg.connect(self.url) as connection:
            for statement in statements:
                cursor = connection.execute(statement.encode())
            return cursor.fetchall() if cursor.description else []

    def clear(self) -> None:
        """Drop all tables."""
        names = self.execute("SELECT relname FROM pg_stat_user_tables")
        self.execute("SELECT", *(f"DROP TABLE {name}" for (name,) in names))

    def _control(self, what: str, *options: str) -> None:
        data = str(self.folder / "data")
        run(str(PROGRAMS[-1].with_name("pg_ctl")), what, "-w", "-D", data, *options)


def run(*command: str) -> None:
    if os.geteuid() == 0:
        nobody = pwd.getpwnam("nobody")
        rights = ("--reuid", str(nobody.pw_uid), "--regid", str(nobody.pw_gid), "--clear-groups")
        command = ("setpriv", *rights, *command)
    # The server inherits its output, so nothing may wait for the output's end.
    with open(os.devnull, "w") as nowhere:  # noqa: PTH123
        subprocess.run(command, check=True, cwd="/", stdout=nowhere, stderr=nowhere)


def free_port() -> int:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return int(sock.getsockname()[1])


@contextmanager
def postgres_server(*, durable: bool = False) -> Iterator[PostgresServer]:
    """Run a server until the block ends. Unless `durable`, it never waits for the disk."""
    folder = Path(mkdtemp(prefix="prefill-router-pg-", dir="/tmp"))
    server = PostgresServer(folder, free_port(), durable)
    try:
        (folder / "password").write_text(PASSWORD)
        if os.geteuid() == 0:
            for path in (folder, folder / "password"):
                shutil.chown(path, "nobody")
        options = (
            "-D",
            str(folder / "data"),
            "-U",
            "tester",
            "--auth",
            "scram-sha-256",
            "--no-sync",
        )
        run(str(PROGRAMS[-1]), *options, "--pwfile", str(folder / "password"), "-E", "UTF8")
        server.start()
        try:
            yield server
        finally:
            server.stop()
    finally:
        shutil.rmtree(folder, ignore_errors=True)
