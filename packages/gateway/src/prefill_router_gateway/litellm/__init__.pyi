from .config import (
    ImportedConfig as ImportedConfig,
    OmittedSetting as OmittedSetting,
    import_config as import_config,
)
from .gateway_client import SpentError as SpentError
from .strategy import (
    PrefillRouterPlugin as PrefillRouterPlugin,
    PrefillRouterStrategy as PrefillRouterStrategy,
)
