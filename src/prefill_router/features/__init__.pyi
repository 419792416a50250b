from .base import (
    FAMILIES as FAMILIES,
    Columns as Columns,
    EncoderStates as EncoderStates,
    Family as Family,
    FamilyConfig as FamilyConfig,
    Need as Need,
    PromptStates as PromptStates,
    find_store as find_store,
)
from .complexity import COLUMNS as COLUMNS, measure as measure
from .extractor import Block as Block, FeatureExtractor as FeatureExtractor
from .feature_set import FeatureSet as FeatureSet
from .joint import Joint as Joint, JointConfig as JointConfig
from .modes import Mode as Mode
from .neighbours import MOST_SEARCHED as MOST_SEARCHED, NeighboursConfig as NeighboursConfig
from .prefill import PrefillConfig as PrefillConfig
from .single_site import SingleSite as SingleSite
from .text_network import TextNetworkConfig as TextNetworkConfig
