"""The paper's tables and figures, reproduced on available data beside the paper's own numbers."""

from prefill_router.lazy_imports import face

__getattr__, __dir__, __all__ = face(__name__, __file__)
