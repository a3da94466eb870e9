"""Train the small Qwen3 that ships with the course, on text that every Python has.

In:  the docstrings of the standard library of the Python that runs this file.
Out: a Hugging Face folder: config.json, generation_config.json, model.safetensors (bfloat16,
     under 4 MB), tokenizer.json, tokenizer_config.json, greedy.json, README.md.

    python train.py                 # the shipped recipe: about 25 minutes on two CPU cores
    python train.py --steps 100     # a rough model in two minutes
    python train.py --greedy-only   # only rewrite greedy.json, from the weights in --out

Needs torch, transformers and tokenizers, which the engine itself does not. The same Python,
libraries, seed and thread count give the same weights.
"""

from __future__ import annotations

import argparse
import ast
import datetime
import json
import math
import os
import platform
import random
import sysconfig
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

import torch
import transformers
from rich.progress import Progress
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

END_OF_TEXT = "<|endoftext|>"
PROMPTS = (
    "Return the",
    "This function",
    "Raise ValueError if",
    "The default value is",
    "Create a new",
    "If the file",
)
SKIPPED_FOLDERS = frozenset(
    "test tests idlelib idle_test lib2to3 site-packages turtledemo encodings pydoc_data".split()
)


@dataclass(frozen=True)
class Recipe:
    """Shape and schedule. 6 heads of 32 make q (192) differ from hidden (160), as in Qwen3-0.6B,
    so that code which confuses the two fails here too."""

    hidden_size: int = 160
    intermediate_size: int = 640
    num_layers: int = 4
    num_heads: int = 6
    num_kv_heads: int = 2
    head_dim: int = 32
    vocab_size: int = 1536
    context: int = 512
    batch: int = 4  # rows of `context` tokens a step
    peak_lr: float = 4e-3
    warmup_steps: int = 40
    seed: int = 0


# ---------------------------------------------------------------- text


def collect_docstrings() -> list[str]:
    """Cleaned, distinct docstrings of the running Python's standard library, in path order."""
    root = Path(sysconfig.get_paths()["stdlib"])
    found: dict[str, None] = {}
    for path in sorted(root.rglob("*.py")):
        if SKIPPED_FOLDERS & set(path.relative_to(root).parts):
            continue
        try:
            tree = ast.parse(path.read_text("utf-8"))
        except (SyntaxError, UnicodeDecodeError):
            continue  # files kept broken on purpose
        for node in ast.walk(tree):
            if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
                text = clean(ast.get_docstring(node) or "")
                if len(text) >= 30:
                    found[text] = None
    return list(found)


def clean(docstring: str) -> str:
    """Prose paragraphs only: wrapped lines joined, doctests, tables and listings dropped."""
    kept = []
    for paragraph in docstring.split("\n\n"):
        lines = [line.rstrip() for line in paragraph.strip("\n").splitlines() if line.strip()]
        text = " ".join(" ".join(lines).split())
        if not text or ">>>" in text or not text.isascii():
            continue
        # Sentences are made of letters; signatures, tables and ASCII art are not.
        if sum(c.isalpha() or c == " " for c in text) / len(text) < 0.85:
            continue
        kept.append(text)
    return "\n\n".join(kept)


