"""Other engines, driven through their own Python interfaces and timed as a caller sees them.

Each `*_engine.py` is an adapter: `start(job)` loads the model, and returns something with
`lap(prompts)`, which runs one batch and says when which token arrived. It runs in a process of its
own (child.py), under any Python that has the engine; compare.py asks. A new engine is one adapter
and one entry in `KINDS`."""
