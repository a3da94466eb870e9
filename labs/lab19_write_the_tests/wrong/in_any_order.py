"""in-any-order: all ran, live and in graphs, and the answers are right; the order must have been."""


def live_ops_run_live_and_all_of_them(graphs):
    for live in (("recall",), ("remember", "recall"), ("forget", "recall")):
        service = Service(graphs, SIZES, live=live)
        for number in (3, 1, 8, 5):
            since, said = len(service.device.timeline), users(number, says=number)
            assert service.step(said) == service.expected(said)
            ran = [(e.name, e.category) for e in service.device.timeline[since:] if e.lane == "GPU"]
            wanted = [(op, "kernel" if op in live else "node") for op in OPS]
            assert sorted(event for event in ran if event[1] != "copy") == sorted(wanted)
