"""Serve a trace by several simulated servers: which of them, how many, behind which router?

  python -m mini_engine fleet --replicas 8 --router prefix --shared-prefix 512
  python -m mini_engine fleet --spec 2xh100+1xl40s --slo ttft=500,itl=30
  python -m mini_engine fleet --replicas 4 --prefill 1 --link 50
  python -m mini_engine fleet --replicas 6 --autoscale 32
  python -m mini_engine fleet --search --spec h100,l40s --replicas 4 --slo ttft=500,itl=30 \\
      --price h100=3,l40s=1 -o out/fleet.png

A request is content when its TTFT and its mean ITL are within --slo (in ms). --prefill replicas
compute prompts alone, and send K and V over a link. --autoscale begins with one replica and starts
others, which serve after booting, reading their weights and capturing their graphs. --search tries
every set of up to --replicas cards, behind every --router, in every --mode, and names the cheapest
that keeps --content of the requests content; a search that was cut goes on. Several processes, and
Ray's (--on ray, or ray://HOST:PORT), need `pip install .[fleet]`.
"""

import math
import os
import re
import time
from functools import partial
from pathlib import Path

from mini_engine.cli import options
from mini_engine.cli.terminal import Args, Columns, Found, Screen, form, table
from mini_engine.fleet import fleet, sweep
from mini_engine.fleet.fleet import ROUTERS
from mini_engine.fleet.sweep import KEYS, cards_of, cheapest
from mini_engine.step.cards import load_spec


def named_numbers(word: str) -> dict[str, float]:
    read = options.between(0, 1e12)
    return {name: read(value) for name, _, value in (p.partition("=") for p in word.split(","))}


routers = partial(options.words, known=ROUTERS)
modes = partial(options.words, known=options.SHARED["mode"]["--mode"][0])
SHARED = "trace shape spec limits"
OPTIONS: options.Rows = {
    "--replicas N": (options.between(1, 10_000, int), 2, "of --spec; with --search at most"),
    "--router NAME": (routers, ["least"], f"{', '.join(ROUTERS)} (default: least)"),
    "--mode NAME": (modes, options.MODES[-1:], "as of `serve` (default: FULL_AND_PIECEWISE)"),
    "--prefill N": (options.counted, 0, "replicas for prompts only"),
    "--link GB/S": (options.between(1e-3, 1e6), 50.0, "from them to the others"),
    "--autoscale N": (options.counted, 0, "requests a replica to aim at (default: all serve)"),
    "--boot S": (options.between(0, 1e5), 30.0, "of a cold start, an assumption"),
    "--load GB/S": (options.between(1e-3, 1e6), 2.0, "of reading weights, an assumption"),
    "--prefixes N": (options.positive, 1, "different ones"),
    "--slo ttft=MS,itl=MS": (named_numbers, {}, "what makes a request content (default: anything)"),
    "--price CARD=X,...": (named_numbers, {}, "an hour (default: 1)"),
    "--search": (bool, False, "the cheapest set of cards that keeps users content"),
    "--content 0..1": (options.share, 0.99, "of the requests, in a search"),
    "--table FILE": (options.written(".csv"), Path("out/fleet.csv"), "of a search"),
    "--on PLACE": (str, "processes", "ray, or ray://HOST:PORT"),
    "--jobs N": (options.positive, None, "processes (default: one a core)"),
    "-o --output FILE": (options.picture, None, "cost and p99 of TTFT, in a search")}  # fmt: skip
LINES = {  # of one fleet
    "requests served": "{0.requests:,}", "refused": "{0.refused:,}", "of each replica": "{by}",
    "TTFT p50 / p99": "{0.ttft_p50_us:ms} ms / {0.ttft_p99_us:ms} ms",
    "ITL p50 / p99": "{0.itl_p50_us:ms} ms / {0.itl_p99_us:ms} ms",
    "throughput": "{0.tokens_per_s:,.0f} tokens/s",
    "content": "{0.content_share:.1%} of all requests",
    "goodput": "{0.goodput_per_s:.2f} requests/s",
    "cost": "{0.cost_per_hour:.2f} an hour, {0.most_replicas} replicas at most",
    "cold starts": "{0.cold_starts}, of {0.cold_start_us:s} s",
    "prefix cache: hit rate": "{0.prefix_hit_rate:.1%}"}  # fmt: skip
