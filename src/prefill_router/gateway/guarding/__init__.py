"""Guarding: who may ask, from where, and how much."""
