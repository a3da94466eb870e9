"""What your functions read from start-ups and from a saved run, in the formats of vLLM 0.33."""

from __future__ import annotations

import json
from pathlib import Path

from labs.lab16_vllm.vllm_run import (
    VARIANTS,
    Setup,
    captured_graphs,
    expected_graphs,
    latency,
    read_startup,
    serve_command,
)
from labs.lab16_vllm.written_logs import DOWNGRADED, NO_PIECES, bar, setting, start_up
from mini_engine.dispatch.default_ladder import default_capture_sizes

SETUP = Setup()
LADDER = list(default_capture_sizes(SETUP.max_num_seqs, SETUP.max_num_batched_tokens))
RUNS = Path(__file__).parent / "results_vllm_0_33.json"
PRACTICE = bar("PIECEWISE", 19) + bar("FULL", 2)
LOGS = {  # what: (mode asked for, lines before the config, lines after it)
    "as it comes": ("FULL_AND_PIECEWISE", "", PRACTICE + bar("PIECEWISE", 19) + bar("FULL", 11)),
    "older runner": (
        "FULL_AND_PIECEWISE",
        setting("NONE"),
        bar("mixed prefill-decode, PIECEWISE", 19) + bar("decode, FULL", 11),
    ),
    "no full attention": ("FULL_AND_PIECEWISE", "", DOWNGRADED + bar("PIECEWISE", 19) * 2),
    "no pieces either": ("FULL_AND_PIECEWISE", "", DOWNGRADED + NO_PIECES),
    "broken off": ("PIECEWISE", "", bar("PIECEWISE", 19) + bar("PIECEWISE", 19, 7)),
}


def main() -> None:
    common = set.intersection(*(set(serve_command(SETUP, variant)) for variant in VARIANTS))
    for variant, what in VARIANTS.items():
        switches = [word for word in serve_command(SETUP, variant) if word not in common]
        print(f"{variant:9} {' '.join(switches) or '-':26} {what}")
    print()
    for what, (asked, earlier, later) in LOGS.items():
        log = start_up("VLLM_COMPILE", asked, LADDER[::-1], later, other=[3, 5], earlier=earlier)
        start = read_startup(log)
        sizes = start.capture_sizes
        ladder = f"{len(sizes)} sizes, {sizes[0]} to {sizes[-1]}" if sizes else "no sizes"
        print(f"{what}: vLLM {start.version} asked for {asked}, runs {start.cudagraph_mode}")
        expected = expected_graphs(sizes, start.cudagraph_mode, SETUP.max_num_seqs)
        try:
            print(f"  {ladder}; captured {captured_graphs(log)}, expected {expected}")
        except ValueError:
            print(f"  {ladder}; the capture did not end, expected {expected}")
    print()
    for name, result in json.loads(RUNS.read_text(encoding="utf-8")).items():
        if name == "_meta":
            continue
        found = latency(result)
        print(
            f"{name:24} {found.gaps:3} gaps: mean {found.mean_itl_ms:6.3f} ms, p50 "
            f"{found.median_itl_ms:6.3f}, p99 {found.p99_itl_ms:7.3f}; TPOT "
            f"{found.mean_tpot_ms:6.3f}; {found.tokens_per_gap:.2f} tokens a gap"
        )


if __name__ == "__main__":
    main()
