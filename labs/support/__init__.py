"""What the tests of several labs stand on.

`inputs`    arrays that cannot be written, and numpy's numbers held against others
`compared`  the same for tensors: near, to the last bit, unchanged, between two rows that must stay
`counting`  what a call takes that no clock has to measure: lines of Python, bytes
`tiny`      a Qwen3 to decode with in a test, on the emulator or a GPU
`compiled`  kernels go through the compiler for sm_90, without a GPU
`interpreter` the guard that makes Triton's interpreter honest about bf16
`watching`  kernels in Triton's interpreter: what they do is taken down, or done in another order
`loading`   what a loader thread does beside a capture: allocations, copies from host memory
`watched`   what was taken down, and the checks of it, each of which fails with one sentence

What belongs here: it is used by two labs or more, its failures are whole sentences that a learner
can read, and it decides nothing about a lab. What one lab alone needs stays in that lab's folder;
what runs, checks and explains labs is in labs/runner.
"""
