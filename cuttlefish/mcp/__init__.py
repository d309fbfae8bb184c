"""Pipelines and Python functions as tools of an agent, over the Model Context Protocol."""
