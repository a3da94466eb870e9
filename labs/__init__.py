"""The labs: files of the engine with holes in them. `./lab` tells you where you stand."""
