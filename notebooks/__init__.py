"""The notebooks, committed with their outputs. `python -m notebooks` runs them again."""
