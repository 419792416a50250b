from .base import Calibrator as Calibrator, CalibratorFit as CalibratorFit
from .calibrators import (
    KINDS as KINDS,
    CalibratorKind as CalibratorKind,
    find as find,
    fit_calibrator as fit_calibrator,
    load_calibrator as load_calibrator,
)
from .shrinkage import Shrinkage as Shrinkage
