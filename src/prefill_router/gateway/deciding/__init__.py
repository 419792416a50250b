"""Deciding: which targets may answer, which of them does, and why."""
