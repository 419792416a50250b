"""YAML files written by people; a duplicate name is an error instead of silently the last one."""

from collections.abc import Iterable
from pathlib import Path
from typing import Annotated, Any, final

import yaml
from pydantic import BeforeValidator
from pydantic_core import PydanticCustomError

from prefill_router.errors import ConfigError

_MOST_REPEATED = 200_000
"""The most that aliases may repeat, in characters plus values."""
_DEEPEST = 100
"""The most nested brackets; the time that PyYAML takes grows with their square."""
_LONGEST_NUMBER = 1000
_LONGEST_KEY = 18  # digits; longer numbers can be chosen so that all of their hashes collide


def _no_boolean(value: Any) -> Any:
    """Refuse booleans: YAML reads yes and on as true, which would count as 1."""
    if isinstance(value, bool):
        raise PydanticCustomError("number", "must be a number, not true or false")
    return value


Number = Annotated[float, BeforeValidator(_no_boolean)]
"""A number in a file that people write."""
WholeNumber = Annotated[int, BeforeValidator(_no_boolean)]
"""A whole number in a file that people write."""


class DistinctLoader(yaml.SafeLoader):
    """Refuses a mapping with a duplicate key, of which YAML would silently keep the last.

    It also refuses aliases by which a few lines become gigabytes, or a value contains itself.
    """

    def fetch_flow_collection_start(self, TokenClass: type[yaml.Token]) -> None:  # noqa: N803
        """Note that a bracket opens.

        Raises:
            NotYamlError: It stands within too many others.
        """
        if self.flow_level >= _DEEPEST:
            raise NotYamlError("it is nested too deeply", line=self.line + 1)
        super().fetch_flow_collection_start(TokenClass)

    def get_single_node(self) -> yaml.Node | None:
        """The document.

        Raises:
            NotYamlError: Its aliases repeat too much.
        """
        node: yaml.Node | None = super().get_single_node()
        if node is not None:
            sizes: dict[int, int] = {}
            _expand_node(node, sizes, [0])
        return node

    def compose_mapping_node(self, anchor: Any) -> yaml.MappingNode:
        """A mapping whose keys are checked as they are written: `1` and `"1"` are the same name.

        Raises:
            ConfigError: A key is repeated.
        """
        node = super().compose_mapping_node(anchor)
        names: set[str] = set()
        for key, _ in node.value:
            name = key.value if isinstance(key, yaml.ScalarNode) else None
            if name in names:
                line = key.start_mark.line + 1
                raise ConfigError(f"line {line}: {name!r} is repeated; name each once")
            if name is not None and len(name) > _LONGEST_KEY and key.tag.endswith(":int"):
                raise ConfigError(
                    f"line {key.start_mark.line + 1}: a name is a number of {len(name)} digits; "
                    "write it in quotes"
                )
            if name is not None:
                names.add(name)
        return node


def _read_number(loader: DistinctLoader, node: yaml.ScalarNode) -> int | float:
    if len(node.value) > _LONGEST_NUMBER:  # parsing a base-60 number takes quadratic time
        raise ValueError("a number with too many digits")
    is_whole = node.tag.endswith(":int")
    return loader.construct_yaml_int(node) if is_whole else loader.construct_yaml_float(node)


for _tag in ("int", "float"):
    DistinctLoader.add_constructor(f"tag:yaml.org,2002:{_tag}", _read_number)


@final
class NotYamlError(ConfigError):
    """Text that can't be read as YAML. It isn't quoted, since it may hold keys.

    Attributes:
        line: The line, from 1; None where it isn't known.
        why: What is wrong.
    """

    def __init__(self, why: str, *, line: int | None = None) -> None:
        super().__init__(f"{'' if line is None else f'line {line}: '}not YAML: {why}")
        self.line, self.why = line, why


def _expand_node(node: yaml.Node, sizes: dict[int, int], repeated: list[int]) -> int:
    """The size of a node with its aliases expanded.

    Args:
        node: The node.
        sizes: The sizes of visited nodes, by identity; 0 for those in progress.
        repeated: The sum of the sizes that aliases repeat.

    Raises:
        NotYamlError: Aliases repeat too much, or the node contains itself.
    """
    size = sizes.get(id(node))
    if size is None:
        sizes[id(node)] = 0
        below = node.value if isinstance(node, yaml.CollectionNode) else ()
        pairs = isinstance(node, yaml.MappingNode)
        parts = [part for pair in below for part in pair] if pairs else below
        own = 1 if isinstance(node, yaml.CollectionNode) else 1 + len(node.value)
        sizes[id(node)] = own + sum(_expand_node(part, sizes, repeated) for part in parts)
        return sizes[id(node)]
    repeated[0] += size
    if not size or repeated[0] > _MOST_REPEATED:
        line = node.start_mark.line + 1
        raise NotYamlError("its aliases repeat too much; write out what is meant", line=line)
    return size


def parse_yaml(text: str, loader: type[DistinctLoader]) -> Any:
    """Parse a YAML document.

    Raises:
        NotYamlError: The text isn't YAML.
        ConfigError: A mapping names a key twice.
    """
    try:
        return yaml.load(text, Loader=loader)
    except RecursionError:
        raise NotYamlError("it is nested too deeply") from None
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        line = None if mark is None else mark.line + 1
        problem = getattr(error, "problem", None) or "a character that isn't allowed there"
        if any(word in problem for word in ("alias", "anchor", "tag")):  # it quotes their names
            problem = "an alias, anchor or tag without a meaning; quote what begins with *, & or !"
        raise NotYamlError(problem, line=line) from None
    except (ValueError, AttributeError, LookupError):  # such as 0b_, which only looks like a number
        raise NotYamlError(
            "a value is malformed; it isn't of the type that its form or its tag suggests"
        ) from None


def read_yaml(path: Path) -> Any:
    """The value in a YAML file.

    Raises:
        ConfigError: There is no such file, it isn't YAML, or a mapping names a key twice.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise ConfigError("no such file") from None
    except OSError as error:
        raise ConfigError(f"can't be read: {error.strerror}") from None
    except UnicodeDecodeError as error:
        raise NotYamlError(f"not UTF-8, from its byte {error.start} on") from None
    return parse_yaml(text, DistinctLoader)


def line_of(path: Path, place: Iterable[int | str]) -> int:
    """The line, from 1, on which a value of a YAML file begins.

    Where there is no such value, the line of the innermost mapping or list that would hold it.

    Args:
        path: A file that `read_yaml` can read.
        place: The keys, and positions in lists from 0, that lead to the value.

    Raises:
        ConfigError: The file can no longer be read.
    """
    try:
        node = yaml.compose(path.read_text(encoding="utf-8"), Loader=DistinctLoader)
    except (OSError, ValueError, yaml.YAMLError):
        raise ConfigError("it changed while it was read; try again") from None
    line = 0
    for name in place:
        child = _find_child(node, name)
        if child is None:
            break
        line, node = child
    return line + 1


def _find_child(node: Any, name: int | str) -> tuple[int, yaml.Node] | None:
    """The node under a key or position, and the line on which it begins, from 0."""
    if isinstance(node, yaml.SequenceNode) and isinstance(name, int) and name < len(node.value):
        child = node.value[name]
        return child.start_mark.line, child
    pairs = node.value if isinstance(node, yaml.MappingNode) else []
    return next(
        ((key.start_mark.line, value) for key, value in pairs if key.value == str(name)), None
    )
