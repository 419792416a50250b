from .effort import (
    EFFORTS as EFFORTS,
    check_effort as check_effort,
    effort_in_name as effort_in_name,
    is_budget as is_budget,
    name_with_effort as name_with_effort,
)
from .known_providers import KNOWN as KNOWN, KnownProvider as KnownProvider
from .pool import (
    Pool as Pool,
    day_of as day_of,
    pool_from_dict as pool_from_dict,
    read_pool as read_pool,
    write_pool as write_pool,
)
from .provider import (
    ABILITIES as ABILITIES,
    DIALECTS as DIALECTS,
    ENDPOINTS as ENDPOINTS,
    TRAITS as TRAITS,
    Ability as Ability,
    Dialect as Dialect,
    DialectTraits as DialectTraits,
    Endpoint as Endpoint,
    Fields as Fields,
    Provider as Provider,
    public_address as public_address,
    recommended_sampling as recommended_sampling,
)
from .target import (
    MOST_PRICE as MOST_PRICE,
    PRICES as PRICES,
    RequestOptions as RequestOptions,
    Target as Target,
    TargetEndpoint as TargetEndpoint,
)
