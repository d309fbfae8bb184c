"""The pipeline room: what authors write, checked before it runs, and carried out as a graph."""
