from .config import (
    ImportedConfig as ImportedConfig,
    OmittedSetting as OmittedSetting,
    import_config as import_config,
)
from .deployments import LitellmProxy as LitellmProxy
from .gateway_client import SpentError as SpentError
from .model_list import ModelList as ModelList, read_model_list as read_model_list
from .strategy import (
    PrefillRouterPlugin as PrefillRouterPlugin,
    PrefillRouterStrategy as PrefillRouterStrategy,
)
