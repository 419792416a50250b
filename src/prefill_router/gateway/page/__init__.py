"""The page that people look at, and the numbers behind it."""
