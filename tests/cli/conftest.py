"""The whole job of the router's command line, for tests of all distributions' commands."""

from packages.router.tests.cli.conftest import (
    copy as copy,
    job as job,
    route as route,
    short as short,
)
