"""A server on the step-cost model: replay a trace of requests, in strides.

request_trace   reads and makes traces        plan            what of a card goes where
simulate        the replay                    report          what is counted on the way
stride          many decode steps, summed     ladder_cost     what holding graphs costs
decode_clock    when requests end and grow    ladder_saving   what a better ladder saves
by_scheduler    the replay where requests share blocks or are swapped
costs           what it asks about time
packed_requests the requests of a long trace, at 24 bytes each
"""
