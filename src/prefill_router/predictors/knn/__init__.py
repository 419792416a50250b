"""Nearest neighbours as predictors: the share of votes, and the weighted mean of labels."""
