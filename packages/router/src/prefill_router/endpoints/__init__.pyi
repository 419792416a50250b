from .call import direct as direct, request_headers as request_headers
from .client import (
    NO_KEY as NO_KEY,
    PLAIN_HTTP as PLAIN_HTTP,
    Redaction as Redaction,
    Upstream as Upstream,
    ask_once as ask_once,
    check_encrypted as check_encrypted,
    forms_of_key as forms_of_key,
    identity_parameters as identity_parameters,
    is_loopback as is_loopback,
    provider_keys as provider_keys,
    request_parameters as request_parameters,
    without_key as without_key,
)
from .failures import (
    RETRIABLE as RETRIABLE,
    ErrorBody as ErrorBody,
    kind_of as kind_of,
    read_error as read_error,
)
from .paid_calls import (
    LIMITED as LIMITED,
    Asker as Asker,
    CallBill as CallBill,
    CallBound as CallBound,
    CostSource as CostSource,
    PaidCall as PaidCall,
    PaidCalls as PaidCalls,
    SpendingLedger as SpendingLedger,
    bound as bound,
    cost_of as cost_of,
    estimated_usage as estimated_usage,
    plausible as plausible,
    reported_cost as reported_cost,
)
from .price_list import (
    PriceChange as PriceChange,
    RefreshedPool as RefreshedPool,
    refresh_prices as refresh_prices,
)
from .reply import Reply as Reply, Usage as Usage, read_usage as read_usage
from .retries import (
    CircuitBreaker as CircuitBreaker,
    Retries as Retries,
    RetryPolicy as RetryPolicy,
    TokenBucket as TokenBucket,
    limits_left as limits_left,
    retry_after as retry_after,
)
