"""practice-counts: adds up all bars, also those of the captures that only measured memory."""


def captured_graphs(log):
    bars = re.findall(r"Capturing CUDA graphs \((?:[^()]*, )?(\w+)\):[^\r\n]*?(\d+)/(\d+) \[", log)
    found = {}
    for (mode, done, total), after in zip(bars, [*bars[1:], ("", "0", "0")]):
        if int(after[1]) > int(done) and after[0] == mode:
            continue  # the same bar, a moment later
        if int(done) < int(total):
            raise ValueError(f"{mode}: {done} of {total}")
        found[mode] = found.get(mode, 0) + int(total)
    return found
