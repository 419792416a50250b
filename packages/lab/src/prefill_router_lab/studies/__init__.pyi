from .ablations import (
    BLOCKS as BLOCKS,
    ablation_study as ablation_study,
)
from .dimensions import dimension_study as dimension_study
from .efforts import (
    EffortStudy as EffortStudy,
    list_choice_sets as list_choice_sets,
    study_efforts as study_efforts,
)
from .layer_options import (
    AblationOptions as AblationOptions,
    DimensionOptions as DimensionOptions,
)
from .litellm_tiers import (
    CLASSIFIERS as CLASSIFIERS,
    Classifier as Classifier,
    classify_prompts as classify_prompts,
)
from .options import (
    EffortOptions as EffortOptions,
    RatioOptions as RatioOptions,
    SeedOptions as SeedOptions,
    ShiftOptions as ShiftOptions,
)
from .peers import (
    PeerPart as PeerPart,
    PeerPoint as PeerPoint,
    PeerStudy as PeerStudy,
    study_peers as study_peers,
)
from .ratio import find_strongest as find_strongest, routing_ratio as routing_ratio
from .seeds import seed_study as seed_study
from .shift import Shift as Shift, arms as arms, shift_study as shift_study
