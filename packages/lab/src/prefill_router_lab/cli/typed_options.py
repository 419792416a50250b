"""Commands whose options are the fields of dataclasses.

A dataclass of the command line has typer's options beside its types. The options of a study
(`StudyOptions`) know nothing of a command line: each field with a `Doc` becomes an option with this
text, the field's range and its default.
"""

from collections.abc import Callable, Sequence
from dataclasses import MISSING, Field, dataclass, fields, is_dataclass
from functools import partial, wraps
from inspect import Parameter, get_annotations, signature
from typing import Annotated, Any, Literal, final, get_args, get_origin

import typer
from typing_extensions import Doc

from prefill_router.cli.commands import UsageError, parse_choice
from prefill_router.cli.options import parse_poolings

_AFTER = {"split_file": "margin", "seed": "split_file", "best": "lam"}
"""Options that stand right after others, where a command has both."""


def with_options(command: Callable[..., None]) -> Callable[..., None]:
    """Give a command the fields of its parameters' dataclasses, in the place of these parameters.

    What must be given comes first. Of a class, its own fields come before those that it inherits.
    """
    parameters = signature(command).parameters.values()
    kinds: dict[str, Any] = {o.name: o.annotation for o in parameters if is_dataclass(o.annotation)}
    options_by_name = {name: list_options(kind) for name, kind in kinds.items()}

    @wraps(command, assigned=("__module__", "__name__", "__qualname__", "__doc__"))
    def _run(**values: Any) -> None:
        arguments = {
            name: kind(
                **{
                    parameter.name: parameter.read(values.pop(parameter.name))
                    for parameter in options_by_name[name]
                }
            )
            for name, kind in kinds.items()
        }
        command(**values, **arguments)

    every: list[Parameter] = []
    for parameter in parameters:
        alone = parameter.replace(kind=Parameter.KEYWORD_ONLY)
        every += (
            [each.parameter for each in options_by_name[parameter.name]]
            if parameter.name in options_by_name
            else [alone]
        )
    every = _order_parameters(every)
    _run.__signature__ = signature(command).replace(parameters=every)  # type: ignore[attr-defined]
    _run.__annotations__ = {parameter.name: parameter.annotation for parameter in every}
    return _run


def _order_parameters(parameters: list[Parameter]) -> list[Parameter]:
    ordered = sorted(parameters, key=lambda parameter: parameter.default is not Parameter.empty)
    for name, before in _AFTER.items():
        names = [parameter.name for parameter in ordered]
        if name in names and before in names:
            moved = ordered.pop(names.index(name))
            ordered.insert([parameter.name for parameter in ordered].index(before) + 1, moved)
    return ordered


@final
@dataclass(frozen=True)
class FieldOption:
    """A field of a dataclass as an option of a command.

    Attributes:
        parameter: The parameter of the command, which has the field's name.
        read: Makes the field's value of what was given.
    """

    parameter: Parameter
    read: Callable[[Any], Any]

    @property
    def name(self) -> str:
        """The field's name."""
        return self.parameter.name


def list_options(kind: Any) -> list[FieldOption]:
    """The options of a dataclass: the fields that have an option of typer's, or a `Doc`."""
    every = {field.name: field for field in fields(kind)}
    ordered = dict.fromkeys((*get_annotations(kind), *every))
    options = [_make_option(every[name], get_args(every[name].type)) for name in ordered]
    return [field for field in options if field is not None]


def _make_option(field: Field[Any], hint: tuple[Any, ...]) -> FieldOption | None:
    texts = [item.documentation for item in hint if isinstance(item, Doc)]
    if texts:
        return _translate_field(field, hint, texts[-1])
    if any(isinstance(item, typer.models.ParameterInfo) for item in hint):
        return FieldOption(_make_parameter(field, field.type, field.default), _keep_value)
    return None


def _translate_field(field: Field[Any], hint: tuple[Any, ...], text: str) -> FieldOption:
    """The option of a field that knows nothing of a command line."""
    kind, *constraints = hint
    flag = f"--{field.name.replace('_', '-')}"
    default: Any = field.default
    convert: Callable[[Any], Any] = _keep_value
    if field.name in _LISTS:
        flag, convert = _LISTS[field.name]
        kind, constraints, default = str, [], ",".join(map(str, default))
    elif get_origin(kind) is Literal:
        kind, convert = str, partial(_read_word, flag, get_args(kind))
    elif get_origin(kind) is tuple:
        item, *constraints = get_args(get_args(kind)[0])
        kind, convert, default = list[item] | None, partial(_read_several, default), None  # type: ignore[valid-type]
    annotation: Any = Annotated[(kind, *constraints, typer.Option(flag, help=text))]
    return FieldOption(_make_parameter(field, annotation, default), convert)


def _make_parameter(field: Field[Any], hint: Any, default: Any) -> Parameter:
    default = Parameter.empty if default is MISSING else default
    return Parameter(field.name, Parameter.KEYWORD_ONLY, default=default, annotation=hint)


def _keep_value(value: Any) -> Any:
    return value


def _read_word(flag: str, words: tuple[str, ...], word: str) -> str:
    return parse_choice(flag, word, words)


def _read_several(default: tuple[Any, ...], values: Sequence[Any] | None) -> tuple[Any, ...]:
    return tuple(values or default)


def _read_poolings(text: str) -> tuple[str, ...]:
    return tuple(parse_poolings(text))


def _read_dims(text: str) -> tuple[int, ...]:
    try:
        dims = sorted({int(part) for part in text.split(",")})
    except ValueError:
        dims = []
    if not dims or dims[0] < 1:
        raise UsageError(f"--dims is {text!r}; give numbers from 1 up, such as 50,100,200")
    return tuple(dims)


_LISTS: dict[str, tuple[str, Callable[[str], Any]]] = {
    "dims": ("--dims", _read_dims),
    "poolings": ("--pooling", _read_poolings),
}
"""Lists that are given as one text with commas, each with its option and what reads it."""
