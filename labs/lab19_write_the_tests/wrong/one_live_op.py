"""one-live-op: one op runs live, and is seen to; two side by side are not tried."""


def live_ops_run_live_and_all_of_them(graphs):
    service = Service(graphs, SIZES, live=("recall",))
    for number in (3, 1, 8, 5):
        since, said = len(service.device.timeline), users(number)
        assert service.step(said) == service.expected(said)
        ran = [(e.name, e.category) for e in service.device.timeline[since:] if e.lane == "GPU"]
        wanted = [(op, "kernel" if op == "recall" else "node") for op in OPS]
        assert [event for event in ran if event[1] != "copy"] == wanted
