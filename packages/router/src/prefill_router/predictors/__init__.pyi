from .base import (
    PREDICTORS as PREDICTORS,
    Correctness as Correctness,
    Descriptions as Descriptions,
    Examples as Examples,
    PerTarget as PerTarget,
    Predictor as Predictor,
    PredictorConfig as PredictorConfig,
    PredictorFit as PredictorFit,
    load_predictor as load_predictor,
    predictor_config as predictor_config,
)
from .constant import GivenConfig as GivenConfig
from .curve_figures import write_curves as write_curves
from .logistic import LogisticConfig as LogisticConfig
from .stack import out_of_fold as out_of_fold
from .training import TrainingCurves as TrainingCurves
from .trunk import (
    SharedTrunkNet as SharedTrunkNet,
    TrunkConfig as TrunkConfig,
    TrunkFit as TrunkFit,
    fit_trunk as fit_trunk,
)
