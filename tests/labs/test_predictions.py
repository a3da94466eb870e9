"""Before a lab one commits to answers; after it their key is shown, and the key is computed."""

from __future__ import annotations

import ast
import json
import re

import pytest

from labs.runner import workspace
from labs.runner.cut.catalogue import Lab, all_labs, lab_number
from labs.runner.predict import Question, answers, questions, record
from tests.labs.conftest import Say, mark_passed
from tests.support.documents import ROOT, prose

LABS = all_labs()
each_lab = pytest.mark.parametrize("lab", LABS, ids=lambda lab: lab.name)
QUESTIONS = [
    pytest.param(one, id=f"{lab.name}-{one.number}") for lab in LABS for one in questions(lab)
]


# ---------------------------------------------------------------- the questions of the labs


@each_lab
def test_a_lab_asks_two_to_four_questions_and_says_why(lab: Lab) -> None:
    asked = questions(lab)
    assert 2 <= len(asked) <= 4
    assert len({one.id for one in asked}) == len(asked)
    for one in asked:
        assert one.asks.endswith("?"), one.asks
        assert len(one.because) > 20
        assert len(one.choices) != 1
        assert len(set(one.choices)) == len(one.choices)


@each_lab
def test_the_page_of_a_lab_keeps_its_keys_to_itself(lab: Lab) -> None:
    """It may be read before one predicts."""
    page = re.sub(r"<details>.*?</details>", "", (lab.folder / "README.md").read_text(), flags=re.S)
    page = " ".join(page.split())
    for one in questions(lab):
        if one.unit:
            assert not re.search(rf"(?<![\d,.]){one.answer:,g} {one.unit}", page), one.asks


@pytest.mark.parametrize("question", [q for q in QUESTIONS if q.values[0].compute])  # type: ignore[attr-defined]
def test_the_key_is_what_its_lines_compute(question: Question) -> None:
    tree = ast.parse(question.compute.strip())
    last = tree.body.pop()
    assert isinstance(last, ast.Expr), "the last line is the answer"
    names: dict[str, object] = {}
    exec(compile(tree, question.asks, "exec"), names)
    computed = eval(compile(ast.Expression(last.value), question.asks, "eval"), names)
    if question.choices:
        assert computed == question.answer
    else:
        assert isinstance(computed, (int, float))
        assert computed == pytest.approx(question.answer, rel=0.02), "the key is rounded, no more"
        assert question.near >= 0.02 or computed == question.answer


def asked_in_documents() -> dict[str, int]:
    """Each place that says "predict before" -> how many questions stand there."""
    found = {}
    # the others give their answers themselves, and so does chapter 0, which comes after its lab
    with_a_lab = {lab.chapter for lab in LABS if lab.number != "0"}
    for chapter in sorted((ROOT / "course").glob("[0-9][0-9]-*.md")):
        if f"course/{chapter.name}" not in with_a_lab:
            continue
        part = (
            chapter.read_text().partition("\n## Predict before you run\n")[2].partition("\n## ")[0]
        )
        count = len(re.findall(r"^> \d+\. ", part, re.MULTILINE))
        assert count, chapter.name
        found[f"course/{chapter.name}#predict-before-you-run"] = count
    for lab in LABS:
        text = prose((lab.folder / "README.md").read_text())
        if "**Predict before you" in text:
            heading = re.findall(r"^## (.+)$", text.partition("**Predict before you")[0], re.M)[-1]
            found[f"labs/{lab.name}/README.md#{heading.lower().replace(' ', '-')}"] = 1
    return found


@pytest.mark.parametrize(("place", "count"), asked_in_documents().items())
def test_every_prediction_that_a_page_asks_for_has_its_key(place: str, count: int) -> None:
    keyed = [one for lab in LABS for one in questions(lab) if place in one.asked_in]
    assert len(keyed) >= count


def test_every_place_that_a_question_names_asks_for_a_prediction() -> None:
    named = {place for lab in LABS for one in questions(lab) for place in one.asked_in}
    assert named <= set(asked_in_documents())


# ---------------------------------------------------------------- answering, and seeing the key


LAB = lab_number("4")


def test_an_answer_stays_hidden_until_green_and_is_scored_then(say: Say) -> None:
    one, two, *_ = questions(LAB)
    keys = [question.in_words(question.answer) for question in (one, two)]
    words = ["predict", "4", "--question", "1", "--say", "10%", "--because", "a guess"]
    code, said = say(*words)
    assert code == 0
    assert "10 %, because a guess" in said
    code, said = say("predict", "4", "--question", "2", "--say", "3,000")
    assert code == 0
    assert keys[1] not in said
    assert one.because not in said
    waiting = json.loads(say("ledger", "--json")[1])
    assert (waiting["predictions"], waiting["waiting"]) == ([], 2)
    mark_passed(LAB, LAB.reference())
    said = say("predict", "4")[1]
    assert f"✓ the key: {keys[0]}" in said
    assert f"✗ the key: {keys[1]}" in said
    assert one.because in said
    scored = json.loads(say("ledger", "--json")[1])
    assert [found["right"] for found in scored["predictions"]] == [True, False]
    assert "1 of 2" in say("ledger")[1]


def test_once_the_key_is_known_no_answer_is_taken_also_if_the_lab_fails_again(say: Say) -> None:
    say("predict", "4", "--question", "1", "--say", "10")
    mark_passed(LAB, LAB.reference())
    file = workspace.my_files(LAB)["launch_model.py"]
    file.write_text(f"{file.read_text()}\nraise ValueError\n")
    assert say("check", "4")[0] == 1
    assert say("predict", "4", "--question", "2", "--say", "1")[0] == 2
    assert len(json.loads(say("ledger", "--json")[1])["predictions"]) == 1


@pytest.mark.usefixtures("home")
def test_the_last_answer_counts() -> None:
    one = questions(LAB)[0]
    for value in (5.0, 9.0):
        record(one, value, "")
    assert [found.value for found in answers(questions(LAB))] == [9.0]


@pytest.mark.parametrize(
    ("words", "named"),
    [
        (["--question", "9", "--say", "1"], "9"),
        (["--question", "1", "--say", "much"], "much"),
        (["--question", "3", "--say", "4"], "1 to 3"),
        (["--say", "1"], "--question"),
        (["--question", "1", "--say", "nan"], "nan"),
    ],
)
def test_an_answer_that_is_none_gets_one_line(say: Say, words: list[str], named: str) -> None:
    code, said = say("predict", "4", *words)
    assert code == 2
    assert named in said
    assert len(said.splitlines()) == 1
