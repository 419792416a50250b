"""Requests as they come: their bytes, what they ask for, and what answering them needs.

envelope          a request's body, read once: checked, and what the encoder reads of it
json_splice       a JSON object with the place of each value; the same bytes for another model
turns             a request's turns as text, its conversation, and what a target must be able to do
headers           what headers and the model's name ask of the decision, and which headers go on
"""

from prefill_router.lazy_imports import face

__getattr__, __dir__, __all__ = face(__name__, __file__, needed_for="the gateway")
