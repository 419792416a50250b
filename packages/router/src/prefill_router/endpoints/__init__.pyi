from .bills import CallBill as CallBill, CostSource as CostSource
from .breakers import (
    Breakers as Breakers,
    BreakerState as BreakerState,
    CircuitBreaker as CircuitBreaker,
)
from .client import Upstream as Upstream, ask_once as ask_once
from .effort_fields import (
    effort_changes as effort_changes,
    merge_fields as merge_fields,
    read_effort as read_effort,
    read_efforts as read_efforts,
)
from .error_body import (
    ErrorBody as ErrorBody,
    kind_of as kind_of,
    parse_error as parse_error,
    read_error as read_error,
)
from .events import LineSplitter as LineSplitter
from .failures import (
    FOR_ANY_PROMPT as FOR_ANY_PROMPT,
    FOR_ONE_PROMPT as FOR_ONE_PROMPT,
    RETRIABLE as RETRIABLE,
    Callee as Callee,
    FailedCall as FailedCall,
    FailureCause as FailureCause,
    Words as Words,
    connect_cause as connect_cause,
    refusal_cause as refusal_cause,
)
from .json_object import MalformedError as MalformedError
from .keys import (
    NO_KEY as NO_KEY,
    PLAIN_HTTP as PLAIN_HTTP,
    check_encrypted as check_encrypted,
    is_loopback as is_loopback,
    provider_keys as provider_keys,
    wants_proxy as wants_proxy,
)
from .paid_calls import (
    LIMITED as LIMITED,
    Asker as Asker,
    PaidCall as PaidCall,
    PaidCalls as PaidCalls,
)
from .price_list import (
    PriceChange as PriceChange,
    RefreshedPool as RefreshedPool,
    refresh_prices as refresh_prices,
)
from .prices import (
    CallBound as CallBound,
    bound as bound,
    cost_of as cost_of,
    estimate_usage as estimate_usage,
    reason_against_usage as reason_against_usage,
    reported_cost as reported_cost,
)
from .rate_limit_headers import limits_left as limits_left, retry_after as retry_after
from .rate_limits import TokenBucket as TokenBucket
from .redaction import (
    Redaction as Redaction,
    forms_of_key as forms_of_key,
    without_key as without_key,
)
from .reply import Reply as Reply
from .request_body import (
    MAX_TOKENS_FIELDS as MAX_TOKENS_FIELDS,
    identity_parameters as identity_parameters,
    reasoning_fields as reasoning_fields,
    request_messages as request_messages,
    request_parameters as request_parameters,
)
from .retries import Retries as Retries, RetryPolicy as RetryPolicy
from .spending import SpendingLedger as SpendingLedger
from .transport import (
    direct_mounts as direct_mounts,
    request_headers as request_headers,
    trusted_certificates as trusted_certificates,
)
from .usage import Usage as Usage, estimate_tokens as estimate_tokens, read_usage as read_usage
