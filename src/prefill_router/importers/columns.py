"""Which column of a user's own table holds what, and on what scale its labels are."""

from dataclasses import dataclass, replace
from typing import Final, Literal, final

from prefill_router.errors import ConfigError
from prefill_router.importers.scale import Scale

TARGET: Final = "{target}"


@final
@dataclass(frozen=True, kw_only=True)
class Columns:
    """Column names of a long table (a row per query and target) or a wide one (a row per query).

    None means the column with the usual name if the table has one; a name that is given must be
    there. In a wide table the last four hold `{target}`, as in `{target}|total_cost`.

    Attributes:
        prompt: Text, or in JSON Lines and Parquet a list of {role, content}. Usually `prompt`.
        query: Ids; without, the query is known by its prompt. Usually `query_id`.
        benchmark: Usually `benchmark`.
        domain: Usually `domain`.
        target: The target's name; long tables only. Usually `target`, else `model`.
        correct: The label. Usually `correct`; in wide tables the target's name itself.
        input_tokens: Usually `input_tokens`.
        output_tokens: Usually `output_tokens`.
        cost: US dollars. Usually `cost`.
        targets: The targets of a wide table; guessed if not given.
        scale: How scores become labels; they are labels if not given.
        repeats: `mean` where rows of the same query and target are runs that count as their mean;
            a second row that says otherwise is malformed if not given.
    """

    prompt: str | None = None
    query: str | None = None
    benchmark: str | None = None
    domain: str | None = None
    target: str | None = None
    correct: str | None = None
    input_tokens: str | None = None
    output_tokens: str | None = None
    cost: str | None = None
    targets: tuple[str, ...] = ()
    scale: Scale | None = None
    repeats: Literal["mean"] | None = None

    def given(self) -> list[str]:
        """The names of the options that were given."""
        return [name for name, value in vars(self).items() if value]

    def of_target(self, name: str) -> tuple[str, str | None, str | None, str | None]:
        """A target's columns in a wide table: label, input tokens, output tokens, cost.

        Raises:
            ConfigError: A column was named without `{target}`.
        """
        for option in ("correct", "input_tokens", "output_tokens", "cost"):
            value = getattr(self, option)
            if value is not None and TARGET not in value:
                raise ConfigError(
                    f"the {option} column of a wide table is {value!r}; it must hold {TARGET}, "
                    f"as in '{TARGET}|{option}'"
                )
        others = (self.input_tokens, self.output_tokens, self.cost)
        inputs, outputs, cost = (None if c is None else c.replace(TARGET, name) for c in others)
        return (self.correct or TARGET).replace(TARGET, name), inputs, outputs, cost

    def target_of(self, column: str) -> str | None:
        """The target whose labels this column of a wide table holds; None where it can't be one."""
        before, _, after = (self.correct or TARGET).partition(TARGET)
        name = column.removeprefix(before).removesuffix(after)
        return name if name and (self.correct or TARGET).replace(TARGET, name) == column else None

    def with_cost(self, column: str) -> "Columns":
        """The same with a column of costs."""
        return replace(self, cost=column)