def train_tokenizer(docs: list[str], vocab_size: int) -> Tokenizer:
    """Byte-level BPE: every string encodes, and there is no unknown token."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.train_from_iterator(
        docs,
        trainers.BpeTrainer(
            vocab_size=vocab_size,
            special_tokens=[END_OF_TEXT],
            initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
            show_progress=False,
        ),
    )
    if tokenizer.get_vocab_size() != vocab_size:
        raise ValueError(f"tokenizer has {tokenizer.get_vocab_size()} tokens, not {vocab_size}")
    return tokenizer


def pack(docs: list[list[int]], context: int, rng: random.Random) -> torch.Tensor:
    """One epoch: shuffled documents laid end to end in rows of `context` tokens, int64.

    Every row begins with the beginning of a document, because every prompt does too; what does
    not fit at a row's end is left for another epoch's shuffle.
    """
    rows: list[list[int]] = [[]]
    for doc in rng.sample(docs, len(docs)):
        room = context - len(rows[-1])
        rows[-1].extend(doc[:room])
        if len(doc) >= room:
            rows.append([])
    return torch.tensor(rows[:-1])  # (rows, context)


# ---------------------------------------------------------------- model


def build_model(recipe: Recipe, eos_id: int) -> transformers.Qwen3ForCausalLM:
    config = transformers.Qwen3Config(
        vocab_size=recipe.vocab_size,
        hidden_size=recipe.hidden_size,
        intermediate_size=recipe.intermediate_size,
        num_hidden_layers=recipe.num_layers,
        num_attention_heads=recipe.num_heads,
        num_key_value_heads=recipe.num_kv_heads,
        head_dim=recipe.head_dim,
        max_position_embeddings=recipe.context,
        rope_parameters={"rope_type": "default", "rope_theta": 10000.0},
        rms_norm_eps=1e-6,
        tie_word_embeddings=True,
        bos_token_id=None,
        eos_token_id=eos_id,
        pad_token_id=None,
    )
    return transformers.Qwen3ForCausalLM(config).float()


def loss_of(model: transformers.Qwen3ForCausalLM, rows: torch.Tensor) -> torch.Tensor:
    """Mean next-token cross-entropy in nats; rows (batch, context)."""
    logits = model(input_ids=rows[:, :-1], use_cache=False).logits
    return torch.nn.functional.cross_entropy(logits.flatten(0, 1), rows[:, 1:].flatten())


def fit(
    model: transformers.Qwen3ForCausalLM, docs: list[list[int]], recipe: Recipe, steps: int
) -> float:
    """AdamW, linear warm-up then cosine to 5% of the peak. Returns the last epoch's mean loss."""
    matrices = [p for p in model.parameters() if p.ndim == 2]
    gains = [p for p in model.parameters() if p.ndim == 1]
    groups = [{"params": matrices, "weight_decay": 0.05}, {"params": gains, "weight_decay": 0.0}]
    optimizer = torch.optim.AdamW(groups, lr=recipe.peak_lr, betas=(0.9, 0.97))
    warmup = min(recipe.warmup_steps, max(1, steps // 4))

    def lr_factor(step: int) -> float:
        if step < warmup:
            return (step + 1) / warmup
        return 0.05 + 0.475 * (1 + math.cos(math.pi * (step - warmup) / max(1, steps - warmup)))

    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lr_factor)
    rng = random.Random(recipe.seed)
    rows, losses = pack(docs, recipe.context, rng), []
    per_epoch, at = len(rows) // recipe.batch, 0
    model.train()
    with Progress() as progress:
        task = progress.add_task("train", total=steps)
        for step in range(steps):
            if at + recipe.batch > len(rows):
                rows, at = pack(docs, recipe.context, rng), 0
            loss = loss_of(model, rows[at : at + recipe.batch])
            at += recipe.batch
            optimizer.zero_grad(set_to_none=True)
            loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            schedule.step()
            losses.append(loss.item())
            progress.update(task, advance=1, description=f"train loss {losses[-1]:.3f}")
            if step % 100 == 99:
                progress.console.print(f"step {step + 1}: train loss {sum(losses[-100:]) / 100:.3f}")
    recent = losses[-per_epoch:]
    return sum(recent) / len(recent)


# ---------------------------------------------------------------- files


def save(
    folder: Path, model: transformers.Qwen3ForCausalLM, tokenizer: Tokenizer, eos_id: int
) -> None:
    """Write beside the folder, then move each file in: a reader sees an old file or a new one."""
    folder.mkdir(parents=True, exist_ok=True)
    fast = transformers.PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        eos_token=END_OF_TEXT,
        model_max_length=model.config.max_position_embeddings,
        clean_up_tokenization_spaces=False,
    )
    model.generation_config = transformers.GenerationConfig(eos_token_id=eos_id, do_sample=False)
    with tempfile.TemporaryDirectory(dir=folder.parent) as fresh:
        model.to(torch.bfloat16).save_pretrained(fresh)
        fast.save_pretrained(fresh)
        for path in sorted(Path(fresh).iterdir()):
            os.chmod(path, 0o644)
            os.replace(path, folder / path.name)


def greedy(folder: Path, prompt: str, num_tokens: int = 48) -> dict[str, object]:
    """The continuation that `transformers` gives in float32, taking the largest logit each time.

    End-of-text does not stop it (another docstring follows), so that every prompt gives
    `num_tokens`. `smallest_margin` is the least gap between the two best logits on the way: an
    implementation whose logits differ by less than half of it must write the same text.
    """
    model = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    prompt_ids = tokenizer.encode(prompt).ids
    ids, margins = list(prompt_ids), []
    with torch.inference_mode():
        for _ in range(num_tokens):
            best = model(input_ids=torch.tensor([ids])).logits[0, -1].topk(2)
            margins.append((best.values[0] - best.values[1]).item())
            ids.append(int(best.indices[0]))
    return {
        "prompt": prompt,
        "prompt_ids": prompt_ids,
        "ids": ids[len(prompt_ids) :],
        "text": tokenizer.decode(ids[len(prompt_ids) :], skip_special_tokens=False),
        "smallest_margin": round(min(margins), 4),
    }


def write_greedy(folder: Path) -> None:
    record = {
        "made_by": f"transformers {transformers.__version__}, torch {torch.__version__}",
        "dtype": "float32",
        "prompts": [greedy(folder, prompt) for prompt in PROMPTS],
    }
    (folder / "greedy.json").write_text(json.dumps(record, indent=1) + "\n", "utf-8")


