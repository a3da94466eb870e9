"""row-is-elastic: takes T_max for a first guess, which a longer text would make grow."""


class StaticEngine:
    def check(self, request):
        if not request.prompt or request.max_new_tokens < 1:
            raise ValueError(f"request {request.request_id!r}: nothing to read, or to write")
