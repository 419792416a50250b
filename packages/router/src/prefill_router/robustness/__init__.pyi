from .perturbations import (
    CHANGES as CHANGES,
    TYPO_RATE as TYPO_RATE,
    Kind as Kind,
    pair_paraphrases as pair_paraphrases,
    perturb as perturb,
    sample_queries as sample_queries,
)
from .report import NAME as NAME, report_of as report_of
from .study import (
    RobustnessStudy as RobustnessStudy,
    choose_targets as choose_targets,
    predict_prompts as predict_prompts,
    robustness_study as robustness_study,
)
