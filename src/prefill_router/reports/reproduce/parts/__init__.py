"""The studies that the paper's tables need beside the routers themselves; each gives plain values.

A part is made once and kept as a file, so that interrupted work goes on from there. A part that
can't be made on the data says why.
"""

from prefill_router.reports.reproduce.parts.make import PARTS, make_parts
from prefill_router.reports.reproduce.parts.scene import Scene

__all__ = ["PARTS", "Scene", "make_parts"]
