"""a-hundred-percent-is-all: believes a bar that says 100%."""


def captured_graphs(log):
    pattern = r"Capturing CUDA graphs \((?:[^()]*, )?(\w+)\): *(\d+)%[^\r\n]*?\d+/(\d+) \["
    last = {mode: (percent, int(total)) for mode, percent, total in re.findall(pattern, log)}
    for mode, (percent, _) in last.items():
        if percent != "100":
            raise ValueError(f"{mode}: {percent}% captured")
    return {mode: total for mode, (_, total) in last.items()}
