"""Your scheduler's timeline in too little memory, and the text that its blocks hold meanwhile."""

from mini_engine.dispatch.dispatcher import GraphDispatcher
from mini_engine.engine.batch import SchedulerLimits
from mini_engine.engine.engine import Engine
from mini_engine.engine.generation import SHIPPED, requests_for
from mini_engine.sim.device import Device
from mini_engine.sim.generate import Checkpoint, open_checkpoint
from mini_engine.sim.runner import SimRunner
from mini_engine.step.cards import load_spec

PROMPTS = ["Return the", "Raise an exception if the given file is not", "If the", "Create a new"]
MOST_STEPS = 72
ROOMY = SchedulerLimits(4, 8, 60, 4, 64)
TIGHT = SchedulerLimits(4, 8, 8, 4, 64)  # 7 blocks of 4 tokens, 8 tokens a step


def serve(checkpoint: Checkpoint, limits: SchedulerLimits, prompts: list[str]) -> dict[str, str]:
    """Timeline rows, and the text of each request, by name."""
    dispatcher = GraphDispatcher("NONE", [], limits.max_num_seqs)
    runner = SimRunner(
        Device(load_spec("h200")), checkpoint.config, checkpoint.weights, limits, dispatcher
    )
    engine = Engine(runner, limits, dispatcher)
    requests = requests_for(prompts, checkpoint.tokenizer, limits, 14)
    for request in requests:
        engine.submit(request)
    rows = {request.request_id: "" for request in requests} | {"blocks used": ""}
    texts = {}
    for _ in range(MOST_STEPS):
        record = engine.step()
        if record is None:
            break
        drawn = dict.fromkeys(rows, " ")
        drawn |= {lost.request_id: "x" for lost in record.batch.preempted}
        for entry in record.batch.entries:
            drawn[entry.request.request_id] = str(entry.query_len) if entry.is_prefill else "█"
        used = limits.num_blocks - 1 - engine.scheduler.pool.num_free
        drawn["blocks used"] = f"{used}"
        rows = {name: row + drawn[name] for name, row in rows.items()}
        for done in record.completions:
            texts[done.request_id] = checkpoint.tokenizer.decode(list(done.tokens))
    return rows | {f"text of {name}": text for name, text in texts.items()}


def main() -> None:
    checkpoint = open_checkpoint(SHIPPED)
    alone = [serve(checkpoint, ROOMY, [prompt]).get("text of prompt 1") for prompt in PROMPTS]
    made = serve(checkpoint, TIGHT, PROMPTS)
    print("four requests, 7 blocks of 4 tokens, 8 tokens a step; a column is a step")
    print("digit: tokens of a prompt   █ decode   x preempted\n")
    for name, row in made.items():
        if not name.startswith("text"):
            print(f"{name:>11} |{row}|")
    print()
    for number, (prompt, wanted) in enumerate(zip(PROMPTS, alone, strict=True), start=1):
        text = made.get(f"text of prompt {number}")
        same = "as alone" if text == wanted else "NOT as alone"
        print(f"{same:>12}: {' '.join(f'{prompt}{text}'.split())}")


if __name__ == "__main__":
    main()
