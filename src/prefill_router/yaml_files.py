"""YAML that people write: a name that is there twice is a mistake, not silently the last one."""

from pathlib import Path
from typing import Any

import yaml

from prefill_router.errors import ConfigError


class _Distinct(yaml.SafeLoader):
    """Refuses a mapping that names a key twice, of which YAML would silently keep the last."""

    def compose_mapping_node(self, anchor: Any) -> yaml.MappingNode:
        """A mapping, its keys checked as they are written: `1` and `"1"` are the same name."""
        node = super().compose_mapping_node(anchor)
        seen: set[str] = set()
        for key, _ in node.value:
            name = key.value if isinstance(key, yaml.ScalarNode) else None
            if name in seen:
                line = key.start_mark.line + 1
                raise ConfigError(f"line {line}: {name!r} is there twice; name each once")
            if name is not None:
                seen.add(name)
        return node


def read_yaml(path: Path) -> Any:
    """The value in a YAML file.

    Raises:
        ConfigError: There is no such file, it isn't YAML, or a mapping names a key twice.
    """
    try:
        return yaml.load(path.read_text(encoding="utf-8"), Loader=_Distinct)
    except FileNotFoundError:
        raise ConfigError("no such file") from None
    except (OSError, ValueError, RecursionError, yaml.YAMLError) as error:
        raise ConfigError(f"not YAML: {' '.join(str(error).split())}") from None
