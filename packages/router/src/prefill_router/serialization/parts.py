"""Fitted parts are saved as the fields that they declare, and found by their kind.

A `Part` is a frozen dataclass whose annotations define what is written and what is checked when it
is read back. A field with a jaxtyping annotation is an array of that type and of these axes: axes
of one name have the same length, and `axes` names the plain value that holds it. A mapping of
arrays has the shapes that `array_shapes` returns. The fields of a nested part are saved among those
of its owner. All else is plain JSON, checked strictly by pydantic. Bounds are those of
`pydantic.Field`, for arrays too. Saved data never names code: the class that reads decides what is
built.

`Kinds` is a registry of the kinds of a part, such as predictors, by name. A kind's module is
imported when it is looked up.
"""

import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import MISSING, Field as DataclassField, dataclass, fields
from functools import cache
from operator import attrgetter
from types import NoneType, UnionType
from typing import (
    Annotated,
    Any,
    ClassVar,
    Generic,
    Literal,
    NamedTuple,
    TypeVar,
    Union,
    final,
    get_args,
    get_origin,
    get_type_hints,
)

import numpy as np
from numpy.typing import NDArray
from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Field,
    PositiveInt,
    ValidationError,
    create_model,
)
from pydantic.fields import FieldInfo
from pydantic_core import to_jsonable_python

from prefill_router.errors import ConfigError, CorruptError, PluginError
from prefill_router.lazy_imports import load
from prefill_router.plugins import (
    EntryPoint,
    Group,
    find_plugins,
    load_plugin,
    suggest_distribution,
)
from prefill_router.serialization.tensors import (
    NO_TENSORS,
    REMEDY,
    Shape,
    Tensors,
    check_array,
    check_bounds,
    check_names,
    take_tensors,
)


def _check_distinct(names: tuple[str, ...]) -> tuple[str, ...]:
    if len(set(names)) < len(names):
        raise ValueError(f"{list(names)} aren't distinct names")
    return names


Names = Annotated[tuple[str, ...], Field(min_length=1), AfterValidator(_check_distinct)]
"""One or more distinct names."""


class StrictModel(BaseModel):
    """A model without unknown fields, type conversions, infinity or NaN."""

    model_config = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False)


@final
class Saved(NamedTuple):
    """An annotation for fields whose type doesn't say how they are saved.

    Attributes:
        name: The saved name; the field's own name if not given.
        form: The type in JSON, for pydantic, whose validators turn it into the field's value. An
            array's is a list, with null where a number is missing.
        write: From the field's value to its JSON value.
        sparse: Whether the field is left out where it has its default.
        never: Whether the field isn't saved, since it is valid only in this process.
    """

    name: str = ""
    form: Any = None
    write: Callable[[Any], Any] = to_jsonable_python
    sparse: bool = False
    never: bool = False


class SavedColumn(NamedTuple):
    """A field as it is saved.

    Attributes:
        name: The name of the attribute.
        key: The name in JSON, or among the tensors.
        form: The type that checks it in JSON; None where it isn't in JSON.
        saving: How it is written.
        default: The default; `MISSING` where there is none.
        array: The annotation of an array; None for other fields.
        bounds: Bounds on the array's numbers, if any.
        optional: Whether the array may be None.
        part: The class of a nested part; None for other fields.
        table: Whether it is a mapping of arrays.
    """

    name: str
    key: str
    form: Any
    saving: Saved
    default: Any
    array: Any = None
    bounds: FieldInfo | None = None
    optional: bool = False
    part: Any = None
    table: bool = False

    @property
    def is_tensor(self) -> bool:
        """Whether it is an array among the tensors."""
        return self.array is not None and self.form is None

    @property
    def axes(self) -> list[str]:
        """The names of an array's axes; digits for an axis of that fixed length."""
        return str(self.array.dim_str).split()


def columns_of(cls: Any) -> tuple[SavedColumn, ...]:
    """How the fields of a part are saved, in order."""
    return _read_columns(cls)


@cache
def _read_columns(cls: Any) -> tuple[SavedColumn, ...]:
    hints = get_type_hints(cls, include_extras=True)
    columns = (_read_column(field, hints[field.name]) for field in fields(cls))
    return tuple(column for column in columns if not column.saving.never)


