"""key-is-the-ids: takes the shape of the token ids for that of the whole step."""


class MaskedStep:
    @property
    def key(self):
        return tuple(self.input_ids.shape)
