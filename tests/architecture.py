"""The walks of ARCHITECTURE.md."""

import re
from pathlib import Path

TEXT = (Path(__file__).parents[1] / "ARCHITECTURE.md").read_text(encoding="utf-8")


def walk(title: str) -> list[str]:
    """The functions that a walk lists, as `module:function`, in its order."""
    section = TEXT.split(f"## {title}\n")[1].split("\n## ")[0]
    return re.findall(r"^\d+\. `([a-z_.]+:[A-Za-z_.]+)`", section, re.MULTILINE)
