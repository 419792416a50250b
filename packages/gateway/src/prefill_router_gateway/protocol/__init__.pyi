from .chat_translation import (
    chat_splicer as chat_splicer,
    left_out_hints as left_out_hints,
    untranslatable as untranslatable,
)
from .effort_fields import (
    EffortRule as EffortRule,
    effort_splicer as effort_splicer,
)
from .envelope import (
    LIMIT_NAMES as LIMIT_NAMES,
    TRANSLATED as TRANSLATED,
    Envelope as Envelope,
    Splicer as Splicer,
    read_envelope as read_envelope,
    scored_prompt as scored_prompt,
    without_collecting as without_collecting,
)
from .headers import (
    ANTHROPIC_VERSION as ANTHROPIC_VERSION,
    NO_PREFERENCES as NO_PREFERENCES,
    ROUTING_NAMES as ROUTING_NAMES,
    HeaderFilter as HeaderFilter,
    OpenRouterOptions as OpenRouterOptions,
    RequestedModel as RequestedModel,
    RoutingPreferences as RoutingPreferences,
    parse_model as parse_model,
    read_preferences as read_preferences,
    to_client as to_client,
)
from .response_to_chat import split_name as split_name
from .thinking_fields import (
    THINKING_HINTS as THINKING_HINTS,
    ThinkingHint as ThinkingHint,
    ThinkingRule as ThinkingRule,
    thinking_hints as thinking_hints,
)
from .turns import (
    asks_to_think as asks_to_think,
    holds_state as holds_state,
    read_cache_mark as read_cache_mark,
)
