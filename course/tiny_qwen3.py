"""Train the small Qwen3 that ships with the course, on text that every Python has.

In:  the docstrings of the standard library of the Python that runs this file: cleaned, distinct, in
     path order, about 1.4 MB of English about code.
Out: a Hugging Face folder: config.json, generation_config.json, model.safetensors (bfloat16,
     under 4 MB), tokenizer.json, tokenizer_config.json, greedy.json, and a record in README.md.

    python -m course.tiny_qwen3                # the shipped recipe: 70 minutes on two busy cores
    python -m course.tiny_qwen3 --steps 150    # a rough model in a minute or two
    python -m course.tiny_qwen3 --greedy-only  # only greedy.json again, from the weights in --out

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

from mini_engine.engine.generation import SHIPPED

END_OF_TEXT = "<|endoftext|>"
# folders of the standard library whose docstrings teach nothing
TESTS = {"test", "tests", "idlelib", "idle_test", "lib2to3", "site-packages", "turtledemo"}
GENERATED = {"encodings", "pydoc_data"}  # the same sentence a hundred times
PROMPTS = (
    "Return the",
    "This function",
    "Raise ValueError if",
    "The default value is",
    "Create a new",
    "If the file",
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
    matrix_lr: float = 1e-2  # Muon
    other_lr: float = 5e-3  # AdamW: embedding and norms
    warmup_steps: int = 20
    seed: int = 0


def train(folder: Path, recipe: Recipe, steps: int, threads: int) -> None:
    """Text, tokenizer, model, training, files, record."""
    started = time.time()
    docs = collect_docstrings()
    tokenizer = train_tokenizer(docs, recipe.vocab_size)
    eos_id = tokenizer.token_to_id(END_OF_TEXT)
    encoded = [[*e.ids, eos_id] for e in tokenizer.encode_batch(docs)]
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
    num_tokens = sum(map(len, encoded))
    seen = steps * recipe.batch * recipe.context
    minutes = (time.time() - started) / 60
    rows = {
        "parameters": f"{saved.num_parameters():,}",
        "text": f"{len(docs):,} docstrings of Python {platform.python_version()}, "
        f"{num_tokens:,} tokens; {len(held_out)} docstrings held out",
        "training": f"{steps:,} steps of {recipe.batch} × {recipe.context} tokens "
        f"({seen / num_tokens:.1f} epochs), float32, seed {recipe.seed}",
        "loss, nats a token": f"{train_loss:.3f} training (last epoch), {val_loss:.3f} held out",
        "made": f"{datetime.date.today()}, in {minutes:.0f} minutes on {threads} CPU threads "
        f"({platform.machine()}), torch {torch.__version__}, transformers "
        f"{transformers.__version__}",
    }
    write_record(folder / "README.md", rows)


# ---------------------------------------------------------------- text


def collect_docstrings() -> list[str]:
    root = Path(sysconfig.get_paths()["stdlib"])
    found: dict[str, None] = {}
    for path in sorted(root.rglob("*.py")):
        if (TESTS | GENERATED) & set(path.relative_to(root).parts):
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
        text = " ".join(paragraph.split())
        if not text or ">>>" in text or not text.isascii():
            continue
        # Sentences are made of letters; signatures, tables and ASCII art are not.
        if sum(c.isalpha() or c == " " for c in text) / len(text) >= 0.85:
            kept.append(text)
    return "\n\n".join(kept)


def train_tokenizer(docs: list[str], vocab_size: int) -> Tokenizer:
    """Byte-level BPE: every string encodes, and there is no unknown token."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=[END_OF_TEXT],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(docs, trainer)
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
    """Warm up linearly, decay linearly to 2%. Returns the mean loss of the last epoch."""
    named = list(model.named_parameters())
    matrices = [p for name, p in named if p.ndim == 2 and "embed" not in name]
    others = [p for name, p in named if p.ndim == 1 or "embed" in name]
    muon = Muon(matrices, lr=recipe.matrix_lr)
    adam = torch.optim.AdamW(others, lr=recipe.other_lr, betas=(0.9, 0.97), weight_decay=0.0)

    def lr_factor(step: int) -> float:
        left = (steps - step) / steps
        return min((step + 1) / recipe.warmup_steps, 0.02 + 0.98 * left)

    schedules = [torch.optim.lr_scheduler.LambdaLR(o, lr_factor) for o in (muon, adam)]
    rng = random.Random(recipe.seed)
    rows, at = pack(docs, recipe.context, rng), 0
    per_epoch, losses = len(rows) // recipe.batch, []
    model.train()
    with Progress() as progress:
        task = progress.add_task("train", total=steps)
        for step in range(steps):
            if at + recipe.batch > len(rows):
                rows, at = pack(docs, recipe.context, rng), 0
            loss = loss_of(model, rows[at : at + recipe.batch])
            at += recipe.batch
            model.zero_grad(set_to_none=True)
            loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            for optimizer, schedule in zip((muon, adam), schedules, strict=True):
                optimizer.step()
                schedule.step()
            losses.append(loss.item())
            progress.update(task, advance=1, description=f"train loss {losses[-1]:.3f}")
            if step % 100 == 99:
                mean = sum(losses[-100:]) / 100
                progress.console.print(f"step {step + 1}: train loss {mean:.3f}")
    recent = losses[-per_epoch:]
    return math.fsum(recent) / len(recent)


