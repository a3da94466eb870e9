"""`sglang.Engine`, whose `generate(stream=True)` yields one request's piece after the other.

`INCREMENTAL`: "output_ids" holds the new tokens, as some versions have it, and not all. `TOGETHER`:
the loop comes late every other time, and hands over two tokens as one piece.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from tests.support.other_engines.clockwork import Request, Steps, load
from tests.support.other_engines.sglang.srt.server_args import ServerArgs

INCREMENTAL = False
TOGETHER = False


class Engine:
    def __init__(self, **kwargs: Any) -> None:
        load()
        self.server_args = ServerArgs(**kwargs)
        args = self.server_args  # where nobody says so, a small GPU gets graphs of few rows
        assert args.cuda_graph_max_bs_decode == args.max_running_requests
        self.steps = Steps(self.server_args.disable_cuda_graph)

    def generate(
        self,
        prompt: list[str] | str | None = None,
        sampling_params: dict[str, Any] | None = None,
        input_ids: list[list[int]] | None = None,
        stream: bool = False,
    ) -> Iterator[dict[str, Any]]:
        assert prompt is None
        assert input_ids is not None
        assert sampling_params is not None
        assert stream
        assert self.server_args.disable_radix_cache  # it is on where nobody says so
        assert set(sampling_params) == {"temperature", "max_new_tokens", "ignore_eos"}
        assert (sampling_params["temperature"], sampling_params["ignore_eos"]) == (0.0, True)
        return self._pieces(input_ids, sampling_params["max_new_tokens"])

    def _pieces(self, prompts: list[list[int]], most: int) -> Iterator[dict[str, Any]]:
        batch = [Request(index, prompt, most) for index, prompt in enumerate(prompts)]
        self.steps.waiting += batch
        self.steps.prompts(len(batch))
        told = [0] * len(batch)
        for count in range(1, most + 1):
            if count > 1:
                self.steps.decode()
            self.steps.write(batch)
            if TOGETHER and count % 2 == 0 and count < most:
                continue
            for index, one in enumerate(batch):
                ids = one.new[told[index] :] if INCREMENTAL else list(one.new)
                told[index] = len(one.new)
                meta = {"id": f"r{index}", "completion_tokens": len(one.new)}
                yield {"index": index, "output_ids": ids, "meta_info": meta}