def _read_column(field: "DataclassField[Any]", hint: Any) -> SavedColumn:
    base, *more = get_args(hint) if get_origin(hint) is Annotated else (hint,)
    saving = next((annotation for annotation in more if isinstance(annotation, Saved)), Saved())
    bounds = next((annotation for annotation in more if isinstance(annotation, FieldInfo)), None)
    column = SavedColumn(field.name, saving.name or field.name, saving.form, saving, field.default)
    inner = [some for some in get_args(base) if some is not NoneType]
    is_optional = get_origin(base) in (Union, UnionType) and len(inner) == 1
    if is_optional and hasattr(inner[0], "dim_str"):
        return column._replace(array=inner[0], bounds=bounds, optional=True)
    if hasattr(base, "dim_str"):
        return column._replace(array=base, bounds=bounds)
    if saving.form is None and hasattr(base, "array_shapes"):
        return column._replace(part=base)
    if get_origin(base) is Mapping and _is_array(inner[1]):
        return column._replace(table=True)
    return column._replace(form=hint if saving.form is None else saving.form)


def _is_array(hint: Any) -> bool:
    return hasattr(hint, "dim_str") or get_origin(hint) is np.ndarray


def flat_columns(cls: Any) -> Iterator[SavedColumn]:
    """How the fields of a part are saved, with those of a nested part in its place."""
    for column in columns_of(cls):
        yield from (column,) if column.part is None else flat_columns(column.part)


def axes_of(cls: Any) -> dict[str, str]:
    """The plain value that holds the length of each axis, for nested parts too."""
    inner = [axes_of(column.part) for column in columns_of(cls) if column.part is not None]
    return {axis: key for axes in (*inner, cls.axes) for axis, key in axes.items()}


def model_of(cls: Any) -> type[BaseModel]:
    """The pydantic model that checks a part's plain values."""
    return _make_model(cls)


@cache
def _make_model(cls: Any) -> type[BaseModel]:
    keys: dict[str, Any] = {"kind": (Literal[cls.kind], ...)} if cls.kind else {}
    for column in flat_columns(cls):
        if column.form is not None:
            keys[column.key] = (column.form, ... if column.default is MISSING else column.default)
    arrays = [column for column in flat_columns(cls) if column.is_tensor]
    for axis, key in axes_of(cls).items():
        if key.partition(".")[0] not in keys:
            owners = [array for array in arrays if axis in array.axes]
            may_lack = owners and all(array.optional for array in owners)
            keys[key] = (PositiveInt | None if may_lack else PositiveInt, ...)
    return create_model(cls.__name__, __base__=StrictModel, **keys)


PartT = TypeVar("PartT", bound="Part")
Model = TypeVar("Model", bound=BaseModel)


