"""The parts of an evaluation that need no app: measures, questions, combinations, plots."""

from pathlib import Path
from xml.etree import ElementTree

import pytest

from penstock.errors import UsageError
from penstock.evaluation import metrics
from penstock.evaluation.combinations import combinations, parse_try
from penstock.evaluation.plot import bars, svg
from penstock.evaluation.questions import Passage, Question, make_question, normalise, read_questions
from penstock.evaluation.report import Latency, Result


def test_recall_counts_questions_with_a_right_hit_among_the_first_k() -> None:
    ranks = [1, 3, None, 10]
    assert [metrics.recall(ranks, k) for k in (1, 2, 3, 10)] == [0.25, 0.25, 0.5, 0.75]


def test_the_reciprocal_rank_of_a_question_without_a_right_hit_is_zero() -> None:
    assert metrics.mean_reciprocal_rank([1, 2, None, 4]) == pytest.approx((1 + 0.5 + 0.25) / 4)


def test_percentiles_are_measured_values() -> None:
    times = [float(n) for n in range(100, 0, -1)]
    assert metrics.percentile(times, 0.5) == 50
    assert metrics.percentile(times, 0.95) == 95
    assert metrics.percentile([7.0], 0.95) == 7


def test_measures_of_nothing_are_zero() -> None:
    assert metrics.recall([], 1) == metrics.mean_reciprocal_rank([]) == metrics.percentile([], 0.5) == 0
    assert metrics.margin(0.5, 0) == 0


def test_a_few_right_answers_are_not_exact() -> None:
    assert metrics.margin(1.0, 2) == pytest.approx(0.33, abs=0.01)
    assert metrics.margin(0.85, 300) == pytest.approx(0.04, abs=0.001)


@pytest.mark.parametrize(
    ("answer", "text", "there"),
    [
        ("Every  Spring", "It is inspected every\nspring.", True),
        ("art", "the party", False),
        ("375", "1375 turns", False),
        ("ﬁre", "a FIRE broke out", True),
        ("C++", "written in C", False),
        ("C++", "written in C++.", True),
        ("北京", "我在北京工作", True),
        ("서울", "서울은 수도이다", True),
        ("straße", "die STRASSE", True),
        ("don't", "I don’t know", True),
        ("हिन्दी", "यह हिन्दी है", True),
    ],
)
def test_an_answer_is_found_whatever_its_case_and_punctuation_but_as_whole_words(
    answer: str, text: str, there: bool
) -> None:
    assert (normalise(answer) in normalise(text)) is there


def passage(text: str = "", page: int = 1, page_end: int = 1) -> Passage:
    return Passage("01ABC", "dam.md", "/notes/river/dam.md", page, page_end, normalise(text))


@pytest.mark.parametrize("name", ["01abc", "01ABC", "dam.md", "/notes/river/dam.md", "river/dam.md", "./dam.md"])
def test_a_document_is_known_by_its_id_its_name_and_its_path(name: str) -> None:
    assert Question(1, "?", document=name).accepts(passage())


@pytest.mark.parametrize("name", ["am.md", "dam", "notes", "other/dam.md", "01"])
def test_a_part_of_a_name_is_another_document(name: str) -> None:
    assert not Question(1, "?", document=name).accepts(passage())


