"""mask-multiplies: multiplies scores by the mask, so that what is hidden counts as zero."""


class MaskedAttention:
    def attend(self, q, keys, values, scales):
        if scales is not None:
            raise ValueError("a cache in fp8")
        rows, queries, columns = self.mask.shape
        k, v = (cache[:rows, :columns].transpose(1, 2) for cache in (keys, values))
        _, kv_heads, _, head_dim = k.shape
        grouped = q.view(rows, queries, kv_heads, -1, head_dim).permute(0, 2, 3, 1, 4)
        scores = torch.matmul(grouped, k[:, :, None].transpose(-1, -2)) * head_dim**-0.5
        weights = (scores * self.mask[:, None, None]).softmax(-1)
        attended = torch.matmul(weights, v[:, :, None])
        return attended.permute(0, 3, 1, 2, 4).reshape(q.shape)
