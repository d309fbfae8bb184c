"""Language models: the seam (`backend.py`), opening one by name (`registry.py`), the models folder (`models/`), providers."""
