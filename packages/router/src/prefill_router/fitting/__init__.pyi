from .added_target import (
    AddedTarget as AddedTarget,
    Ask as Ask,
    Questions as Questions,
    TargetAddition as TargetAddition,
    add_target as add_target,
    known_answers as known_answers,
    remove_target as remove_target,
)
from .cross_fitting import CrossFitter as CrossFitter
from .effort import (
    EFFORTS as EFFORTS,
    Effort as Effort,
    EffortChoice as EffortChoice,
    choose_recipe as choose_recipe,
    fit_chosen as fit_chosen,
    learn_chosen as learn_chosen,
)
from .fit import (
    RouterFit as RouterFit,
    check_same_fit as check_same_fit,
    draw as draw,
    fit_router as fit_router,
    learn as learn,
)
from .fold_scores import (
    CALIBRATION as CALIBRATION,
    Answer as Answer,
    FoldScore as FoldScore,
    FoldScorer as FoldScorer,
    TrainOnly as TrainOnly,
    answer as answer,
)
from .inputs import folds_of as folds_of, gather as gather
from .objectives import (
    MARGINS as MARGINS,
    WORDS as WORDS,
    Objective as Objective,
)
from .recipe import (
    FitConfig as FitConfig,
    Recipe as Recipe,
    SoftLabels as SoftLabels,
    read_installed_recipes as read_installed_recipes,
    read_recipe as read_recipe,
    read_recipes as read_recipes,
    recipe_from_dict as recipe_from_dict,
    switchyard_recipe as switchyard_recipe,
)
from .votes import part_of_votes as part_of_votes, parts_out_of_fold as parts_out_of_fold
