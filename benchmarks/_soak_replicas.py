"""Replicas of a soak, which are killed in turns, as is their database; and what the audit needs.

A request whose replica is killed under it ends with a broken connection: nobody can answer it. It
may have a receipt or not, so sums are compared with the least and the most that it accounts for.
"""

import asyncio
import math
import random
import subprocess
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, final

from benchmarks._soak_audit import EQUAL, Verdict
from benchmarks.gateway import COMMAND, await_port, free_port, process
from packages.gateway.tests.receipts.postgres_server import PostgresServer, postgres_server

DOWN_SECONDS = 4.0
CONFIG = """
shared: {url: "%s", lease: 0.0005}
budgets: [{dollars: 20, per: day, soften_from: 0.9}]
"""
_INSTANT = 0.5
_NEAR_SECONDS = 1.0
"""A client that left so shortly before a kill may have left no receipt."""


@final
class Replicas:
    """Gateways that share a database.

    Args:
        serve: The words of `serve`, without the port and the receipts.
        folder: Where receipts go.
        server: The database.
        stack: Ends the processes.

    Attributes:
        ports: Where each listens.
        databases: The receipts of each process that ran.
        kills: When the process at which port was killed, on the monotonic clock.
        stops: How often the database was killed.
    """

    def __init__(
        self, serve: tuple[object, ...], folder: Path, server: PostgresServer, stack: ExitStack
    ) -> None:
        self._serve, self._folder, self._server, self._stack = serve, folder, server, stack
        self._running: dict[int, subprocess.Popen[str]] = {}
        self.ports: list[int] = []
        self.databases: list[Path] = []
        self.kills: list[tuple[float, int]] = []
        self.stops = 0

    def start(self, port: int) -> None:
        """Start a replica, and wait until it answers."""
        self.databases.append(self._folder / f"receipts-{len(self.databases)}.sqlite")
        kept = ("--port", port, "--receipts", f"sqlite:///{self.databases[-1]}")
        run = process(COMMAND, *self._serve, *kept, core=len(self.databases) % 2)
        self._running[port] = self._stack.enter_context(run)
        await_port(port)

    def is_killed(self, port: int, began: float) -> bool:
        """Whether the process at a port was killed while it had a request that ends now.

        It may accept a connection in the instant in which it is killed.
        """
        return any(p == port and began - _INSTANT <= at for at, p in self.kills)

    def left_by(self, left: Iterable[tuple[str, int, float]]) -> set[str]:
        """The numbers of requests whose client left a replica just before it was killed."""
        return {
            number
            for number, port, at in left
            if any(p == port and 0 <= kill - at <= _NEAR_SECONDS for kill, p in self.kills)
        }

    async def trouble(self, until: float, every: float) -> None:
        """Kill a replica every so often, and each fourth time the database, and start it again.

        Args:
            until: The end, on the monotonic clock.
            every: The seconds between kills.
        """
        chance = random.Random(1)
        while time.monotonic() + every + 2 * DOWN_SECONDS < until:
            await asyncio.sleep(every)
            if (len(self.kills) + self.stops) % 4 == 3:
                self.stops += 1
                await asyncio.to_thread(self._server.stop)
                await asyncio.sleep(DOWN_SECONDS)
                await asyncio.to_thread(self._server.start)
                continue
            port = chance.choice(self.ports)
            self.kills.append((time.monotonic(), port))
            self._running[port].kill()
            await asyncio.to_thread(self._running[port].wait)
            await asyncio.to_thread(self.start, port)

    def spending(self, receipts: Mapping[str, Mapping[str, Any]], killed: int) -> dict[str, Any]:
        """The spending that the database has, beside that of the receipts.

        What a killed replica hadn't written yet is missing, but was leased to it, and so is never
        spent again. Spending without a receipt is that of requests whose replica was killed.

        Args:
            receipts: All receipts.
            killed: The number of these requests.
        """
        import psycopg

        with psycopg.connect(self._server.url) as connection:
            rows = connection.execute(
                "SELECT spent, granted FROM shared_spend WHERE owner = '' AND per = 'day'"
            ).fetchall()
        shared = math.fsum(spent for spent, _ in rows)
        used = math.fsum(max(row) for row in rows)
        costs = [row["cost"] or 0.0 for row in receipts.values()]
        dollars, most = math.fsum(costs), killed * max(costs, default=0.0)
        missing = dollars - shared
        verdict: Verdict = EQUAL
        if not -1e-9 - most <= missing <= 1e-9 + (used - shared if self.kills else 0):
            verdict = [
                f"receipts have {dollars} dollars, the database {shared}, with leases {used}"
            ]
        return {
            "receipts": dollars,
            "shared": shared,
            "missing": missing,
            "leased and not written as spent": used - shared,
            "verdict": verdict,
        }


@contextmanager
def replicas_of(serve: tuple[object, ...], config: Path, count: int) -> Iterator[Replicas]:
    """Replicas that share a database of their own.

    Args:
        serve: The words of `serve`, without the port and the receipts.
        config: The file of settings, which gets those that replicas share.
        count: How many.
    """
    with postgres_server() as server, ExitStack() as stack:
        config.write_text(config.read_text() + CONFIG % server.url)
        replicas = Replicas(serve, config.parent, server, stack)
        for _ in range(count):
            replicas.ports.append(free_port())
            replicas.start(replicas.ports[-1])
        yield replicas
