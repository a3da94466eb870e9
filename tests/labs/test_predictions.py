"""Before a lab one commits to answers; after it their key is shown, and the key is computed."""

from __future__ import annotations

import ast
import json
import re

import pytest

from labs.runner import workspace
from labs.runner.cli import main
from labs.runner.cut.catalogue import Lab, all_labs, lab_number
from labs.runner.predictions import better, said, say
from labs.runner.questions import Question, questions
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
    for chapter in sorted((ROOT / "course").glob("[0-9][0-9]-*.md")):
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


# ---------------------------------------------------------------- saying and being told


@pytest.fixture(autouse=True)
def _a_learner_of_our_own(tmp_path, monkeypatch) -> None:  # type: ignore[no-untyped-def]
    monkeypatch.setenv("LABS_HOME", str(tmp_path / "mine"))
    monkeypatch.setenv("COLUMNS", "300")


LAB = lab_number(1)


def solve(lab: Lab = LAB) -> None:
    main(["start", str(lab.number)])
    for file, text in lab.reference().items():
        workspace.my_files(lab)[file].write_text(text)
    assert main(["check", str(lab.number)]) == 0


def test_what_one_says_stays_hidden_until_green_and_is_scored_then(
    capsys: pytest.CaptureFixture[str],
) -> None:
    one, two, *_ = questions(LAB)
    assert main(["predict", "1", "--question", "1", "--say", "10%", "--because", "a guess"]) == 0
    assert main(["predict", "1", "--question", "2", "--say", "3,000"]) == 0
    told = capsys.readouterr().out
    assert "you said 10 %, because a guess" in told
    assert two.key not in told
    assert one.because not in told
    solve()
    told = capsys.readouterr().out
    assert "1 of 2 predictions were right" in told
    assert main(["predict", "1"]) == 0
    told = capsys.readouterr().out
    assert f"✓ the key: {one.key}" in told
    assert f"✗ the key: {two.key}" in told
    assert one.because in told
    assert main(["ledger"]) == 0
    told = capsys.readouterr().out
    assert "1 of 2 predictions were right" in told
    assert (workspace.home() / "predictions.png").exists()


@pytest.mark.parametrize("words", [[], ["start", "1"]], ids=["the first minute", "start"])
def test_the_questions_come_before_the_reading_until_they_are_answered(
    words: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    count = len(questions(LAB))
    main(words)
    told = capsys.readouterr().out
    assert f"labs predict 1   {count} questions, before you read" in told
    assert told.index("labs predict 1") < told.index("read    course/")
    for number in range(1, count):
        main(["predict", "1", "--question", str(number), "--say", "1"])
    capsys.readouterr()
    main(["start", "1"])
    assert "labs predict 1   1 question, before you read" in capsys.readouterr().out
    main(["predict", "1", "--question", str(count), "--say", "1"])
    capsys.readouterr()
    main(["start", "1"])
    assert "labs predict" not in capsys.readouterr().out


def test_what_is_said_after_green_does_not_count(capsys: pytest.CaptureFixture[str]) -> None:
    solve()
    main(["predict", "1", "--question", "1", "--say", "10"])
    assert "after the lab" in capsys.readouterr().out
    assert main(["ledger", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["predictions"] == []


def test_what_was_scored_stays_so_when_the_lab_fails_again(
    capsys: pytest.CaptureFixture[str],
) -> None:
    one, two, *_ = questions(LAB)
    main(["predict", "1", "--question", "1", "--say", "10"])
    solve()
    file = next(iter(workspace.my_files(LAB).values()))
    file.write_text(f"{file.read_text()}\nraise ValueError\n")
    assert main(["check", "1"]) == 1
    capsys.readouterr()
    main(["predict", "1", "--question", "2", "--say", str(two.answer)])
    told = capsys.readouterr().out
    assert f"the key: {one.key}" in told
    assert "after the lab" in told, "its key was shown already"
    assert main(["ledger", "--json"]) == 0
    scored = json.loads(capsys.readouterr().out)
    assert [found["question"] for found in scored["predictions"]] == [one.asks]
    assert scored["waiting"] == 0


def test_another_answer_replaces_the_first_until_green() -> None:
    one = questions(LAB)[0]
    say(one, 5.0, "", late=False)
    say(one, 9.0, "", late=False)
    say(one, one.answer, "", late=True)
    assert [found.said for found in said(questions(LAB))] == [9.0]


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["--question", "9", "--say", "1"], "1 to 4, given 9"),
        (["--question", "1", "--say", "much"], "expected a number in %"),
        (["--question", "3", "--say", "4"], "expected one of 1 to 3"),
        (["--question", "1"], "belong together"),
        (["--question", "1", "--say", "nan"], "expected a number"),
    ],
)
def test_an_answer_that_is_none_gets_one_line(
    words: list[str], says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["predict", "1", *words]) == 2
    told = capsys.readouterr().err
    assert says in told
    assert len(told.splitlines()) == 1


def test_a_damaged_file_of_predictions_is_named_with_its_line(
    capsys: pytest.CaptureFixture[str],
) -> None:
    say(questions(LAB)[0], 5.0, "", late=False)
    path = workspace.home() / "predictions.jsonl"
    path.write_text(path.read_text() + "{not json\n")
    assert main(["predict", "1"]) == 2
    assert f"{path}:2" in capsys.readouterr().err


def test_one_got_better_if_the_second_half_is_more_often_right() -> None:
    numbers = questions(LAB)[:1] * 8
    one = numbers[0]
    wrong, right = [say_it(one, one.answer * 10)] * 4, [say_it(one, one.answer)] * 4
    assert better([*wrong, *right]) == (0.0, 1.0)
    assert better(right) is None, "too few to tell"
    assert wrong[0].factor_off == pytest.approx(10)


def say_it(question: Question, value: float):  # type: ignore[no-untyped-def]
    from labs.runner.predictions import Said

    return Said(question, value, "", "2026-01-01", late=False)
