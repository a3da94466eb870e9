"""table-is-made-anew: gives the blocks back and takes as many as are needed now."""


class BlockPool:
    def allocate(self, request_id, num_tokens):
        table = self._tables.get(request_id, ())
        needed = max(self.blocks_for(num_tokens), len(table))
        if needed > len(self._free) + len(table):
            raise OutOfBlocks(f"request {request_id!r}: {num_tokens} tokens")
        self._free[:0] = table
        self._tables[request_id] = tuple(self._free.pop() for _ in range(needed))
        return self._tables[request_id]
