"""What saved predictors have in common: their kind, their targets and their width."""

from collections.abc import Mapping
from typing import Any, TypeVar

from pydantic import BaseModel, ConfigDict, PositiveInt, ValidationError

from prefill_router.errors import CorruptError


class Saved(BaseModel):
    """What is saved of a predictor beside its arrays; each kind adds its own."""

    model_config = ConfigDict(extra="forbid", strict=True)
    kind: str
    targets: list[str]
    width: PositiveInt


Model = TypeVar("Model", bound=Saved)


def read_saved(model: type[Model], config: Mapping[str, Any], *, kind: str) -> Model:
    """Check what was saved of a predictor.

    Raises:
        CorruptError: It is of another kind, incomplete, or its targets aren't distinct.
    """
    try:
        saved = model.model_validate(dict(config))
    except ValidationError as error:
        first = error.errors()[0]
        place = ".".join(map(str, first["loc"]))
        raise CorruptError(
            f"the {kind} predictor's {place}: {first['msg']}; copy or make the router again"
        ) from None
    if saved.kind != kind or not saved.targets or len(set(saved.targets)) < len(saved.targets):
        raise CorruptError(
            f"a {kind} predictor was expected, with distinct targets; this is a {saved.kind!r} of "
            f"{saved.targets}; copy or make the router again"
        )
    return saved