def test_everything_that_is_given_must_hold() -> None:
    question = make_question(
        {"question": "?", "answer": "spring", "answers": ["May"], "document": "dam.md", "page": 3}, 1, "x"
    )
    assert question.accepts(passage("in spring", 2, 3))
    assert question.accepts(passage("in May", 3, 3))
    assert not question.accepts(passage("in June", 3, 3))
    assert not question.accepts(passage("in spring", 1, 2))


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("{", "not a JSON object"),
        ("[1]", "expected an object"),
        ('{"question": " ", "answer": "a"}', "`question` is missing or empty"),
        ('{"question": "q"}', "say what is right"),
        ('{"question": "q", "page": 1}', "say what is right"),
        ('{"question": "q", "answer": 5}', "`answer` must be text"),
        ('{"question": "q", "answers": "a"}', "must be a list"),
        ('{"question": "q", "answers": ["..."]}', "no letters or digits"),
        ('{"question": "q", "answer": "a", "page": 0}', "expected a number from 1"),
        ('{"question": "q", "anwser": "a"}', "unknown field 'anwser'"),
    ],
)
def test_a_bad_line_is_named_by_its_number(tmp_path: Path, line: str, message: str) -> None:
    path = tmp_path / "q.jsonl"
    path.write_text('{"question": "q", "answer": "a"}\n\n' + line + "\n")
    with pytest.raises(UsageError, match=r"q\.jsonl:3: ") as raised:
        read_questions(path)
    assert message in str(raised.value)


def test_a_csv_file_has_a_header(tmp_path: Path) -> None:
    path = tmp_path / "q.csv"
    path.write_text('\ufeffquestion,answer,page\n"Who, then?",ann,\nWhere?,here,2\n', encoding="utf-8")
    first, second = read_questions(path)
    assert (first.question, first.answers, first.page, first.line) == ("Who, then?", (" ann ",), None, 2)
    assert second.page == 2


def test_a_csv_file_with_another_column_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "q.csv"
    path.write_text("query,answer\nWhere?,here\n")
    with pytest.raises(UsageError, match=r"q\.csv:2: unknown field 'query'"):
        read_questions(path)


def test_a_file_without_questions_and_one_that_is_missing_are_errors(tmp_path: Path) -> None:
    (tmp_path / "empty.jsonl").write_text("\n")
    with pytest.raises(UsageError, match="no questions"):
        read_questions(tmp_path / "empty.jsonl")
    with pytest.raises(UsageError, match="could not be read"):
        read_questions(tmp_path / "none.jsonl")


def test_values_form_all_combinations_after_the_present_settings() -> None:
    found = combinations(dict([parse_try("chunk.size=500,1000"), parse_try("mode=text,hybrid")]))
    assert found[0] == {}
    assert len(found) == 5
    assert {"chunk.size": 1000, "mode": "text"} in found


@pytest.mark.parametrize("text", ["chunk.size", "=5", "chunk.size=", "chunk.size=5,,6", "mode=[a]"])
def test_what_is_no_list_of_values_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match="write NAME=VALUE"):
        parse_try(text)


@pytest.mark.parametrize(
    ("tries", "message"),
    [
        ({"mode": ["words"]}, "use one of hybrid"),
        ({"size": [5]}, "cannot be tried"),
        ({"chunk.size": []}, "no value"),
        ({"chunk.size": list(range(33))}, "33 combinations"),
    ],
)
def test_combinations_that_make_no_sense_are_refused(tries: dict[str, list[object]], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        combinations(tries)


def result(name: str, low: float, high: float) -> Result:
    return Result({"mode": name}, False, name, 1, 1, {"1": low, "5": high}, 0.5, Latency(1, 2), [], [])


def test_bars_are_as_long_as_recall() -> None:
    legend, first, second = bars([result("text", 0.5, 1.0), result("<&>", 0.0, 0.25)], [1, 5], 80)
    assert "█ @1" in legend
    assert first.count("█") == first.count("▓")
    assert "·" not in first
    assert second.count("█") == 0
    assert second.count("·") == 3 * second.count("▓") or second.count("▓") in (12, 13)


def test_the_svg_file_is_well_formed_and_names_every_combination() -> None:
    drawn = ElementTree.fromstring(svg([result("text", 0.5, 1.0), result("<&>", 0.0, 0.25)], [1, 5], "a<b", 7))
    texts = [one.text for one in drawn.iter("{http://www.w3.org/2000/svg}text")]
    assert {"Recall in a<b: 7 questions", "mode=text", "mode=<&>"} <= set(texts)