@dataclass(frozen=True, eq=False)
class Part:
    """Something fitted and frozen that is saved; see this module.

    Of 50 parts, 47 write and check themselves by their fields alone, with two more lines each for
    shapes of mappings and for `verify`. The three that write their own have 23 to 33 lines for it.
    """

    kind: ClassVar[str] = ""
    """The name that tells a saved part from others with the same `noun`."""
    noun: ClassVar[str] = "part"
    """The noun for it in error messages."""
    axes: ClassVar[Mapping[str, str]] = {}
    """For each axis the JSON name of a plain value that is its length, or whose length it is."""

    @classmethod
    def array_shapes(cls, plain: Mapping[str, Any]) -> dict[str, Shape]:
        """The names and shapes of a mapping of arrays, all float32, from the plain values.

        Raises:
            NotImplementedError: The part has a mapping of arrays and doesn't define this.
        """
        raise NotImplementedError

    def verify(self) -> None:
        """Check, after reading, what types, shapes and bounds don't cover.

        Raises:
            ConfigError: The fields contradict each other.
        """

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON, with the `kind`; the rest of the part is in `tensors`."""
        return ({"kind": self.kind} if self.kind else {}) | dict(_plain_values(self))

    def tensors(self) -> dict[str, NDArray[Any]]:
        """The arrays, by names that are unique within the part."""
        result: dict[str, NDArray[Any]] = {}
        for column, value in _list_values(self):
            if column.table:
                result |= value
            elif column.is_tensor and value is not None:
                result[column.key] = value
        return result

    @classmethod
    def from_dict(
        cls: type[PartT], config: Mapping[str, Any], tensors: Tensors = NO_TENSORS
    ) -> PartT:
        """The part that `to_dict` and `tensors` describe, checked.

        Raises:
            CorruptError: The values are incomplete or contradict each other.
        """
        try:
            return cls.parse(config, tensors)
        except ConfigError as error:
            raise CorruptError(f"{cls.display_name()} is inconsistent: {error}") from None

    @classmethod
    def parse(cls: type[PartT], config: Mapping[str, Any], tensors: Tensors = NO_TENSORS) -> PartT:
        """Like `from_dict`, for options that were written by a person.

        Raises:
            CorruptError: An option is missing, unknown, or of another type.
            ConfigError: The options contradict each other.
        """
        plain = read_plain(cls, config)
        arrays = _take_arrays(cls, tensors, _read_sizes(cls, plain), plain)
        return _build_part(cls, plain | arrays)

    @classmethod
    def of_arrays(cls: type[PartT], tensors: Tensors, sizes: Mapping[str, int]) -> PartT:
        """A part that consists of arrays only, with axes of these lengths.

        Raises:
            CorruptError: An array is missing, unknown, or of another shape, type or range.
        """
        arrays = _take_arrays(cls, tensors, dict(sizes), {})
        try:
            return _build_part(cls, arrays)
        except ConfigError as error:
            raise CorruptError(f"{cls.display_name()} is inconsistent: {error}") from None

    @classmethod
    def display_name(cls) -> str:
        """The name for it in error messages."""
        return f"the {cls.kind} {cls.noun}" if cls.kind else f"the {cls.noun}"


def read_plain(cls: type[Part], config: Mapping[str, Any]) -> dict[str, Any]:
    """The plain values of a part, checked, by their names in JSON.

    Raises:
        CorruptError: One is missing, unknown or of another type.
    """
    plain = dict(validate(model_of(cls), config, what=cls.display_name()))
    for column in _columns_in_json(cls):
        plain[column.key] = _array_from_list(cls, column, plain[column.key])
    _check_listed(cls, plain, _read_sizes(cls, plain))
    return plain


def validate(model: type[Model], value: Any, *, what: str) -> Model:
    """Saved values, checked by a pydantic model.

    Raises:
        CorruptError: They don't fit the model.
    """
    try:
        text = json.dumps(value)
    except (TypeError, ValueError, RecursionError) as error:
        raise CorruptError(f"{what} isn't JSON: {error}; {REMEDY}") from None
    try:
        return model.model_validate_json(text)
    except ValidationError as error:
        errors = error.errors()
        for kind, verb in (("extra_forbidden", "has the unknown"), ("missing", "lacks the")):
            names = [
                ".".join(map(str, problem["loc"])) for problem in errors if problem["type"] == kind
            ]
            if names:
                raise CorruptError(f"{what} {verb} options {names}; {REMEDY}") from None
        place = ".".join(map(str, errors[0]["loc"]))
        raise CorruptError(f"{what}: {place}: {errors[0]['msg']}; {REMEDY}") from None


def _plain_values(part: Part) -> Iterator[tuple[str, Any]]:
    """Names and values for JSON; the lengths of axes come after the targets, or before a table."""
    columns = columns_of(type(part))
    tables = [column.name for column in columns if column.table]
    place = tables[0] if tables else "targets"
    counts = dict(_count_axes(part))
    for column in columns:
        if column.table:
            yield from counts.items()
        value = getattr(part, column.name)
        if column.part is not None:
            yield from _plain_values(value)
        elif column.form is not None and not (column.saving.sparse and value == column.default):
            plain = (
                _array_to_list(value) if column.array is not None else column.saving.write(value)
            )
            yield column.key, plain
        if column.name == place and not tables:
            yield from counts.items()
    if place not in [column.name for column in columns]:
        yield from counts.items()


def _count_axes(part: Part) -> Iterator[tuple[str, int | None]]:
    """The lengths of axes that no plain field holds."""
    saved = {column.key for column in flat_columns(type(part)) if column.form is not None}
    for axis, key in part.axes.items():
        if key.partition(".")[0] not in saved:
            has_property = isinstance(getattr(type(part), key, None), property)
            yield key, getattr(part, key) if has_property else _find_length(part, axis)


def _list_values(part: Part) -> Iterator[tuple[SavedColumn, Any]]:
    """The fields and their values, with those of a nested part in its place."""
    for column in columns_of(type(part)):
        value = getattr(part, column.name)
        yield from ((column, value),) if column.part is None else _list_values(value)


def _find_length(part: Part, axis: str) -> int | None:
    for column, array in _list_values(part):
        if column.array is not None and axis in column.axes:
            return None if array is None else int(array.shape[column.axes.index(axis)])
    raise TypeError(f"{type(part).__name__} has no array with the axis {axis!r}")


def _array_to_list(array: NDArray[Any]) -> list[Any]:
    """An array in JSON: null for a number that is missing."""
    if array.dtype.kind != "f":
        return list(array.tolist())
    plain = array.astype(object)
    plain[np.isnan(array)] = None
    return list(plain.tolist())


def _array_from_list(cls: type[Part], column: SavedColumn, value: list[Any]) -> NDArray[Any]:
    """An array from JSON; one without rows keeps its other axes."""
    names = column.axes
    try:
        array = np.array(value, dtype=column.array.dtypes[0])
        if not value:
            array = array.reshape([int(name) if name.isdigit() else 0 for name in names])
    except (ValueError, OverflowError):
        array = np.empty(0)
    if array.ndim != len(names):
        raise CorruptError(
            f"{cls.display_name()}: {column.key}: its rows differ in length; {REMEDY}"
        )
    return array


def _check_listed(cls: type[Part], plain: Mapping[str, Any], sizes: dict[str, int | None]) -> None:
    for column in _columns_in_json(cls):
        _check_column(column, plain[column.key], sizes, cls.display_name())


def _columns_in_json(cls: type[Part]) -> Iterator[SavedColumn]:
    """The arrays that are saved in JSON."""
    return (
        column
        for column in flat_columns(cls)
        if column.array is not None and column.form is not None
    )


def _read_sizes(cls: type[Part], plain: Mapping[str, Any]) -> dict[str, int | None]:
    """The lengths of the axes that plain values hold."""
    return {axis: _read_size(plain, key) for axis, key in axes_of(cls).items()}


def _read_size(plain: Mapping[str, Any], key: str) -> int | None:
    first, _, rest = key.partition(".")
    value = attrgetter(rest)(plain[first]) if rest else plain[first]
    return value if value is None or isinstance(value, int) else len(value)


def _take_arrays(
    cls: type[Part], tensors: Tensors, sizes: dict[str, int | None], plain: Mapping[str, Any]
) -> dict[str, Any]:
    """The arrays by field name, checked, including those saved in JSON."""
    what = cls.display_name()
    _check_listed(cls, plain, sizes)
    if any(column.table for column in columns_of(cls)):
        shapes = cls.array_shapes(plain)
        return {"": dict(zip(shapes, take_tensors(tensors, shapes, what=what), strict=True))}
    there = [
        column
        for column in flat_columns(cls)
        if column.is_tensor and not (column.optional and _lacks_axis(column, sizes))
    ]
    check_names(tensors, [column.key for column in there], what)
    for column in there:
        _check_column(column, tensors[column.key], sizes, what)
    return dict(tensors)


def _lacks_axis(column: SavedColumn, sizes: Mapping[str, int | None]) -> bool:
    return any(sizes.get(axis, 0) is None for axis in column.axes)


def _check_column(
    column: SavedColumn, array: NDArray[Any], sizes: dict[str, int | None], what: str
) -> None:
    names = column.axes
    for name, size in zip(names, array.shape, strict=False):
        if not name.isdigit() and name != "_":
            sizes.setdefault(name, size)
    shape = [int(name) if name.isdigit() else sizes.get(name, 0) or 0 for name in names]
    is_known = column.form is not None  # JSON's null is a number that is missing
    label = f"{what}'s array {column.key}"
    check_array(array, tuple(shape), column.array.dtypes[0], label, finite=not is_known)
    if column.bounds is not None:
        title = column.bounds.title or column.key
        check_bounds(array, column.bounds, f"{what}'s {title}")


def _build_part(cls: type[PartT], values: Mapping[str, Any]) -> PartT:
    """Build a part from checked values by their saved names; a table of arrays is under ""."""
    arguments: dict[str, Any] = {}
    for column in columns_of(cls):
        if column.part is not None:
            arguments[column.name] = _build_part(column.part, values)
        elif column.table or column.optional:
            arguments[column.name] = values.get("" if column.table else column.key)
        elif column.key in values:
            arguments[column.name] = values[column.key]
    part = cls(**arguments)
    part.verify()
    return part


Entry = TypeVar("Entry")


@final
class Kinds(Generic[Entry]):
    """The registry of one sort of part, such as predictors.

    A kind's module is loaded on first use, which `plugins.Registry` doesn't do, and an error says
    which distribution has a kind that lacks. Four registries, of 25 kinds, would each need these
    60 lines.

    Args:
        noun: The noun for one of them in error messages; a plural for some, such as features.
        package: The package that contains their modules.
        homes: The location of each kind: a module of the package and a name in it, `module:NAME`.
        group: The entry points of the kinds that other distributions add; None for no others.
        expects: The class of the entries.
    """

    def __init__(
        self,
        noun: str,
        package: str,
        homes: Mapping[str, str],
        group: Group | None = None,
        *,
        expects: type = object,
    ) -> None:
        self._noun, self._package, self._homes, self._group = noun, package, homes, group
        self._expects = expects
        self._plural = noun.endswith("s")

    @property
    def names(self) -> tuple[str, ...]:
        """The names of all kinds: those of the package, in order, then the others."""
        return tuple(dict.fromkeys((*self._homes, *self._list_plugins)))

    @property
    def own(self) -> tuple[str, ...]:
        """The names of the kinds of the package itself, in order."""
        return tuple(self._homes)

    @property
    def _list_plugins(self) -> Mapping[str, EntryPoint]:
        return {} if self._group is None else find_plugins(self._group)

    def find(self, kind: str) -> Entry:
        """The entry of a kind.

        Raises:
            ConfigError: There is no kind of that name.
            PluginError: The distribution that adds it can't be loaded.
        """
        entry: Entry
        if kind in self._homes:
            entry = load(self._package, self._homes[kind])
        elif self._group is not None and kind in self._list_plugins:
            entry = load_plugin(self._group, kind, expects=self._expects)
        else:
            raise ConfigError(self._describe_lack(kind))
        return entry

    def _describe_lack(self, kind: str) -> str:
        lack = f"there is no {self._noun} {kind!r}"
        if self._plural:
            lack = f"there are no {self._noun} of the kind {kind!r}"
        return f"{lack}; known are {list(self.names)}{self._suggest_home(kind)}"

    def _suggest_home(self, kind: object) -> str:
        if self._group is None or not isinstance(kind, str):
            return ""
        return suggest_distribution(self._group, kind)

    def kind_of(self, config: object) -> str:
        """The kind that some options belong to; each entry has their class as `config`.

        Raises:
            ConfigError: They belong to no known kind.
        """
        for kind in self.names:
            with suppress(PluginError):
                if getattr(self.find(kind), "config", None) is type(config):
                    return kind
        names = list(self.names)
        raise ConfigError(f"{type(config).__name__} belongs to no kind; known are {names}")

    def of_saved(self, config: Mapping[str, Any]) -> Entry:
        """The entry for the kind of a saved part.

        Raises:
            CorruptError: The kind is unknown.
        """
        kind = config.get("kind")
        if not isinstance(kind, str) or kind not in self.names:
            verb = "are" if self._plural else "is"
            raise CorruptError(
                f"the {self._noun} {verb} of the kind {kind!r}; known are {list(self.names)}; "
                "this may need a newer version of prefill-router, or the distribution that adds "
                f"the kind{self._suggest_home(kind)}"
            )
        return self.find(kind)
