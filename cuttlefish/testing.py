"""For testing blocks under ordinary CPython."""
