from .ablations import (
    BLOCKS as BLOCKS,
    ablation_study as ablation_study,
    report_ablations as report_ablations,
)
from .dimensions import dimension_study as dimension_study, report_dimensions as report_dimensions
from .ratio import routing_ratio as routing_ratio, strongest as strongest
from .ratio_page import report_ratio as report_ratio
from .seeds import report_seeds as report_seeds, seed_study as seed_study
from .shift import Shift as Shift, arms as arms, shift_study as shift_study
from .shift_page import report_shift as report_shift
