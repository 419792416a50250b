"""The fields of one part of LiteLLM's file: read, checked, and those that nobody read."""

import re
from collections.abc import Mapping
from decimal import Decimal, InvalidOperation
from typing import Any, final

from prefill_router.errors import ConfigError

_REFERENCE = "os.environ/"
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_NO_KEYS = frozenset(("", "none", "null", "empty", "dummy", "fake-key"))
_MILLION = 1_000_000


@final
class Fields:
    """The fields of one part of the file. No error quotes a value: it may be a key.

    Args:
        value: The part; None counts as empty.
        where: How errors call it.
        environment: What `os.environ/NAME` stands for; keys are never looked up.

    Raises:
        ConfigError: It isn't names with values.
    """

    def __init__(self, value: object, where: str, environment: Mapping[str, str]) -> None:
        if value is not None and not isinstance(value, dict):
            raise ConfigError(f"{where} isn't names with values")
        self._value: dict[str, Any] = {str(name): v for name, v in (value or {}).items()}
        self._where, self._environment = where, environment
        self._read: set[str] = set()

    @property
    def unread(self) -> list[str]:
        """Names of the fields that nobody read, but for those without a value."""
        return [n for n, v in self._value.items() if n not in self._read and v is not None]

    def take(self, name: str) -> Any:
        """A field's value; None where it isn't there.

        Raises:
            ConfigError: It names a variable that isn't set.
        """
        value = self._raw(name)
        if not isinstance(value, str) or not value.startswith(_REFERENCE):
            return value
        found = self._environment.get(value.removeprefix(_REFERENCE))
        if found is None:
            raise self._wrong(name, "names a variable that isn't set; set it for the import")
        return found

    def text(self, name: str) -> str | None:
        """A text.

        Raises:
            ConfigError: It is none, or empty.
        """
        value = self.take(name)
        if value is not None and (not isinstance(value, str) or not value.strip()):
            raise self._wrong(name, "isn't a text")
        return value

    def flag(self, name: str) -> bool | None:
        """True or false.

        Raises:
            ConfigError: It is neither.
        """
        value = self.take(name)
        if value is not None and not isinstance(value, bool):
            raise self._wrong(name, "is neither true nor false")
        return value

    def number(self, name: str, *, least: float | None = None) -> float | None:
        """A number: above 0, or at least `least`.

        Raises:
            ConfigError: It is none, or smaller.
        """
        found = self._decimal(name)
        if found is None:
            return None
        if found < least if least is not None else found <= 0:
            raise self._wrong(name, f"must be {'above 0' if least is None else f'>= {least:g}'}")
        return float(found)

    def whole(self, name: str, *, least: int = 1) -> int | None:
        """A whole number, at least `least`.

        Raises:
            ConfigError: It is none, or smaller.
        """
        found = self.number(name, least=least)
        if found is not None and found != int(found):
            raise self._wrong(name, "isn't a whole number")
        return None if found is None else int(found)

    def price(self, name: str) -> float | None:
        """A price of one token in dollars, as dollars per million tokens, exactly.

        Raises:
            ConfigError: It isn't a number, or is negative.
        """
        found = self._decimal(name)
        if found is not None and found < 0:
            raise self._wrong(name, "is negative")
        return None if found is None else float(found * _MILLION)

    def key_variable(self, name: str) -> tuple[bool, str | None]:
        """Whether a key is spoken of, and the variable that holds it; None for no key at all.

        Raises:
            ConfigError: The key itself is there.
        """
        value = self._raw(name)
        if value is None:
            return False, None
        if isinstance(value, str):
            if value.lower() in _NO_KEYS:
                return True, None
            variable = value.removeprefix(_REFERENCE)
            if variable != value and _VARIABLE.fullmatch(variable):
                return True, variable
        raise self._wrong(
            name, "holds a key; keep it in a variable, and write os.environ/NAME in its place"
        )

    def _raw(self, name: str) -> Any:
        self._read.add(name)
        return self._value.get(name)

    def _decimal(self, name: str) -> Decimal | None:
        value = self.take(name)
        if value is None:
            return None
        try:  # YAML reads 3e-06, which lacks a point, as a text
            if isinstance(value, int | float | str) and not isinstance(value, bool):
                found = Decimal(str(value))
                if found.is_finite():
                    return found
        except InvalidOperation:
            pass
        raise self._wrong(name, "isn't a number")

    def _wrong(self, name: str, what: str) -> ConfigError:
        return ConfigError(f"{self._where}: {name} {what}")
