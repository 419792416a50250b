from .perturbations import (
    CHANGES as CHANGES,
    TYPO_RATE as TYPO_RATE,
    Kind as Kind,
    paraphrased as paraphrased,
    perturbed as perturbed,
    sampled as sampled,
)
from .report import NAME as NAME, report_of as report_of
from .study import (
    RobustnessStudy as RobustnessStudy,
    chosen as chosen,
    predicted as predicted,
    robustness_study as robustness_study,
)
