"""Predictors that train small networks; importing them doesn't load torch, fitting does."""
