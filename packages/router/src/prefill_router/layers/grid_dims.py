"""The numbers of components that a grid search tries, as in the paper."""

GRID_DIMS = (50, 100, 150, 200, 300)
