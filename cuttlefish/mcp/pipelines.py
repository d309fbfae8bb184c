"""A pipeline as a skill."""
