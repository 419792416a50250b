"""The tests, in packages as the package has them."""

from tests import typechecks as typechecks  # the decorator that pyproject.toml names
