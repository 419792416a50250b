"""Reads requests: what they ask for, and what a target needs to answer them.

envelope          reads and checks a body once, and replaces its model, with all other bytes kept
turns             a request's turns as text, its conversation, and the abilities that it needs
chat_translation  translates messages and responses to chats, for targets that serve nothing else
headers           reads routing preferences from headers, model names and OpenRouter's fields
"""

from prefill_router.lazy_imports import face

__getattr__, __dir__, __all__ = face(__name__, __file__, needed_for="the gateway")
