"""Stand-ins for other engines: this folder on the path makes `import vllm` find one.

Their names, arguments and types are the engines' own, as far as the adapters use them, and strict:
an unknown keyword is a TypeError. They compute nothing. Their tokens follow a rule, and their time
is a clock that moves when a step runs (clockwork.py).
"""
