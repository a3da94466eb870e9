"""laps-are-independent: puts the laps of all processes into one bag."""


def pooled_interval(groups):
    if not 1 <= len(groups) <= MAX_PROCESSES:
        raise ValueError(f"{len(groups)} processes")
    if not all(len(group) for group in groups):
        raise ValueError("no samples")
    found = median_interval([lap for group in groups for lap in group])
    return Interval(found.median, found.low, found.high, found.samples, len(groups))