FLEETS: Columns = {  # of a search
    "<cards": "{0[cards]}", "<router": "{0[router]}", "<mode": "{0[mode]}",
    "cost/h": "{0[cost_per_hour]:.2f}", "TTFT p99 ms": "{0[ttft_p99_us]:ms}",
    "ITL p99 ms": "{0[itl_p99_us]:ms}", "content": "{0[content_share]:.1%}"}  # fmt: skip


def run(args: Args, console: Screen) -> Found:
    if strange := {*args.slo} - {"ttft", "itl"}:
        raise ValueError(f"--slo {min(strange)}: expected ttft=MS,itl=MS, or one of them")
    if args.search and (args.prefill or args.autoscale):
        raise ValueError("--search looks for a set of cards: leave --prefill and --autoscale out")
    if not args.search and (len(args.router) * len(args.mode) > 1 or "," in args.spec):
        raise ValueError("several cards, routers or modes: --search tries them all")
    mixed, kinds = re.match(r"\d+x|.*\+", args.spec), options.words(args.spec)
    cards = cards_of(args.spec) if mixed else tuple(kinds[:1]) * args.replicas
    for card in {*(cards if mixed else kinds), *args.price}:
        load_spec(card)  # a wrong name is told before any work
    same = ("engine", "host", "prefill", "max_num_seqs", "max_num_batched_tokens")
    design = fleet.Design(
        args.shape, cards, mode=args.mode[0], router=args.router[0], link_gb_s=args.link,
        prefix_caching=args.shared_prefix > 0, scale_at=args.autoscale, boot_us=args.boot * 1e6,
        load_gb_s=args.load, slo_us=tuple(args.slo.get(n, math.inf) * 1e3 for n in ("ttft", "itl")),
        prices=tuple(sorted(args.price.items())), **{name: getattr(args, name) for name in same},
    )  # fmt: skip
    shared, began = (*options.shared_prefix(args), args.prefixes), time.perf_counter()
    if not args.search:
        with console.status("serving"):
            report = fleet.run(design, sweep.requests_of(str(args.trace), args.columns, shared))
        return {"design": design, **sweep.cell_of(design), **vars(report)}
    designs = sweep.designs_up_to(design, kinds, args.replicas, args.router, args.mode)
    job = sweep.Sweep(str(args.trace), designs, args.columns, shared)
    with console.status("serving") as status:
        jobs = args.jobs or os.cpu_count() or 1
        texts = sweep.sweep_to(args.table, job, on=args.on, jobs=jobs, tell=status.update)
    rows: list[Found] = [
        {name: cell if name in (*KEYS, "sweep", "error") else float(cell) if cell else None
         for name, cell in row.items()} for row in texts]  # fmt: skip
    wall_s, best = time.perf_counter() - began, cheapest(rows, args.content)
    if args.output:
        from mini_engine.plots.figures import fleet_costs

        points = [(row["cost_per_hour"], row["ttft_p99_us"] / 1e3,
                   row["content_share"] >= args.content, row["cards"])
                  for row in rows if row["ttft_p99_us"]]  # fmt: skip
        found = f"{best['cards']} is the cheapest that keeps" if best else "No set of cards keeps"
        what = f"{len(points)} fleets of {args.shape} on {args.trace.name}"
        fleet_costs(points, f"{found} {args.content:.0%} content", what, args.output)
    return {"rows": rows, "best": best, "wall_s": wall_s}


def show(r: Args, console: Screen) -> None:
    say = console.print
    if not r.search:
        how = f"{r.design.mode}, router {r.design.router}, predicted"
        say(f"{r.trace}: {r.shape} on {r.cards}, {how}")
        by = ", ".join(map(str, r.served_by[:16])) + ", …" * (len(r.served_by) > 16)
        for name, value in LINES.items():
            say(f"   {name:<24} {form(value, r, by=by)}")
        return
    done = [row for row in r.rows if row["ttft_p99_us"]]
    done.sort(key=lambda row: (-row["content_share"], row["cost_per_hour"]))
    say(table(FLEETS, done[:12]))
    for row in [row for row in r.rows if row["error"]][:3]:
        say(f"{row['cards']}: {row['error']}")
    if r.best:
        found = "{0[cards]}, router {0[router]}, {0[mode]}, {0[cost_per_hour]:.2f} an hour"
        say(f"the cheapest that keeps {r.content:.0%} content: {form(found, r.best)}")
    else:
        say(f"none of them keeps {r.content:.0%} content: more cards, or a laxer --slo")
    say(f"{len(r.rows)} fleets in {r.wall_s:.1f} s; the table: {r.table}")
