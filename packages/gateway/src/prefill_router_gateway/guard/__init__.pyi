from .admission import (
    HELD_BODY as HELD_BODY,
    KEY as KEY,
    PAGE_HEADERS as PAGE_HEADERS,
    PLACE as PLACE,
    Guard as Guard,
    SharedPlace as SharedPlace,
    address_of as address_of,
)
from .body_budget import BodyBudget as BodyBudget
from .client_keys import (
    ClientKey as ClientKey,
    ClientKeys as ClientKeys,
    key_budgets as key_budgets,
)
from .host_names import HostNames as HostNames, check_listen as check_listen
from .http_protocol import guarded_config as guarded_config, open_connections as open_connections
from .key_file import (
    add_key as add_key,
    digest as digest,
    new_key as new_key,
    read_keys as read_keys,
    read_rows as read_rows,
    remove_key as remove_key,
)
from .key_limits import (
    ROUNDING as ROUNDING,
    KeyLimits as KeyLimits,
    RequestSlots as RequestSlots,
    too_many_at_once as too_many_at_once,
    too_many_per_minute as too_many_per_minute,
)
from .refusals import error_handlers as error_handlers, send_refusal as send_refusal
