"""Another suite: a script of steps for each claim, compared at once, with errors caught by hand."""

import random
from itertools import pairwise


def every_batch_is_answered_as_the_host_computes_it(graphs):
    rng, service = random.Random(3), Service(graphs, SIZES)
    told, right = [], []
    for step in range(60):
        chosen = rng.sample(range(1, SLOTS), rng.randint(1, 8))
        said = {slot: float(step - slot) for slot in chosen}
        told.append(service.step(said))
        right.append(service.expected(said))
    assert told == right


def silent_users_are_left_alone(graphs):
    service = Service(graphs, SIZES)
    for speaking in (1, 2, 3, 4, 5, 6, 7):
        first = 9 if speaking % 2 else 1
        service.step(users(8, first=first))
        before = service.device.read(service.cache)
        service.step(users(speaking, first=17 if speaking < 7 else 16))
        after = service.device.read(service.cache)
        quiet = [s for s in range(1, SLOTS) if s not in users(speaking, 17 if speaking < 7 else 16)]
        assert (after[quiet] == before[quiet]).all()


def capturing_counts_nobodys_words(graphs):
    service = Service(graphs, SIZES, capture=False)
    for first, number in ((1, 8), (9, 3), (1, 1)):
        service.eager_step(users(number, first))
        held = service.device.read(service.cache)[1:]
        service.runner.capture()
        assert (service.device.read(service.cache)[1:] == held).all()
        service.step(users(2, first))
        held = service.device.read(service.cache)[1:]
        service.runner.capture()
        assert (service.device.read(service.cache)[1:] == held).all()


def a_batch_is_one_replay_at_the_smallest_size(graphs):
    bills, service = {}, Service(graphs, SIZES)
    service.step(users(8))  # a small batch after a large one is small all the same
    for number in range(1, 9):
        earlier = service.device.counters.copy()
        since = len(service.device.timeline)
        service.step(users(number))
        done = service.device.counters.since(earlier)
        names = [e.category for e in service.device.timeline[since:] if e.lane == "GPU"]
        assert "kernel" not in names, number
        assert names.count("node") == done.kernels == len(OPS)
        assert done.graphs == 1
        bills[number] = done.bytes
    amounts = list(bills.values())
    steps = [False, *(later != amount for amount, later in pairwise(amounts))]
    assert [n for n, step in zip(bills, steps, strict=True) if step] == [2, 3, 5]


def too_large_a_batch_is_refused(graphs):
    service = Service(graphs, SIZES)
    for number in range(max(SIZES) + 1, SLOTS):
        try:
            service.step(users(number))
        except CaptureError as error:
            if str(number) not in str(error):
                raise AssertionError("unnamed") from error
        else:
            raise AssertionError(number)


def memory_of_others_is_not_touched(graphs):
    service = Service(graphs, SIZES)
    theirs = {}
    for rows in (1, 2, 4, 8, 8, 8, 4, 2, 1, 64):
        filled = np.full((rows, 4), 0.5 + rows, np.float32)
        theirs[service.device.upload(filled)] = filled
    used = [service.device.memory.allocated_bytes()]
    for number in (*range(1, 9), 8, 3, 1):
        service.step(users(number))
        used.append(service.device.memory.allocated_bytes())
    assert len(set(used)) == 1
    assert all(np.array_equal(service.device.read(b), a) for b, a in theirs.items())


def live_ops_run_live_and_all_of_them(graphs):
    inner = OPS[1:4]
    for chosen in range(1, 8):
        live = tuple(op for bit, op in enumerate(inner) if chosen >> bit & 1)
        service = Service(graphs, SIZES, live=live)
        for said in (users(1), users(6), users(8), users(3)):
            events = service.device.timeline
            since = len(events)
            told = service.step(said)
            kinds = {"kernel": [], "node": []}
            order = []
            for event in events[since:]:
                if event.lane == "GPU" and event.category in kinds:
                    kinds[event.category].append(event.name)
                    order.append(event.name)
            assert order == OPS
            assert kinds["kernel"] == list(live)
            assert told == service.expected(said)
