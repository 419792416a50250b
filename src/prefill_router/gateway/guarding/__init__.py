"""Guarding: keys of clients, their limits, and what no request may do."""

from prefill_router.gateway.guarding.address import Hosts, check_listen
from prefill_router.gateway.guarding.guard import FREE_BODY, KEY, Guard, address_of
from prefill_router.gateway.guarding.key_file import read_keys
from prefill_router.gateway.guarding.keys import ClientKey, ClientKeys
from prefill_router.gateway.guarding.limits import KeyLimits, Slots, key_budgets
from prefill_router.gateway.guarding.replies import send_refusal
from prefill_router.gateway.guarding.room import Room
from prefill_router.gateway.guarding.unknown import error_handlers

__all__ = [
    "FREE_BODY",
    "KEY",
    "ClientKey",
    "ClientKeys",
    "Guard",
    "Hosts",
    "KeyLimits",
    "Room",
    "Slots",
    "address_of",
    "check_listen",
    "error_handlers",
    "key_budgets",
    "read_keys",
    "send_refusal",
]
