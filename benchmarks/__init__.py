"""Speed, each figure as a ratio of two ways in one run."""
