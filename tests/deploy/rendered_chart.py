"""Renders the Helm chart with Helm's engine, in a process of its own: its runtime takes signals."""

import json
import subprocess
import sys
from collections.abc import Mapping, Sequence
from typing import Any

import yaml

from tests.deploy import DEPLOY

CHART = DEPLOY / "helm" / "prefill-router"
PROGRAM = """
import json, sys
import helm_python as helm
place, cases = json.load(sys.stdin)
found = []
with helm.Chart.load(place) as chart:
    for values in cases:
        try:
            found.append(chart.render(values, name="demo", namespace="prod"))
        except helm.HelmError as error:
            found.append(str(error))
lint = helm.lint(place, cases[0], namespace="prod")["errors"]
json.dump({"lint": lint, "found": found}, sys.stdout)
"""


def render_chart(cases: Sequence[Mapping[str, Any]]) -> tuple[list[str], list[Any]]:
    """What lint finds, and for each case the documents by kind, or the text of the error."""
    process = subprocess.run(
        [sys.executable, "-c", PROGRAM],
        input=json.dumps([str(CHART), list(cases)]),
        capture_output=True,
        text=True,
        check=True,
    )
    output = json.loads(process.stdout)
    return output["lint"], [
        result if isinstance(result, str) else _documents(result) for result in output["found"]
    ]


def _documents(texts: Mapping[str, str]) -> dict[str, dict[str, Any]]:
    read = [yaml.safe_load(text) for name, text in texts.items() if name.endswith(".yaml")]
    return {document["kind"]: document for document in read if document}
