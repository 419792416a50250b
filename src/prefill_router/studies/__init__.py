"""Studies: seeds, shift, learning curves, and whether a router is worth having."""
