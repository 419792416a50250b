"""Forecasts: the router's encoder and predictor, in a process of their own."""
