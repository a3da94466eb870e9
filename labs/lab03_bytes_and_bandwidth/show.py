"""Your account of the shipped checkpoint against the file, and the floors that follow from it."""

from labs.lab03_bytes_and_bandwidth.decode_bytes import decode_bytes, tensor_bytes
from mini_engine.engine.generation import SHIPPED
from mini_engine.model.checkpoint import EMBED, FINAL_NORM, LM_HEAD, layer_parts, tensor_shapes
from mini_engine.model.config import ModelConfig, named_shape
from mini_engine.step.capacity import fit, floor_ms
from mini_engine.step.cards import load_spec

WIDTH = 40  # characters of the whole file
GIB = 2**30


def main() -> None:
    config, path = ModelConfig.from_folder(SHIPPED), SHIPPED / "model.safetensors"
    file_bytes = path.stat().st_size
    with path.open("rb") as file:
        head_bytes = 8 + int.from_bytes(file.read(8), "little")  # its length, then the list
    taken = tensor_bytes(config)
    items = {"head of the file": float(head_bytes)}
    for name in (EMBED, LM_HEAD):
        items[name] = taken.get(name, 0)
    for field, parts in layer_parts(config, 0).items():
        items[f"4 x {field}"] = config.num_layers * sum(taken.get(part, 0) for part in parts)
    items[FINAL_NORM] = taken.get(FINAL_NORM, 0)
    print(f"{path.name}: {file_bytes:,} bytes; your account of it:\n")
    for name, nbytes in items.items():
        print(f"{name:26} {nbytes:11,.0f}  {'█' * round(WIDTH * nbytes / file_bytes)}")
    missing = file_bytes - head_bytes - sum(taken.values())
    print(f"{len(tensor_shapes(config))} tensors; bytes of the file without a name: {missing:,.0f}")

    h200, small = load_spec("h200"), named_shape("qwen3-0.6b")
    print("\nQwen3-0.6B, what a step must read, and its floor on an H200 (predicted)")
    for batch, context in ((1, 512), (8, 512), (64, 8192)):
        for quant in ("bf16", "int4"):
            weights, cache = decode_bytes(small, [context] * batch, quant)
            ms = floor_ms(weights + cache, h200.bandwidth_gb_s)
            print(f"{batch:3} x {context:5,} {quant}: weights {weights / 1e9:6.3f} GB, "
                  f"cache {cache / 1e9:6.3f} GB, {ms:6.3f} ms")  # fmt: skip
    a_token = decode_bytes(small, [1]).cache
    room = fit(8 * GIB, context=8192, batch=4, per_token=a_token, per_request=0)
    print(f"8 GiB for requests of 8,192 tokens: {room.max_batch} of them, "
          f"or one of {room.max_context:,} tokens")  # fmt: skip


if __name__ == "__main__":
    main()