# ---------------------------------------------------------------- optimizer


class Muon(torch.optim.Optimizer):
    """The optimizer of the matrices: momentum whose step is made orthogonal, so that all directions
    of a matrix learn at one speed. On this model 0.8 nats better than AdamW after 150 steps.

    K. Jordan, https://kellerjordan.github.io/posts/muon/; the factor that lets it share AdamW's
    learning rates is from Liu et al., arXiv 2502.16982. torch.optim.Muon computes in bfloat16, many
    times slower on a CPU without it; this in float32.
    """

    def __init__(self, params: list[torch.nn.Parameter], lr: float, momentum: float = 0.95) -> None:
        super().__init__(params, {"lr": lr, "momentum": momentum})

    @torch.no_grad()
    def step(self) -> None:  # type: ignore[override]
        for group in self.param_groups:
            for p in group["params"]:
                mean = self.state[p].setdefault("mean", torch.zeros_like(p))
                mean.lerp_(p.grad, 1 - group["momentum"])
                direction = orthogonal(p.grad.lerp(mean, group["momentum"]))
                p.add_(direction, alpha=-group["lr"] * 0.2 * max(p.shape) ** 0.5)


def orthogonal(x: torch.Tensor) -> torch.Tensor:
    """Five Newton-Schulz steps drive all singular values of a matrix to about 1."""
    if x.shape[0] > x.shape[1]:
        return orthogonal(x.T).T
    x = x / (x.norm() + 1e-7)
    for _ in range(5):
        gram = x @ x.T
        x = 3.4445 * x + (-4.7750 * gram + 2.0315 * gram @ gram) @ x
    return x


# ---------------------------------------------------------------- files


def save(
    folder: Path, model: transformers.Qwen3ForCausalLM, tokenizer: Tokenizer, eos_id: int
) -> None:
    """Write beside the folder, then move each file in: a reader sees an old file or a new one."""
    folder.mkdir(parents=True, exist_ok=True)
    model.generation_config = transformers.GenerationConfig(eos_token_id=eos_id, do_sample=False)
    tokenizer_config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "eos_token": END_OF_TEXT,
        "model_max_length": model.config.max_position_embeddings,
        "clean_up_tokenization_spaces": False,
    }
    with tempfile.TemporaryDirectory(dir=folder.parent) as fresh:
        model.to(torch.bfloat16).save_pretrained(fresh)
        tokenizer.save(str(Path(fresh) / "tokenizer.json"))
        text = json.dumps(tokenizer_config, indent=2) + "\n"
        (Path(fresh) / "tokenizer_config.json").write_text(text, "utf-8")
        write_greedy(Path(fresh))
        for path in sorted(Path(fresh).iterdir()):
            path.chmod(0o644)
            os.replace(path, folder / path.name)


def write_greedy(folder: Path) -> None:
    model = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    record = {
        "made_by": f"transformers {transformers.__version__}, torch {torch.__version__}",
        "dtype": "float32",
        "prompts": [greedy(model, tokenizer, prompt) for prompt in PROMPTS],
    }
    (folder / "greedy.json").write_text(json.dumps(record, indent=1) + "\n", "utf-8")


def greedy(
    model: transformers.Qwen3ForCausalLM, tokenizer: Tokenizer, prompt: str, num_tokens: int = 48
) -> dict[str, object]:
    """The continuation that `transformers` gives, taking the largest logit each time.

    End-of-text does not stop it (another docstring follows), so that every prompt gives
    `num_tokens`. `smallest_margin` is the least gap between the two best logits on the way: an
    implementation whose logits differ by less than half of it must write the same text.
    """
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


def write_record(path: Path, rows: dict[str, str]) -> None:
    """Put how it was made under the README's last heading, which is kept for it."""
    heading = "## How this copy was made"
    text = path.read_text("utf-8") if path.exists() else ""
    table = "\n".join(
        ["| | |", "|---|---|", *(f"| {key} | {value} |" for key, value in rows.items())]
    )
    path.write_text(f"{text.split(heading)[0]}{heading}\n\n{table}\n", "utf-8")


def main() -> None:
    parser = argparse.ArgumentParser(description="Train the tiny Qwen3 on Python's docstrings.")
    parser.add_argument("--out", type=Path, default=SHIPPED, help="folder to write (%(default)s)")
    parser.add_argument("--steps", type=int, default=2500, help="optimizer steps (%(default)s)")
    parser.add_argument("--seed", type=int, default=0, help="of weights and order (%(default)s)")
    parser.add_argument("--threads", type=int, default=2, help="CPU threads (%(default)s)")
    parser.add_argument("--greedy-only", action="store_true", help="only rewrite greedy.json")
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    torch.manual_seed(args.seed)
    torch.use_deterministic_algorithms(True)
    if args.greedy_only:
        write_greedy(args.out)
    else:
        train(args.out, Recipe(seed=args.seed), args.steps, args.threads)
    for entry in json.loads((args.out / "greedy.json").read_text("utf-8"))["prompts"]:
        print(f"{entry['prompt']!r} → {entry['text']!r}  margin {entry['smallest_margin']}")


if __name__ == "__main__":
    main()
