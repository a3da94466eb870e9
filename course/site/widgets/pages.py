"""What the widget of the page table shows: four requests and twelve blocks, as the engine's own
pools hand them out, with prefixes shared and without, and as rows of the longest length.

In:  nothing. Out: for each way the moments of one little day, each with its tables. The texts
begin with the same SYSTEM tokens; JavaScript only draws.
"""

from __future__ import annotations

from typing import Any

from mini_engine.engine.batch import Request, RequestState
from mini_engine.engine.blocks import BlockPool, OutOfBlocks
from mini_engine.engine.prefix_cache import SharingPool

BLOCKS, SIZE, LONGEST = 13, 4, 24  # the null block included; tokens of a block; of a padded row
SYSTEM = 8  # first tokens, which all texts have in common
PROMPTS = {"Ann": 11, "Bob": 14, "Cem": 9, "Dora": 13}
DAY = (  # who does what: comes with a prompt, writes so many tokens, goes
    ("Ann", "comes", 0), ("Bob", "comes", 0), ("Ann", "writes", 3), ("Cem", "comes", 0),
    ("Bob", "writes", 3), ("Ann", "goes", 0), ("Dora", "comes", 0), ("Cem", "writes", 3),
    ("Bob", "goes", 0),
)  # fmt: skip
WAYS = {"paged": "paged", "shared": "paged, prefixes shared", "padded": "a row for the longest"}


def pages() -> dict[str, Any]:
    """The state of the widget."""
    return {
        "ways": [{"title": title, "moments": moments(way)} for way, title in WAYS.items()],
        "blocks": BLOCKS, "size": SIZE, "way": 0, "moment": 0,
    }  # fmt: skip


def moments(way: str) -> list[dict[str, Any]]:
    """After each event: what was said, each request's table and tokens, and who was refused."""
    pool = SharingPool(BLOCKS, SIZE) if way == "shared" else BlockPool(BLOCKS, SIZE)
    states: dict[str, RequestState] = {}
    refused: list[str] = []
    found = []
    for who, does, count in DAY:
        told = f"{who} {does}" + (f" {count} tokens" if count else "")
        if who in refused:
            told += ", but is still waiting"
        elif does == "goes":
            pool.free(who)
            del states[who]
            told += ": the blocks are free again"
        else:
            state = states.get(who) or RequestState(Request(who, text(who), 16))
            state.output += [1000 + len(state.output) + i for i in range(count)]
            hit = pool.look_up(who, state) if does == "comes" and way == "shared" else 0  # type: ignore[union-attr]
            held = len(pool.block_table(who))
            try:
                table = pool.allocate(who, LONGEST if way == "padded" else state.num_tokens)
                states[who] = state
                new = len(table) - max(held, hit // SIZE)
                told += f" with {state.num_tokens} tokens" if does == "comes" else ""
                told += f": {hit} are found in the cache" if hit else ""
                told += f": {new} new block{'s' * (new > 1)}" if new else ": no new block"
            except OutOfBlocks:  # in this day only where somebody comes
                refused.append(who)
                told += ": too few blocks are free, so the request has to wait"
        tables = [
            {"who": name, "table": list(pool.block_table(name)), "tokens": state.num_tokens}
            for name, state in states.items()
        ]
        slots = SIZE * len({block for row in tables for block in row["table"]})
        needed = sum(row["tokens"] for row in tables)
        found.append({"told": told, "tables": tables, "slots": slots, "needed": needed})
    return found


def text(who: str) -> list[int]:
    """The same first tokens for all, then one's own."""
    own = 100 * (1 + list(PROMPTS).index(who))
    return [*range(SYSTEM), *range(own, own + PROMPTS[who] - SYSTEM)]
