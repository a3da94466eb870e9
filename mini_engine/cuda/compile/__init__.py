"""A compile backend of our own: what stands between `torch.compile` and the graphs of a decoder.

In:  the plain model (`cuda/model.py`). Out: `CompiledModel`, which computes the same in pieces,
     with attention live between them, so that `PiecewiseGraphRunner` can capture them.

    file          step                                                           first start  later
    marker.py     attention becomes one node, which Dynamo does not look into    yes          -
    guards.py     what a trace may rely on: all sizes from 2 up are one class    yes          yes
    passes.py     add and RMSNorm, nine nodes, become one op                     yes          -
    split.py      the graph is cut at each attention                             yes          -
    pieces.py     each piece is compiled, equal ones once                        yes          load
    written.py    a graph as JSON, and back                                      write        read
    cache.py      keys, and files that are what they say                         write        read
    backend.py    all of it in order: the backend, and the model that uses it    yes          yes

vLLM's is `vllm/compilation/`, under the same steps; `course/deeper/a-compile-backend.md` compares.
"""
