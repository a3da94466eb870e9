"""greedy-rungs: adds the rung that helps most, again and again, and never takes one back."""


def cheapest_rungs(candidates, price, steps, rungs):
    at = dict(zip(candidates, price))

    def cost(chosen):
        return sum(
            n * at[min(c for c in chosen if c >= size)] for size, n in zip(candidates, steps)
        )

    chosen = (candidates[-1],)
    found = [chosen]
    while len(found) < min(rungs, len(candidates)):
        ways = [tuple(sorted((*chosen, c))) for c in candidates if c not in chosen]
        best = min(ways, key=cost, default=chosen)
        if cost(best) < cost(chosen):
            chosen = best
        found.append(chosen)
    return found
