"""Speculative decoding: cheap guesses, checked by the model in one step of k + 1 tokens a request.

Something proposes k tokens, the *drafts*, behind the last known token of a decode. The model
computes all k + 1 rows and draws a token at each. A draft stands if it is what was drawn at the row
before it; the first draw that differs stands in its draft's place, and what follows it is thrown
away (`confirmed` in batch.py). So a step writes 1 to k + 1 tokens. K and V of rejected drafts lie
beyond `num_computed`: no row reads them, and the next tokens are written over them.

This is the rejection rule of Leviathan et al. 2023 (arXiv 2211.17192) and Chen et al. 2023 (arXiv
2302.01318) for drafts that follow from the text alone: x is to be accepted with the probability
p(x) that the model gives it, and else to be replaced by a draw from p without x. To draw from p and
compare is just that. And since the draws are those of plain decoding, noise and all
(cuda/sampling.py), a seed gives the same text with drafts as without. A draft model draws with the
noise of the request's own seed, so that the two often agree at a temperature, too: a coupling of
their distributions that knows neither (Daliri et al. 2024, arXiv 2408.07978)."""

from collections.abc import Sequence
from dataclasses import replace

from mini_engine.dispatch.dispatcher import GraphDispatcher, uniform_token_count
from mini_engine.engine.batch import ScheduledBatch, ScheduledRequest
from mini_engine.engine.engine import Runner

LONGEST = 3  # tokens of an n-gram that is looked up


class Ngram:
    """Drafts what followed the last few tokens where they stood before in the request's own text
    (prompt lookup decoding, Saxena 2023). An `engine.Proposer`."""

    def propose(self, batch: ScheduledBatch) -> ScheduledBatch:
        return replace(batch, entries=tuple(self._with_drafts(entry) for entry in batch.entries))

    def _with_drafts(self, entry: ScheduledRequest) -> ScheduledRequest:
        state = entry.state
        count = entry.context_len - state.num_tokens
        if count <= 0:
            return entry
        text = state.token_ids(0, state.num_tokens)
        return entry._replace(drafts=tuple(continued(text, count)))


def continued(text: Sequence[int], count: int) -> list[int]:
    """`count` tokens to follow `text`: those that follow the last place where its last 3 tokens
    stood before; or its last 2, or its last one. If none did, the last token, again and again. It
    always finds as many as are wanted, so that all decodes of a batch have equally many tokens and
    one graph runs them: a wrong draft costs less than a step that fits no graph."""
    copied, known = [*text], len(text)
    source = known - 1
    for size in range(min(LONGEST, known - 1), 0, -1):
        last = copied[known - size :]
        starts = range(known - size - 1, -1, -1)
        found = next((at for at in starts if copied[at : at + size] == last), None)
        if found is not None:
            source = found + size
            break
    for at in range(source, source + count):
        copied.append(copied[at])
    return copied[known:]


class DraftModel:
    """Drafts what a smaller model writes. An `engine.Proposer`. The draft model's runner has a KV
    cache of its own with the same blocks: a request's block table serves both. It computes every
    token that the large model computes, in the same step, so what is shared or preempted there is
    so here, and it never has to catch up. For that, it takes one step more than there are
    drafts: the last one for the K and V of the last draft."""

    def __init__(self, runner: Runner, dispatcher: GraphDispatcher) -> None:
        """`runner`: with the limits of the large model's, but `num_speculative_tokens` 0."""
        self.runner, self.dispatcher = runner, dispatcher

    def propose(self, batch: ScheduledBatch) -> ScheduledBatch:
        counts = [max(e.context_len - e.state.num_tokens, 0) for e in batch.entries]
        drafts: list[list[int]] = [[] for _ in batch.entries]
        for step in range(1 + max(counts)):
            rows = [row for row, count in enumerate(counts) if not step or count >= step]
            now = [self._one_step(batch.entries[row], counts[row], drafts[row]) for row in rows]
            part = ScheduledBatch(tuple(now)) if step else replace(batch, entries=tuple(now))
            uniform = uniform_token_count(part.query_lens, has_prefill=part.has_prefill)
            descriptor = self.dispatcher.dispatch(part.num_reqs, part.num_tokens, uniform)
            drawn = iter(self.runner.execute(part, descriptor))
            for row, entry in zip(rows, now, strict=True):
                if entry.samples:
                    drafts[row].append(next(drawn))
        entries = zip(batch.entries, drafts, counts, strict=True)
        return replace(
            batch, entries=tuple(e._replace(drafts=tuple(d[:count])) for e, d, count in entries)
        )

    def _one_step(self, entry: ScheduledRequest, count: int, drafts: list[int]) -> ScheduledRequest:
        """An entry without its drafts; and where some are drawn, a decode of the last of them."""
        if not drafts:
            return entry._replace(query_len=entry.query_len - count)
        state = replace(entry.state, output=[*entry.state.output, *drafts])
        return entry._replace(state=state, start=state.num_tokens - 1, query_len=1)
