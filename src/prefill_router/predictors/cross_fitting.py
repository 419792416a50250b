"""Out-of-fold predictions: for train rows, by predictors that were fitted on the other folds."""

import numpy as np

from prefill_router.errors import FitError
from prefill_router.predictors.base import Correctness, Examples, PredictorConfig
from prefill_router.progress import Progress, SilentProgress


def out_of_fold(
    config: PredictorConfig,
    examples: Examples,
    *,
    seed: int,
    progress: Progress | None = None,
) -> Correctness:
    """Fit the predictor several times, each time without one fold, and predict that fold.

    The features stay as they were fitted, and fewer networks are averaged
    (`PredictorConfig.lighter`).

    Args:
        config: The predictor's options.
        examples: Its training data, with the fold of each row.
        seed: The seed of the fits.
        progress: Shows the progress.

    Returns:
        One row per query; NaN for a fold where no predictor can be fitted on the others, and
        everywhere if there is only one fold.

    Raises:
        MissingExtraError: A package isn't installed.
    """
    folds = np.zeros(len(examples.features)) if examples.folds is None else examples.folds
    result, names = np.full(examples.correct.shape, np.nan), np.unique(folds)
    with (progress or SilentProgress()).task("out of fold", total=float(len(names))) as advance:
        for fold in names if len(names) > 1 else ():
            held = folds == fold
            try:
                fitted = config.lighter().fit(examples[np.flatnonzero(~held)], seed=seed)
                result[held] = fitted.predictor.correctness(examples.features[held])
            except FitError:  # for example, all labels are the same
                pass
            advance()
    return result
