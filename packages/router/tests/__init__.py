"""The tests of `prefill_router`, in packages as it has them."""

from packages.router.tests import (
    typechecks as typechecks,  # the decorator that pyproject.toml names
)
