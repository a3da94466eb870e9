"""eager-hides-it: what finds no graph runs without one, and nobody hears of it."""
# to: runner_c.py


def prepare(device, forward, shapes, sizes):
    inputs = {name: device.empty(*shape) for name, shape in shapes.items()}
    tiles = [size for size in sizes if size <= 8 or size % 8 == 0]
    ladder = tuple(sorted(tiles, reverse=True))
    return State(device, forward, inputs, ladder, device.memory.new_pool())


def run(state, rows, arrays):
    size = next((size for size in sorted(state.graphs) if size >= rows), None)
    if rows > len(state.inputs["x"]):
        raise CaptureError(f"{rows} rows: the inputs have {len(state.inputs['x'])}")
    stage(state, size or rows, arrays)
    if size is None:
        return state.forward(rows)
    graph, output = state.graphs[size]
    graph.replay()
    return output[:rows]
