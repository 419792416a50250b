from .config import (
    ImportedConfig as ImportedConfig,
    OmittedSetting as OmittedSetting,
    import_config as import_config,
)
from .gateway_client import SpentError as SpentError
from .plugin import PrefillRouterPlugin as PrefillRouterPlugin
from .providers import KNOWN as KNOWN, KnownProvider as KnownProvider
from .strategy import PrefillRouterStrategy as PrefillRouterStrategy
