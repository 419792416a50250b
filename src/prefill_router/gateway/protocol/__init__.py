"""Reads requests: what they ask for, and what a target needs to answer them.

envelope          reads and checks a body once; selects the text that the encoder reads
json_splice       locates values in a JSON object, to replace the model and keep all other bytes
turns             a request's turns as text, its conversation, and the abilities that it needs
openrouter        reads OpenRouter's routing fields and takes them out of a body
chat_translation  translates messages to chats, for targets that serve nothing else
headers           reads routing preferences from headers and model names; filters headers
"""

from prefill_router.lazy_imports import face

__getattr__, __dir__, __all__ = face(__name__, __file__, needed_for="the gateway")
