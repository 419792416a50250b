"""The names that figures use from Matplotlib, which the extra `reports` installs."""

from prefill_router.lazy_imports import optional_imports

with optional_imports("drawing figures"):
    import matplotlib as mpl
    from matplotlib import rc_context
    from matplotlib.axes import Axes
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure
    from matplotlib.ticker import LogLocator, NullFormatter, NullLocator, PercentFormatter
    from matplotlib.transforms import Bbox

__all__ = [
    "Axes",
    "Bbox",
    "Figure",
    "FigureCanvasAgg",
    "LogLocator",
    "NullFormatter",
    "NullLocator",
    "PercentFormatter",
    "mpl",
    "rc_context",
]
