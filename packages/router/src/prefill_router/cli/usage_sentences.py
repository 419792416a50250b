"""What is wrong with a command line, in sentences of our own.

Typer's errors are distinguished by their names, since their classes aren't part of its face.
"""

import re
from typing import Any

_KINDS = {
    "valid integer": "a whole number",
    "valid number": "a number",
    "valid boolean": "yes or no",
}
_COMMAND = re.compile(r"No such command '(.*?)'\.?(?: \(?Did you mean (.*?)\?\)?)?$")
_EXTRA = re.compile(r"Got unexpected extra arguments?(?:\(s\))? \((.*)\)$")


def describe_usage(error: Any) -> str:
    """The sentence for an error of Typer; empty where only the help was asked for."""
    message: str = error.format_message().strip().rstrip(".")
    describe = _DESCRIBERS.get(type(error).__name__)
    return (describe and describe(error)) or _describe_message(message)


def _describe_message(message: str) -> str:
    if command := _COMMAND.match(message):
        near = f"; did you mean {command[2]}?" if command[2] else ""
        return f"there is no command {command[1]!r}{near}"
    if extra := _EXTRA.match(message):
        return f"{extra[1]!r} is more than this command takes; put quotes around what has spaces"
    return message


def _describe_option(error: Any) -> str:
    near = " or ".join(error.possibilities or ())
    return f"there is no option {error.option_name}" + (f"; did you mean {near}?" if near else "")


def _describe_missing(error: Any) -> str:
    if error.param is None:
        return ""
    meaning = getattr(error.param, "help", None)
    return f"{_name_of(error.param)} is missing" + (f": {meaning.rstrip('.')}" if meaning else "")


def _describe_value(error: Any) -> str:
    if error.param is None:
        return ""
    for words, kind in _KINDS.items():
        if words in error.message:
            return f"{_name_of(error.param)} is {_quote_input(error)}; it must be {kind}"
    reason = error.message.rstrip(".").replace("Value error, ", "")
    return f"{_name_of(error.param)} can't be used: {reason}"


def _describe_use(error: Any) -> str:
    needs = "requires an argument" in error.message
    return f"{error.option_name} {'needs a value' if needs else 'takes no value'}"


def _quote_input(error: Any) -> str:
    """What was given, which only the error of pydantic below has."""
    causes: list[dict[str, Any]] = getattr(error.__cause__ or error.__context__, "errors", list)()
    return repr(causes[0].get("input")) if causes else "something else"


def _name_of(param: Any) -> str:
    if param.param_type_name == "option":
        return str(param.opts[0])
    return str(param.metavar or param.name).upper()


_DESCRIBERS = {
    "NoSuchOption": _describe_option,
    "MissingParameter": _describe_missing,
    "BadParameter": _describe_value,
    "BadOptionUsage": _describe_use,
}
