"""Other engines, driven through their own Python interfaces and timed as a caller sees them.

engines.py has an adapter of each. It runs in a process of its own (child.py), under the Python that
has the engine; compare.py asks. A new engine is one adapter and one entry in `KINDS`."""
