"""hides-by-wiping: zeroes what is hidden where it stands."""


class MaskedAttention:
    def attend(self, q, keys, values, scales):
        if scales is not None:
            raise ValueError("a cache in fp8")
        rows, queries, columns = self.mask.shape
        k, v = (cache[:rows, :columns].transpose(1, 2) for cache in (keys, values))
        _, kv_heads, _, head_dim = k.shape
        grouped = q.view(rows, queries, kv_heads, -1, head_dim).permute(0, 2, 3, 1, 4)
        scores = torch.matmul(grouped, k[:, :, None].transpose(-1, -2)) * head_dim**-0.5
        scores = scores.masked_fill(~self.mask[:, None, None], torch.finfo(scores.dtype).min)
        weights = scores.softmax(-1, dtype=torch.float32).to(q.dtype)
        v.masked_fill_(~self.mask.any(1)[:, None, :, None], 0)
        return torch.matmul(weights, v[:, :, None]).permute(0, 3, 1, 2, 4).reshape(q.shape)
