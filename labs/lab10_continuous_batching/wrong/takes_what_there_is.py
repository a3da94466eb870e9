"""takes-what-there-is: takes block after block, and raises when there are no more."""


class BlockPool:
    def allocate(self, request_id, num_tokens):
        table = self._tables.get(request_id, ())
        while len(table) < self.blocks_for(num_tokens):
            if not self._free:
                raise OutOfBlocks(f"request {request_id!r}: {num_tokens} tokens")
            table += (self._free.pop(),)
            self._tables[request_id] = table
        return table
