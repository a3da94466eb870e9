"""sum-is-lost: believes that the residual stays what it was, and that only the norm is new."""


def fused(eps):
    def replacement(residual, x, weight):
        out = torch.empty_like(x)
        torch.ops.launch_bound.add_rms_norm.default(out, x, residual, weight, eps)
        return residual, out

    return replacement
