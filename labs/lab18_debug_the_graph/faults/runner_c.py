"""nano-vllm with max_num_seqs=20: no rung above 16, and `next()` without a default."""


class GraphRunner:
    def __init__(
        self,
        device: Device,
        forward: Forward,
        inputs: StaticInputs,
        sizes: Sequence[int],
        *,
        share_pool: bool = True,
        pool: int | None = None,
    ) -> None:
        """`forward(n)` reads `inputs.view(n)` and returns its output, n rows or fewer.

        Of `sizes` those are captured that kernels are fast at: up to 8 all, then multiples of 8.
        `pool` continues a pool that other graphs use; `share_pool=False` gives every rung its own,
        which only a lesson wants.
        """
        self.device, self.forward, self.inputs = device, forward, inputs
        self.ladder = CaptureLadder([size for size in sizes if size <= 8 or size % 8 == 0])
        self.share_pool = share_pool
        self.pool = device.memory.new_pool() if pool is None else pool
        self.graphs: dict[int, Graph | SegmentedGraph] = {}
        self.outputs: dict[int, Buffer] = {}

    def run(self, num_rows: int, arrays: Mapping[str, np.ndarray]) -> Buffer:
        """Pad to the rung, copy in, replay, and give the output's first `num_rows` rows.

        The output stands in the graph's memory: the next replay overwrites it. Read it first.
        """
        rung = next(r for r in sorted(self.graphs) if r >= num_rows)
        self.inputs.stage(rung, arrays)
        self.graphs[rung].replay()
        return self.outputs[rung][: min(num_rows, len(self.outputs[rung]))]
