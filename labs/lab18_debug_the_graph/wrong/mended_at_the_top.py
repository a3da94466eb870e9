"""mended-at-the-top: adds the largest size, at which the server died; the others stay left out."""
# to: runner_c.py


def prepare(device, forward, shapes, sizes):
    inputs = {name: device.empty(*shape) for name, shape in shapes.items()}
    tiles = {size for size in sizes if size <= 8 or size % 8 == 0} | {max(sizes)}
    ladder = tuple(sorted(tiles, reverse=True))
    return State(device, forward, inputs, ladder, device.memory.new_pool())
