"""a-copy-is-safe: believes that an op which writes in place is given a copy, to be on the safe side."""


def fused(eps):
    def replacement(residual, x, weight):
        out, total = torch.empty_like(x), x.clone()
        torch.ops.launch_bound.add_rms_norm.default(out, total, residual, weight, eps)
        return total, out

    return replacement
