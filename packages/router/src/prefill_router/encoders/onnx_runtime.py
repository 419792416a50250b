"""ONNX Runtime without its telemetry, which its wheels have on since 2026.

Unless the environment says otherwise before it is imported, it writes an identifier of the machine
into the home folder and uploads events about sessions to its maker. `disable_telemetry_events`
comes too late for the first of them, and for the identifier.
"""

import os

os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")

import onnxruntime as onnxruntime
