"""What a part's annotations declare: how each field is saved and how plain values are checked."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import MISSING, Field as DataclassField, fields
from functools import cache
from types import NoneType, UnionType
from typing import (
    Annotated,
    Any,
    Literal,
    NamedTuple,
    Union,
    final,
    get_args,
    get_origin,
    get_type_hints,
)

import numpy as np
from pydantic import AfterValidator, BaseModel, ConfigDict, Field, PositiveInt, create_model
from pydantic.fields import FieldInfo
from pydantic_core import to_jsonable_python


def _distinct(names: tuple[str, ...]) -> tuple[str, ...]:
    if len(set(names)) < len(names):
        raise ValueError(f"{list(names)} aren't distinct names")
    return names


Names = Annotated[tuple[str, ...], Field(min_length=1), AfterValidator(_distinct)]
"""One or more distinct names."""


class StrictModel(BaseModel):
    """A model without unknown fields, type conversions, infinity or NaN."""

    model_config = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False)


@final
class Saved(NamedTuple):
    """An annotation for fields whose type doesn't say how they are saved.

    Attributes:
        name: The saved name; the field's own name if not given.
        form: The type in JSON, for pydantic, whose validators turn it into the field's value; an
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
    return _columns(cls)


@cache
def _columns(cls: Any) -> tuple[SavedColumn, ...]:
    hints = get_type_hints(cls, include_extras=True)
    found = (_column(one, hints[one.name]) for one in fields(cls))
    return tuple(one for one in found if not one.saving.never)


def _column(one: "DataclassField[Any]", hint: Any) -> SavedColumn:
    base, *more = get_args(hint) if get_origin(hint) is Annotated else (hint,)
    saving = next((beside for beside in more if isinstance(beside, Saved)), Saved())
    bounds = next((beside for beside in more if isinstance(beside, FieldInfo)), None)
    found = SavedColumn(one.name, saving.name or one.name, saving.form, saving, one.default)
    inner = [some for some in get_args(base) if some is not NoneType]
    is_optional = get_origin(base) in (Union, UnionType) and len(inner) == 1
    if is_optional and hasattr(inner[0], "dim_str"):
        return found._replace(array=inner[0], bounds=bounds, optional=True)
    if hasattr(base, "dim_str"):
        return found._replace(array=base, bounds=bounds)
    if saving.form is None and hasattr(base, "array_shapes"):
        return found._replace(part=base)
    if get_origin(base) is Mapping and _is_array(inner[1]):
        return found._replace(table=True)
    return found._replace(form=hint if saving.form is None else saving.form)


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
    return _model(cls)


@cache
def _model(cls: Any) -> type[BaseModel]:
    keys: dict[str, Any] = {"kind": (Literal[cls.kind], ...)} if cls.kind else {}
    for column in flat_columns(cls):
        if column.form is not None:
            keys[column.key] = (column.form, ... if column.default is MISSING else column.default)
    arrays = [column for column in flat_columns(cls) if column.is_tensor]
    for axis, key in axes_of(cls).items():
        if key.partition(".")[0] not in keys:
            owners = [one for one in arrays if axis in one.axes]
            may_lack = owners and all(one.optional for one in owners)
            keys[key] = (PositiveInt | None if may_lack else PositiveInt, ...)
    return create_model(cls.__name__, __base__=StrictModel, **keys)
