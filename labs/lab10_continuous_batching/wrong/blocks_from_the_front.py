"""blocks-from-the-front: hands out the blocks that have been free for longest, as a queue does."""


class BlockPool:
    def allocate(self, request_id, num_tokens):
        table = self._tables.get(request_id, ())
        missing = self.blocks_for(num_tokens) - len(table)
        if missing > len(self._free):
            raise OutOfBlocks(f"request {request_id!r}: {num_tokens} tokens")
        if missing > 0:
            table += tuple(self._free.pop(0) for _ in range(missing))
            self._tables[request_id] = table
        return table
