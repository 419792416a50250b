"""Serving: the pieces joined, one request after another, until the process is asked to end."""
