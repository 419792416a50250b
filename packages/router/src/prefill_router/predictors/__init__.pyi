from .base import (
    PREDICTORS as PREDICTORS,
    Correctness as Correctness,
    Descriptions as Descriptions,
    Examples as Examples,
    Features as Features,
    PerTarget as PerTarget,
    Predictor as Predictor,
    PredictorConfig as PredictorConfig,
    PredictorEntry as PredictorEntry,
    PredictorFit as PredictorFit,
    Share as Share,
    check_features as check_features,
    left_out_note as left_out_note,
    load_predictor as load_predictor,
    predictor_config as predictor_config,
    usable_rows as usable_rows,
)
from .bradley_terry import Votes as Votes, fit_strengths as fit_strengths
from .curve_figures import write_curves as write_curves
from .given import GivenConfig as GivenConfig
from .logistic import LogisticConfig as LogisticConfig
from .stack import out_of_fold as out_of_fold
from .training import (
    Draws as Draws,
    Holdout as Holdout,
    TrainingCurves as TrainingCurves,
    hold_out as hold_out,
)
from .trunk import (
    SharedTrunkNet as SharedTrunkNet,
    TrunkConfig as TrunkConfig,
    TrunkFit as TrunkFit,
    fit_trunk as fit_trunk,
)
