"""An example of a distribution that extends prefill-router."""
