"""The tables of `settings.md`: settings of the gateway, options of commands and of recipes.

Types, defaults and limits are read from the settings' classes and from the commands themselves, and
the sentences from their docstrings and help texts, so nothing here can go stale.
"""

import re
from collections.abc import Iterator, Mapping
from dataclasses import MISSING, Field, fields
from pathlib import Path
from types import UnionType
from typing import Annotated, Any, Literal, NamedTuple, Union, get_args, get_origin, get_type_hints

from pydantic import BaseModel
from pydantic.fields import FieldInfo

from prefill_router.cli.application import Command, load
from prefill_router.cli.commands import CommandEntry, all_commands
from prefill_router.cli.options import path_or_url
from prefill_router.cli.ranges import describe_range, find_ranges
from prefill_router.features import FAMILIES
from prefill_router.options import read_bounds
from prefill_router.predictors import PREDICTORS
from prefill_router_gateway.settings import GatewaySettings


class Row(NamedTuple):
    """A row of a table; every cell is Markdown but the name."""

    name: str
    kind: str
    default: str
    limits: str
    meaning: str


_KINDS = {int: "whole number", float: "number", bool: "yes or no", str: "text", Path: "path"}
_ENTRY = re.compile(r"^ {4}(\w+): ((?:.*\n?)(?: {8}.*\n?)*)", re.MULTILINE)


def render_tables() -> str:
    """The tables in Markdown, under a heading for each section and each command."""
    parts = ["## The gateway's settings", *_render_settings(GatewaySettings, ())]
    parts.append("## Options of commands")
    for name, command in list_commands(all_commands()[0]):
        parts += [f"### prefill-router {name}", _render_table(list_options(command))]
    for title, kinds in (("Options of predictors", PREDICTORS), ("Options of features", FAMILIES)):
        parts.append(f"## {title} in a recipe")
        for kind in kinds.names:
            if rows := list_fields(kinds.find(kind).config):
                parts += [f"### {kind}", _render_table(rows)]
    return "\n\n".join(parts)


def list_commands(
    table: Mapping[str, CommandEntry], group: str = ""
) -> Iterator[tuple[str, Command]]:
    """All commands with their full names; each is imported."""
    for name, entry in table.items():
        if entry.home:
            yield group + name, load(entry.home, name)
        yield from list_commands(entry.commands, f"{group}{name} ")


def _render_settings(section: type[BaseModel], path: tuple[str, ...]) -> Iterator[str]:
    """A section's own table, and then those of the sections in it."""
    settings = section.model_fields
    inner = {name: _find_section(field.annotation) for name, field in settings.items()}
    meanings = read_attributes(section)
    rows = [
        Row(
            name,
            describe_type(field.annotation),
            _show_default(field),
            _describe_limits(Annotated[field.annotation, *field.metadata, None]),
            meanings[name],
        )
        for name, field in settings.items()
        if inner[name] is None
    ]
    title = ".".join(path) or "at the top"
    yield f"### {title}\n\n{_read_summary(section)}\n\n{_render_table(rows)}"
    for name, part in inner.items():
        if part is not None:
            yield from _render_settings(part, (*path, name))


def _find_section(hint: Any) -> type[BaseModel] | None:
    parts = (hint, *get_args(hint))
    sections = [part for part in parts if isinstance(part, type) and issubclass(part, BaseModel)]
    return sections[0] if sections else None


def _read_summary(section: type[BaseModel]) -> str:
    return " ".join((section.__doc__ or "").partition("Attributes:")[0].split())


def read_attributes(kind: type) -> dict[str, str]:
    """What the docstring of a class says about each of its attributes."""
    text = (kind.__doc__ or "").partition("Attributes:\n")[2]
    lines = "\n".join(line.removeprefix("    ") for line in text.splitlines())
    return {name: " ".join(words.split()) for name, words in _ENTRY.findall(lines)}


def describe_type(hint: Any) -> str:
    """A type in words."""
    parts = [part for part in get_args(hint) if part is not type(None)]
    origin = get_origin(hint)
    if origin is Literal:
        return " or ".join(f"`{part}`" for part in parts)
    if origin in (Annotated, Union, UnionType):
        return describe_type(parts[0])
    if origin in (list, tuple):
        return f"list: {describe_type(parts[0])}"
    if origin is dict:
        return f"names, each with a {describe_type(parts[1])}"
    return _KINDS.get(hint, "text")


def _show_default(field: FieldInfo) -> str:
    if field.is_required():
        return "required"
    return _show_value(field.get_default(call_default_factory=True))


def list_fields(config: Any) -> list[Row]:
    """The options of a dataclass, with what it or a class that it extends says about them."""
    kinds = reversed(config.__mro__)
    meanings = {name: words for kind in kinds for name, words in read_attributes(kind).items()}
    hints = get_type_hints(config, include_extras=True)
    return [
        Row(
            field.name,
            describe_type(hints[field.name]),
            _show_field_default(field),
            _describe_limits(hints[field.name]),
            meanings.get(field.name, ""),
        )
        for field in fields(config)
        if field.init
    ]


def _show_field_default(field: Field[Any]) -> str:
    if field.default is not MISSING:
        return _show_value(field.default)
    return "required" if field.default_factory is MISSING else _show_value(field.default_factory())


def _show_value(value: Any) -> str:
    if value is None or value in ((), [], {}):
        return "none"
    if isinstance(value, bool):
        return "yes" if value else "no"
    return f"`{value}`"


def _describe_limits(hint: Any) -> str:
    """The range of a number, or of the numbers in a list or a mapping."""
    return describe_range(read_bounds(_find_constraints(hint)))


def _find_constraints(hint: Any) -> Iterator[Any]:
    is_annotated = get_origin(hint) is Annotated
    if is_annotated:
        yield from get_args(hint)[1:]
    for part in get_args(hint)[: 1 if is_annotated else None]:
        yield from _find_constraints(part)


def list_options(command: Any) -> list[Row]:
    """The options and arguments of a command."""
    ranges = find_ranges(command.callback)
    return [
        Row(
            param.opts[0] if param.param_type_name == "option" else param.metavar or param.name,
            _describe_param(param.type_descriptor),
            "required" if param.required else _show_value(param.default),
            describe_range(ranges.get(param.name, {})),
            param.help or "",
        )
        for param in command.params
        if param.name != "help"
    ]


def _describe_param(descriptor: Any) -> str:
    if descriptor.parameter_info.parser is not path_or_url:
        return describe_type(descriptor.annotation)
    return "list: path or URL" if descriptor.is_list else "path or URL"


def _render_table(rows: list[Row]) -> str:
    lines = ["| name | type | default | limits | meaning |", "| --- | --- | --- | --- | --- |"]
    for name, *cells in rows:
        texts = [f"`{name}`", *(cell.replace("|", "\\|").replace("\n", " ") for cell in cells)]
        lines.append(f"| {' | '.join(texts)} |")
    return "\n".join(lines)
