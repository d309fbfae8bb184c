"""The models folder: what is in it, what can be had, and fetching it."""
