"""neighbours-stay-apart: a freed block goes back as it was, whoever is free beside it."""


class Memory:
    def _merge(self, block):
        return block
