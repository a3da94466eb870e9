"""every-size-twice: expects a FULL graph for every size, also where no decode batch is so large."""


def expected_graphs(capture_sizes, cudagraph_mode, max_num_seqs):
    modes = {
        "NONE": [],
        "PIECEWISE": ["PIECEWISE"],
        "FULL": ["FULL"],
        "FULL_DECODE_ONLY": ["FULL"],
        "FULL_AND_PIECEWISE": ["PIECEWISE", "FULL"],
    }[cudagraph_mode]
    return {mode: len(capture_sizes) for mode in modes if capture_sizes}
