from .admission import (
    FREE_BODY as FREE_BODY,
    KEY as KEY,
    LEAVE as LEAVE,
    Guard as Guard,
    GuardedSend as GuardedSend,
    Leave as Leave,
    address_of as address_of,
)
from .checks import (
    ROUNDING as ROUNDING,
    BodyBudget as BodyBudget,
    HostNames as HostNames,
    KeyLimits as KeyLimits,
    RequestSlots as RequestSlots,
    too_many_at_once as too_many_at_once,
    too_many_per_minute as too_many_per_minute,
)
from .client_keys import (
    ClientKey as ClientKey,
    ClientKeys as ClientKeys,
    add_key as add_key,
    check_listen as check_listen,
    digest as digest,
    key_budgets as key_budgets,
    new_key as new_key,
    read_keys as read_keys,
    read_rows as read_rows,
    remove_key as remove_key,
)
from .http_protocol import (
    error_handlers as error_handlers,
    guarded_protocol as guarded_protocol,
    send_refusal as send_refusal,
)
