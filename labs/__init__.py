"""The labs: files of the engine with holes in them. `python -m labs` tells you where you stand."""
