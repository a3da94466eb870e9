"""practice-stands-in: takes of each mode the last bar that ended, whichever capture it belongs to."""


def captured_graphs(log):
    bars = re.findall(r"Capturing CUDA graphs \((?:[^()]*, )?(\w+)\):[^\r\n]*?(\d+)/(\d+) \[", log)
    ended = {mode: int(total) for mode, done, total in bars if int(done) == int(total)}
    for mode, done, total in bars:
        if mode not in ended:
            raise ValueError(f"{mode}: {done} of {total}")
    return ended
