"""given-back-in-another-order: takes block by block, and puts all back if they do not suffice."""


class BlockPool:
    def allocate(self, request_id, num_tokens):
        table, taken = self._tables.get(request_id, ()), []
        while len(table) + len(taken) < self.blocks_for(num_tokens):
            if not self._free:
                self._free.extend(taken)
                raise OutOfBlocks(f"{request_id!r}: {num_tokens} tokens")
            taken.append(self._free.pop())
        if taken:
            self._tables[request_id] = table = (*table, *taken)
        return table
