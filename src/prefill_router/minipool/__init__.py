"""A pool of tiny language models that ships with the package."""
