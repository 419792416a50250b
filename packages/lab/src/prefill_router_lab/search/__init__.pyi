from .effort import (
    EFFORTS as EFFORTS,
    Effort as Effort,
    EffortChoice as EffortChoice,
    choose_recipe as choose_recipe,
    fit_chosen as fit_chosen,
)
from .fold_scores import OBJECTIVES as OBJECTIVES, Objective as Objective
from .holdout_guard import SealedTest as SealedTest, TrainOnly as TrainOnly, seal as seal
from .report import (
    ROUTER as ROUTER,
    begin as begin,
    plan_of as plan_of,
    words as words,
    write as write,
)
from .space import DEFAULT as DEFAULT, Space as Space, read_space as read_space
from .trial_loop import (
    SearchConfig as SearchConfig,
    SearchResult as SearchResult,
    choose as choose,
    conclude as conclude,
    openers as openers,
    search as search,
)
