"""The labs: files of the engine with holes in them. `python -m labs` says where you stand."""
