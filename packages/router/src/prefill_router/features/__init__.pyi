from .base import (
    FAMILIES as FAMILIES,
    Columns as Columns,
    EncoderStates as EncoderStates,
    Family as Family,
    FamilyConfig as FamilyConfig,
    FamilyEntry as FamilyEntry,
    FeatureSet as FeatureSet,
    Need as Need,
    PromptStates as PromptStates,
    SavedProvenance as SavedProvenance,
    find_store as find_store,
)
from .complexity import COLUMNS as COLUMNS, measure as measure
from .extractor import Block as Block, FeatureExtractor as FeatureExtractor, Mode as Mode
from .neighbours import MOST_SEARCHED as MOST_SEARCHED, NeighboursConfig as NeighboursConfig
from .prefill import Joint as Joint, JointConfig as JointConfig, PrefillConfig as PrefillConfig
from .single_site import SingleSite as SingleSite
