"""Faults as somebody writes them: in a file, or one by one on a command line.

A file of faults is YAML::

    seed: 0
    rules:
      - {kind: rate_limit, share: 0.1, retry_after: 0.5, form: ms}
      - {kind: status, status: 503, attempts: 1}         # the first attempt at every prompt
      - {kind: break, model: atlas, after: 2, requests: [0, 3]}
    personas:
      atlas: {style: deepseek, reasoning: 12}

One rule as text is its kind and its fields: `rate_limit,share=0.1,retry_after=0.5,form=ms`.
"""

from pathlib import Path
from typing import Any

from pydantic import TypeAdapter, ValidationError

from prefill_router.errors import ConfigError, FormatError
from prefill_router.minipool.server.faults import Faults, Rule
from prefill_router.yaml_files import DistinctLoader, NotYamlError, parse_yaml


def read_faults(path: Path) -> Faults:
    """Read a file of faults.

    Raises:
        FormatError: It is missing, no YAML, or holds a field or a value that isn't known.
    """
    try:
        value = parse_yaml(path.read_text(encoding="utf-8-sig"), DistinctLoader)
        return TypeAdapter(Faults).validate_python({} if value is None else value)
    except FileNotFoundError:
        raise FormatError("no such file; faults are a YAML file with rules", file=path) from None
    except (UnicodeDecodeError, NotYamlError):
        raise FormatError("not YAML; faults are a YAML file with rules", file=path) from None
    except ValidationError as error:
        raise FormatError(_told(error, "faults"), file=path) from None
    except ConfigError as error:
        raise FormatError(str(error), file=path) from None


def parse_rule(text: str) -> Rule:
    """A rule from text such as `status,share=0.2,status=503`.

    Raises:
        ConfigError: The text isn't of this form, or names a kind or a field that isn't known.
    """
    kind, *rest = text.split(",")
    pairs = [part.partition("=") for part in rest]
    malformed = [name for name, sign, _ in pairs if not sign]
    if malformed:
        raise ConfigError(f"the fault {text!r}: {malformed[0]!r} isn't of the form field=value")
    value: dict[str, Any] = {name.strip(): content.strip() for name, _, content in pairs}
    if "requests" in value:
        value["requests"] = value["requests"].split()
    try:
        return TypeAdapter(Rule).validate_python({**value, "kind": kind.strip()})
    except ValidationError as error:
        raise ConfigError(f"the fault {text!r}: {_told(error, 'fault')}") from None


def _told(error: ValidationError, whole: str) -> str:
    first = error.errors()[0]
    return f"{'.'.join(map(str, first['loc'])) or whole}: {first['msg']}"
