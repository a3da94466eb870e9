"""refused-but-listed: enters the request with an empty table first, and then looks for blocks."""


class BlockPool:
    def allocate(self, request_id, num_tokens):
        table = self._tables.setdefault(request_id, ())
        missing = self.blocks_for(num_tokens) - len(table)
        if missing > len(self._free):
            raise OutOfBlocks(f"request {request_id!r}: {num_tokens} tokens")
        if missing > 0:
            self._tables[request_id] = table + tuple(self._free.pop() for _ in range(missing))
        return self._tables[request_id]
