"""A check: the tests of a lab in a process that is watched, and what each failing one saw."""
