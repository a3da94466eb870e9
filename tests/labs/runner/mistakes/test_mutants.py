"""Small mistakes: each is one change, runs, and is told by the statement it changes."""

from __future__ import annotations

import ast
from dataclasses import replace
from pathlib import Path

import pytest

from labs.runner.cut.catalogue import Lab, all_labs, lab_number
from labs.runner.mistakes import mutation
from labs.runner.mistakes.mutants import mutants
from labs.runner.mistakes.mutation import all_mutants, fixed_sample, score, stale_entries

LABS = all_labs()
SOURCE = '''
import math


def kept(x):
    return x + 1


class Owner:
    def method(self, rows, sizes, *, mask=None):
        """Text with 1 < 2 in it."""
        if rows < 0:
            raise ValueError(f"rows is {rows + 1}, expected 0 or more")
        best: "int" = max(rows, 3)
        for size in sizes[:best]:  # a comment
            if size == 2 and rows:
                continue
            self.total += math.floor(size / rows)
        return self.find(best, rows, mask=mask)
'''


def changes() -> list[str]:
    return [mutant.change for mutant in mutants(SOURCE, "Owner.method")]


@pytest.mark.parametrize(
    "change",
    [
        "if rows < 0:  =>  if rows <= 0:",
        "if rows < 0:  =>  if rows >= 0:",
        "if rows < 0:  =>  pass",
        "if rows < 0:  =>  if True:",
        "best: 'int' = max(rows, 3)  =>  best: 'int' = min(rows, 3)",
        "best: 'int' = max(rows, 3)  =>  best: 'int' = max(rows, 4)",
        "for size in sizes[:best]:  =>  for size in sizes[:]:",
        "if size == 2 and rows:  =>  if size == 2 or rows:",
        "if size == 2 and rows:  =>  if rows:",
        "if size == 2 and rows:  =>  if size != 2 and rows:",
        "continue  =>  pass",
        "self.total += math.floor(size / rows)  =>  pass",
        "self.total += math.floor(size / rows)  =>  self.total -= math.floor(size / rows)",
        "self.total += math.floor(size / rows)  =>  self.total += math.ceil(size / rows)",
        "self.total += math.floor(size / rows)  =>  self.total += math.floor(size * rows)",
        "return self.find(best, rows, mask=mask)  =>  return self.find(rows, best, mask=mask)",
        "return self.find(best, rows, mask=mask)  =>  return self.find(best, rows)",
    ],
)
def test_a_mistake_of_each_kind_is_made(change: str) -> None:
    assert change in changes()


def test_a_mutant_is_the_file_with_one_function_changed() -> None:
    for mutant in mutants(SOURCE, "Owner.method"):
        tree, other = ast.parse(SOURCE), ast.parse(mutant.text)
        assert [ast.dump(node) for node in tree.body[:2]] == [
            ast.dump(node) for node in other.body[:2]
        ]
        assert ast.dump(tree) != ast.dump(other)
        changed = [line for line in SOURCE.splitlines() if line not in mutant.text.splitlines()]
        gone = ("for size" in changed[0] and len(changed) == 1) or len(changed) <= 3
        assert gone, "all other lines stay as they were written"
        assert "# a comment" in mutant.text or "sizes[" in mutant.change.partition("=>")[0]


@pytest.mark.parametrize(
    "lab",
    [
        pytest.param(lab, marks=[pytest.mark.slow] if "torch" in lab.packages else [])
        for lab in LABS
    ],
    ids=lambda lab: lab.name,
)
def test_two_mistakes_never_share_a_name_and_entries_name_some_that_exist(lab: Lab) -> None:
    found = all_mutants(lab)
    named = [(mutant.file, mutant.hole, mutant.change) for mutant in found]
    assert len(set(named)) == len(named)
    least = 20 if lab.minutes > 10 else 2  # lab 0 is four lines
    assert len(named) >= least, f"{lab.name} has hardly anything to mistake"
    for mutant in found[::10]:
        compile(mutant.text, mutant.file, "exec")
    assert not stale_entries(lab, found)


# ---------------------------------------------------------------- the score


@pytest.mark.parametrize(
    "lab", [lab for lab in LABS if "torch" not in lab.packages][::2], ids=lambda lab: lab.name
)
def test_mistakes_of_a_fixed_sample_die(lab: Lab) -> None:
    """All of them run in `make slow`."""
    listed = mutation.equivalents(lab)
    for mutant in fixed_sample(lab, 1):
        if (mutant.hole, mutant.change) not in listed:
            assert not mutation.run_mutant(lab, mutant).passed, f"{mutant.hole}: {mutant.change}"


@pytest.mark.slow
@pytest.mark.parametrize("lab", LABS, ids=lambda lab: lab.name)
def test_at_least_97_percent_of_all_mistakes_die(lab: Lab) -> None:
    found = score(lab, jobs=1)
    assert found.good, [*(f"{m.hole}: {m.change}" for m in found.alive), *found.wrong]


def lab_with(tmp_path: Path, entries: str) -> Lab:
    (tmp_path / "equivalent.toml").write_text(entries)
    for path in lab_number("4").folder.iterdir():
        if path.name != "equivalent.toml":
            (tmp_path / path.name).symlink_to(path)
    return replace(lab_number("4"), folder=tmp_path)


def entry(hole: str, change: str, reason: str = "a reason of more than twenty letters") -> str:
    return f'[[equivalent]]\nhole = "{hole}"\nchange = "{change}"\nreason = "{reason}"\n'


def test_an_entry_that_names_no_mutant_or_one_that_dies_is_an_error(tmp_path: Path) -> None:
    dies = "return kernels * kernel_us / itl_us  =>  return kernels * kernel_us * itl_us"
    lab = lab_with(tmp_path, entry("utilisation", dies) + entry("utilisation", "gone  =>  pass"))
    chosen = [m for m in all_mutants(lab) if m.hole == "utilisation"]
    found = score(lab, chosen)
    assert len(found.wrong) == 2
    assert not found.good
    assert found.share == 1
