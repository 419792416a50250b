"""Routes each request to the language model that should answer it."""
