"""Fixtures of commands, which are those of the router's tests."""

from packages.router.tests.cli.conftest import (
    copy as copy,
    job as job,
    route as route,
    short as short,
)
