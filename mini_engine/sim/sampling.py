"""Draws on the simulated device: a kernel in the place of the argmax, for an engine that samples.

All that it reads is in device memory, so that a graph bakes nothing in. The arithmetic is that of
`mini_engine/cuda/sampling.py`, which says why. The words of the noise are the same bit for bit; its
logarithms are another library's, and may differ in the last place."""

from collections.abc import Sequence

import numpy as np

from mini_engine.engine.sampling import SamplingParams
from mini_engine.sim.launch import kernel

FIELDS = ("temperature", "top_k", "top_p", "min_p", "seed")
DTYPE = "float64"  # of the parameters: it holds all words of 32 bits
LARGEST = np.float32(1 - 2.0**-24)  # below 1


def param_rows(params: Sequence[SamplingParams]) -> np.ndarray:
    """A row of FIELDS for each that is given. Zeros, as in a padded row, are greedy."""
    return np.array([[getattr(one, field) for field in FIELDS] for one in params], DTYPE)


def mixed(words: np.ndarray) -> np.ndarray:
    """A hash of uint32 words, whose products wrap."""
    words = (words ^ (words >> np.uint32(16))) * np.uint32(0x7FEB352D)
    words = (words ^ (words >> np.uint32(15))) * np.uint32(0x846CA68B)
    words ^= words >> np.uint32(16)
    return words


def noise_words(seed: int, context_len: int, vocab_size: int) -> np.ndarray:
    """(V,) uint32 of one request."""
    stream = mixed(mixed(mixed(np.array([seed], np.uint32)) ^ np.uint32(context_len)))
    return mixed(stream ^ mixed(np.arange(vocab_size, dtype=np.uint32)))


def cutoff(logits: np.ndarray, temperature: float, top_k: int, top_p: float, min_p: float) -> float:
    """The smallest of one row's logits (V,) that may be drawn."""
    ordered = np.sort(logits)[::-1]
    weights = np.exp((ordered.astype(np.float64) - ordered[0]) / temperature)
    kept = weights >= min_p
    if top_k:
        kept &= ordered >= ordered[min(top_k, len(ordered)) - 1]
    mass = np.where(kept, weights, 0.0)
    if top_p < 1:
        kept &= np.cumsum(mass) - mass < top_p * mass.sum()
    return float(ordered[kept][-1])


# A logit takes 24 operations: the hash of a token and of a token in its stream (17), a uniform
# number (3), two logarithms, and a product and a sum. The sort of a row with filters is left out.
@kernel(bytes=lambda out, logits, *_: logits.nbytes, flops=lambda out, logits, *_: 24 * logits.size)
def draw(
    out: np.ndarray, logits: np.ndarray, positions: np.ndarray, rows: np.ndarray, params: np.ndarray
) -> None:
    """out[s] = a draw from softmax(logits[s] / temperature) over the tokens that may be drawn, or
    the argmax at temperature 0; its noise is that of the token after position positions[rows[s]].
    out (S,) int32, logits (S, V), positions (T,), rows (S,), params (S, 5)."""
    for row, (scores, context_len) in enumerate(zip(logits, positions[rows] + 1, strict=True)):
        temperature, top_k, top_p, min_p, seed = params[row]
        if temperature:
            allowed = scores >= cutoff(scores, temperature, int(top_k), top_p, min_p)
            words = noise_words(int(seed), int(context_len), len(scores))
            uniform = (words.astype(np.float32) + np.float32(0.5)) * np.float32(2.0**-32)
            noise = -np.log(-np.log1p(-np.minimum(uniform, LARGEST)))
            scores = np.where(allowed, scores + np.float32(temperature) * noise, -np.inf)
        out[row] = np.argmax(scores)
