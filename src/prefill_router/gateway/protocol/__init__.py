"""Reading requests: their bytes, what they ask for, and what answering them needs."""
