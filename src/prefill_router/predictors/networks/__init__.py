"""Predictors that train small networks, in NumPy."""
