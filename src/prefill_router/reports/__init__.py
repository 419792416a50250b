"""Reports on several routers: compared on one split, and beside the paper's numbers."""
