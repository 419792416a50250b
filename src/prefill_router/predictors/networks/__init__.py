"""Predictors with small networks of their own; importing them doesn't load torch, fitting does."""
