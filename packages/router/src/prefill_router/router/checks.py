"""Checks that the parts of a router fit together."""

from prefill_router.calibration import Calibrator, Shrinkage
from prefill_router.cost import OutputHead
from prefill_router.errors import ConfigError
from prefill_router.features import FeatureSet
from prefill_router.predictors import Predictor


def check_parts(
    names: tuple[str, ...],
    features: FeatureSet,
    predictor: Predictor,
    shrinkage: Shrinkage | None,
    calibrator: Calibrator | None,
    output: OutputHead | None,
) -> None:
    """Check that these parts have the same targets and matching widths.

    Args:
        names: The targets that the parts were fitted for, in order.
        features: The features of a request.
        predictor: From features to probabilities.
        shrinkage: Shrinks the probabilities towards base rates; None for no shrinkage.
        calibrator: Calibrates the probabilities; None for no calibration.
        output: Predicts the length of answers; None for their medians.

    Raises:
        ConfigError: A part was made for other targets, or the predictor for other features.
    """
    if predictor.targets != names:
        raise ConfigError(f"the predictor is for {predictor.targets}; the pool has {names}")
    for family in features.families:
        family.check_targets(names)
    if features.width != predictor.width:
        raise ConfigError(
            f"there are {features.width} features; the predictor takes {predictor.width}"
        )
    if shrinkage is not None and shrinkage.targets != names:
        raise ConfigError(f"the shrinkage is for {shrinkage.targets}; the pool has {names}")
    if calibrator is not None and calibrator.targets != names:
        raise ConfigError(f"the calibrator is for {calibrator.targets}; the pool has {names}")
    if output is not None:
        output.check(width=features.width, names=names)