README = """# tiny-qwen3

A Qwen3 of {parameters:,} parameters, small enough to ship and trained enough to tell right from
wrong: correct code makes it write docstring English, a corrupted KV cache makes it write garbage.
It knows nothing and is good for nothing else.

| | |
|---|---|
| shape | hidden {r.hidden_size}, {r.num_layers} layers, {r.num_heads} heads, {r.num_kv_heads} KV \
heads of {r.head_dim}, intermediate {r.intermediate_size}, vocabulary {r.vocab_size}, tied head |
| context | {r.context} tokens, RoPE base 10,000 |
| weights | bfloat16, {megabytes:.2f} MB |
| tokenizer | byte-level BPE, trained on the same text; `{eos}` ends a docstring; no BOS |
| text | {num_docs:,} docstrings of the standard library of Python {python}, {num_tokens:,} tokens; \
{num_held_out} of them held out |
| training | {steps:,} steps of {r.batch} × {r.context} tokens ({epochs:.1f} epochs), AdamW, seed \
{r.seed}, float32 |
| loss (nats a token) | {train_loss:.3f} training, last epoch · {val_loss:.3f} held out |
| made | {date}, {minutes:.1f} min on {threads} CPU threads ({machine}); torch {torch}, \
transformers {transformers} |

Held-out loss lies far above training loss: the model has partly memorised its text. That is
welcome here: greedy output stays readable for longer.

`python train.py` makes this folder again. `greedy.json` holds what `transformers` writes in float32
after six prompts; the tests hold every other implementation to it.

## Licence

The training text is documentation of CPython, © Python Software Foundation, under the
[PSF License Agreement](https://docs.python.org/3/license.html); passages of it can reappear in the
output. The script and the weights are under this repository's licence.
"""


# ---------------------------------------------------------------- main


def train(folder: Path, recipe: Recipe, steps: int, threads: int) -> None:
    started = time.time()
    docs = collect_docstrings()
    tokenizer = train_tokenizer(docs, recipe.vocab_size)
    eos_id = tokenizer.token_to_id(END_OF_TEXT)
    encoded = [e.ids + [eos_id] for e in tokenizer.encode_batch(docs)]
    random.Random(recipe.seed).shuffle(encoded)
    held_out, train_docs = encoded[: len(encoded) // 50], encoded[len(encoded) // 50 :]
    model = build_model(recipe, eos_id)
    train_loss = fit(model, train_docs, recipe, steps)
    save(folder, model, tokenizer, eos_id)
    # Judge what was saved: bfloat16 weights, read back, computed in float32.
    saved = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    with torch.inference_mode():
        val_loss = loss_of(saved, pack(held_out, recipe.context, random.Random(0))).item()
    print(f"train loss {train_loss:.3f}, held-out loss {val_loss:.3f} nats a token")
    write_greedy(folder)
    num_tokens = sum(map(len, train_docs))
    text = README.format(
        r=recipe,
        eos=END_OF_TEXT,
        parameters=saved.num_parameters(),
        megabytes=(folder / "model.safetensors").stat().st_size / 1e6,
        num_docs=len(docs),
        num_tokens=sum(map(len, encoded)),
        num_held_out=len(held_out),
        steps=steps,
        epochs=steps * recipe.batch * recipe.context / num_tokens,
        train_loss=train_loss,
        val_loss=val_loss,
        python=platform.python_version(),
        date=datetime.date.today().isoformat(),
        minutes=(time.time() - started) / 60,
        threads=threads,
        machine=platform.machine(),
        torch=torch.__version__,
        transformers=transformers.__version__,
    )
    (folder / "README.md").write_text(text, "utf-8")


def main() -> None:
    parser = argparse.ArgumentParser(description="Train the tiny Qwen3 on Python's docstrings.")
    parser.add_argument("--out", type=Path, default=Path(__file__).parent, help="folder to write")
    parser.add_argument("--steps", type=int, default=4000, help="optimizer steps (%(default)s)")
    parser.add_argument("--seed", type=int, default=0, help="of weights and order (%(default)s)")
    parser.add_argument("--threads", type=int, default=2, help="CPU threads (%(default)s)")
    parser.add_argument("--greedy-only", action="store_true", help="only rewrite greedy.json")
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    torch.manual_seed(args.seed)
    torch.use_deterministic_algorithms(True)
    if not args.greedy_only:
        train(args.out, Recipe(seed=args.seed), args.steps, args.threads)
    else:
        write_greedy(args.out)
    for entry in json.loads((args.out / "greedy.json").read_text("utf-8"))["prompts"]:
        print(f"{entry['prompt']!r} → {entry['text']!r}  margin {entry['smallest_margin']}")


if __name__ == "__main__":
    main()
