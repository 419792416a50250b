from .admission import (
    HELD_BODY as HELD_BODY,
    KEY as KEY,
    PAGE_HEADERS as PAGE_HEADERS,
    PLACE as PLACE,
    Guard as Guard,
    SharedPlace as SharedPlace,
    address_of as address_of,
)
from .checks import (
    ROUNDING as ROUNDING,
    BodyBudget as BodyBudget,
    ClientKey as ClientKey,
    ClientKeys as ClientKeys,
    HostNames as HostNames,
    KeyLimits as KeyLimits,
    RequestSlots as RequestSlots,
    check_listen as check_listen,
    key_budgets as key_budgets,
    too_many_at_once as too_many_at_once,
    too_many_per_minute as too_many_per_minute,
)
from .http_protocol import guarded_config as guarded_config, open_connections as open_connections
from .key_file import (
    add_key as add_key,
    digest as digest,
    new_key as new_key,
    read_keys as read_keys,
    read_rows as read_rows,
    remove_key as remove_key,
)
from .refusals import error_handlers as error_handlers, send_refusal as send_refusal
