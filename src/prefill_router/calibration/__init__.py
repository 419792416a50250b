"""Calibration: from a predictor's scores to probabilities that hold."""
