"""A server on the step model: a trace of requests on the engine's own scheduler, in strides.

replay          the one simulator             request_trace   reads and makes traces
stride          many decode steps, summed     sizing          what of a card goes where
report          what is counted on the way    metrics         percentiles of a stream
ladder_cost     what graphs cost, and save    static_batches  a server without pages, to compare
"""
