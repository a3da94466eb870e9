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
        self.graphs: dict[int, Graph | PiecewiseGraph] = {}
        self.outputs: dict[int, Buffer] = {}

    def rung_for(self, num_rows: int) -> int:
        """The smallest captured rung that holds `num_rows` rows."""
        return next(r for r in sorted(self.graphs) if r >= num_rows)
