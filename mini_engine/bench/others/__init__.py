"""Other engines, driven through their own Python interfaces and timed as a caller sees them.

Each `*_engine.py` is an adapter: `Session(job)` loads the model, and its `lap(prompts)` runs one
batch and says when which token arrived. It runs in a process of its own (child.py), under the
Python that has the engine; compare.py asks. A new engine is one adapter and one entry in `KINDS`.
"""
