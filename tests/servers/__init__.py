"""Servers and model files that the tests of inference make for themselves."""
