from .ablations import (
    BLOCKS as BLOCKS,
    ablation_study as ablation_study,
    report_ablations as report_ablations,
)
from .dimensions import dimension_study as dimension_study, report_dimensions as report_dimensions
from .litellm_tiers import (
    CLASSIFIERS as CLASSIFIERS,
    Classifier as Classifier,
    classify_prompts as classify_prompts,
)
from .peers import (
    PeerPart as PeerPart,
    PeerPoint as PeerPoint,
    PeerStudy as PeerStudy,
    study_peers as study_peers,
)
from .peers_page import report_peers as report_peers
from .ratio import routing_ratio as routing_ratio, strongest as strongest
from .ratio_page import report_ratio as report_ratio
from .seeds import report_seeds as report_seeds, seed_study as seed_study
from .shift import Shift as Shift, arms as arms, shift_study as shift_study
from .shift_page import report_shift as report_shift
