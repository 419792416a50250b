"""One command per stage, each a thin call of one library function.

A command is a file of this package that decorates its function with `app.command`; importing it
here puts it on the command line, in this order, which is that of the work. Heavy imports (torch,
matplotlib) belong inside the command's function, so that `--help` answers at once.
"""

# isort: off
from prefill_router.cli import (  # noqa: F401
    tasks as _tasks,
    prices as _prices,
    collect as _collect,
    grade as _grade,
    import_ as _import,
    merge as _merge,
    describe as _describe,
    split as _split,
    encode as _encode,
    layers as _layers,
    sweep as _sweep,
    fit as _fit,
    evaluate as _evaluate,
    paired as _paired,
    compare as _compare,
    reproduce as _reproduce,
    search as _search,
    calibration as _calibration,
    doctor as _doctor,
    keep as _keep,
    study as _study,
    study_seeds as _study_seeds,
    study_ratio as _study_ratio,
    study_shift as _study_shift,
    study_dimensions as _study_dimensions,
    study_layers as _study_layers,
    study_learning as _study_learning,
    study_end_to_end as _study_end_to_end,
    route as _route,
    litellm as _litellm,
    serve as _serve,
    explain as _explain,
    replay as _replay,
    canary as _canary,
    export as _export,
    reprice as _reprice,
    show as _show,
    minipool as _minipool,
    key as _key,
    demo as _demo,
)

# isort: on
from prefill_router.cli.app import app, main

__all__ = ["app", "main"]
