"""Start-up logs in the format of vLLM 0.33, put together line by line.

The config is what vLLM 0.33's `CompilationConfig.__repr__` printed; the frame around it is from
`VllmConfig.__str__`, `EngineCore.__init__` and `_FORMAT` in vllm/logger.py; bars are tqdm's, with
the words of `CudaGraphManager.capture` and, for the older runner, of `_capture_cudagraphs`.
"""

from __future__ import annotations

VALUES = {
    "NONE": "0", "PIECEWISE": "1", "FULL": "2", "FULL_DECODE_ONLY": "(2, 0)",
    "FULL_AND_PIECEWISE": "(2, 1)",
}  # fmt: skip
COMPILATION = ["NONE", "STOCK_TORCH_COMPILE", "DYNAMO_TRACE_ONCE", "VLLM_COMPILE"]


def config_line(
    mode: str,
    cudagraph_mode: str,
    sizes: list[int],
    other_sizes: list[int] | None = None,
    version: str = "0.33.0",
) -> str:
    config = (
        f"{{'mode': <CompilationMode.{mode}: {COMPILATION.index(mode)}>, "
        "'debug_dump_path': None, 'cache_dir': '', 'compile_cache_save_format': 'binary', "
        "'backend': 'inductor', 'custom_ops': ['none'], 'ir_enable_torch_wrap': None, "
        "'splitting_ops': ['vllm::unified_attention_with_output', 'vllm::mamba_mixer2'], "
        "'compile_mm_encoder': False, 'cudagraph_mm_encoder': False, "
        "'encoder_cudagraph_token_budgets': [], "
        "'encoder_cudagraph_max_vision_items_per_batch': 0, "
        "'encoder_cudagraph_max_frames_per_batch': None, 'cudagraph_decoder_replay': True, "
        f"'decoder_replay_cudagraph_capture_sizes': {other_sizes or []}, "
        "'decoder_replay_trim_threshold': 768, 'compile_sizes': [], "
        "'compile_ranges_endpoints': [2048], 'inductor_compile_config': "
        "{'enable_auto_functionalized_v2': False, 'combo_kernels': True}, 'inductor_passes': {}, "
        f"'cudagraph_mode': <CUDAGraphMode.{cudagraph_mode}: {VALUES[cudagraph_mode]}>, "
        f"'cudagraph_num_of_warmups': 1, 'cudagraph_capture_sizes': {sizes}, "
        "'cudagraph_copy_inputs': False, 'cudagraph_specialize_lora': True, "
        "'use_inductor_graph_partition': None, 'pass_config': {}, "
        f"'max_cudagraph_capture_size': {max(sizes, default=0)}, 'dynamic_shapes_config': "
        "{'type': <DynamicShapesType.BACKED: 'backed'>, 'evaluate_guards': False, "
        "'assume_32_bit_indexing': False}, 'local_cache_dir': None, 'fast_moe_cold_start': None, "
        "'static_all_moe_layers': []}"
    )
    return (
        "(EngineCore pid=4711) INFO 11-21 09:00:07 [core.py:134] Initializing a V1 LLM engine "
        f"(v{version}) with config: model='Qwen/Qwen3-0.6B', speculative_config=None, "
        "tokenizer='Qwen/Qwen3-0.6B', dtype=torch.bfloat16, max_seq_len=4096, "
        f"tensor_parallel_size=1, enforce_eager={mode == 'NONE'}, kv_cache_dtype=auto, seed=0, "
        f"enable_prefix_caching=False, compilation_config={config}, kernel_config=None\n"
    )


def bar(words: str, total: int, done: int | None = None, end: str = "\r") -> str:
    """A progress bar as tqdm prints it, from its first state to its last."""
    done = total if done is None else done
    states = [0, *(i for i in range(3, total, 3) if i < done), done]
    told = [
        f"Capturing CUDA graphs ({words}): {100 * i / max(total, 1):3.0f}%|{'█' * (i // 6):10}| "
        f"{i}/{total} [00:0{i % 9}<00:01, 29.65it/s]"
        for i in states
    ]
    return end.join(told) + "\n"


def start_up(
    mode: str,
    cudagraph_mode: str,
    sizes: list[int],
    later: str = "",
    other: list[int] | None = None,
    earlier: str = "",
) -> str:
    before = (
        "(APIServer pid=4700) INFO 11-21 09:00:00 [api_server.py:1991] vLLM API server "
        "version 0.33.0\n(APIServer pid=4700) INFO 11-21 09:00:01 [model.py:744] Resolved "
        "architecture: Qwen3ForCausalLM\n(APIServer pid=4700) INFO 11-21 09:00:01 "
        "[vllm.py:1997] Overriding cudagraph_mode from FULL to FULL_AND_PIECEWISE.\n"
    )
    after = "(APIServer pid=4700) INFO:     Application startup complete.\n"
    return before + earlier + config_line(mode, cudagraph_mode, sizes, other) + later + after


DOWNGRADED = (
    "(EngineCore pid=4711) WARNING 11-21 09:00:14 [compilation.py:1446] "
    "CUDAGraphMode.FULL_AND_PIECEWISE is not supported with SomeMetadataBuilder backend (support: "
    "AttentionCGSupport.NEVER); setting cudagraph_mode=PIECEWISE because attention is compiled "
    "piecewise\n"
)
NO_PIECES = (
    "(EngineCore pid=4711) WARNING 11-21 09:00:15 [compilation.py:1474] Cudagraph mode PIECEWISE "
    "requires piecewise capture, but the loaded model provides neither a compiled submodule nor "
    "breakable CUDA graphs. Overriding to NONE.\n"
)
LAYOUT = (  # later, and about something else; the words are ours
    "(EngineCore pid=4711) INFO 11-21 09:00:16 Setting KV cache layout to HND.\n"
)


def setting(mode: str) -> str:
    return DOWNGRADED.replace("setting cudagraph_mode=PIECEWISE", f"setting cudagraph_mode={mode}")


def overriding(mode: str) -> str:
    return NO_PIECES.replace("Overriding to NONE", f"Overriding to {mode}")


def given(mode: str, cudagraph_mode: str, sizes: list[int]) -> str:
    """The server's line of the options that it was given, printed before any default is in it."""
    return (
        "(APIServer pid=4700) INFO 11-21 09:00:00 [utils.py:328] non-default args: "
        "{'model_tag': 'Qwen/Qwen3-0.6B', 'max_num_seqs': 64, 'compilation_config': "
        f"{{'mode': <CompilationMode.{mode}: {COMPILATION.index(mode)}>, "
        "'debug_dump_path': None, 'cache_dir': '', 'backend': 'inductor', 'splitting_ops': None, "
        "'compile_sizes': None, 'inductor_passes': {}, "
        f"'cudagraph_mode': <CUDAGraphMode.{cudagraph_mode}: {VALUES[cudagraph_mode]}>, "
        f"'cudagraph_num_of_warmups': 0, 'cudagraph_capture_sizes': {sizes}, "
        "'cudagraph_copy_inputs': False, 'max_cudagraph_capture_size': None}}\n"
    )
