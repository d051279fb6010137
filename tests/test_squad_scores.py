"""EM and F1: worked cases, and plain computations of the same words in other ways."""

import math
import random
import string

import pytest

from keras_bert_lab.errors import UserError
from keras_bert_lab.squad import Question
from keras_bert_lab.squad_scores import SCRIPTS, evaluate, exact, f1, latin_words, longest_run


@pytest.mark.parametrize(
    ("gold", "predicted", "em", "score"),
    [
        ("The Eiffel Tower", "eiffel  tower!", 1, 1),
        ("the cat", "a cat", 1, 1),  # articles
        ("theatre an", "theatre", 1, 1),
        ("anthem", "them", 0, 0),  # an article is a whole word
        ("a-b", "ab", 1, 1),  # punctuation vanishes, it does not part
        ("A. B.", "b", 1, 1),  # after it "a" is an article
        ("b's the-a", "bs thea", 1, 1),
        ("1,000", "1000", 1, 1),
        ("“quoted”", "quoted", 0, 0),  # only ASCII punctuation
        ("x y", "y x", 0, 1),  # F1 is of bags
        ("x x y", "x", 0, 2 * (1 / 1) * (1 / 3) / (1 / 1 + 1 / 3)),
        ("x", "x x x", 0, 0.5),
        ("in the Eiffel Tower", "Eiffel Tower", 0, 0.8),
        ("ÉTÉ", "été", 1, 1),
        ("x\u00a0y\u3000z", "x y z", 1, 1),  # all of Unicode's blanks
        ("two", "", 0, 0),
        ("two", "the", 0, 0),
    ],
)
@pytest.mark.parametrize("script", ["squad1", "squad2"])
def test_words_as_in_both_squads(script, gold, predicted, em, score):
    assert exact([gold], predicted, script) == em
    assert f1([gold], predicted, script) == pytest.approx(score, abs=1e-15)


def test_where_the_two_squads_differ():
    """An answer without words: right, but of F1 0 in 1.1; in 2.0 it is the same as no answer."""
    assert (exact(["The"], "the", "squad1"), f1(["The"], "the", "squad1")) == (1, 0)
    assert (exact(["The"], "the", "squad2"), f1(["The"], "the", "squad2")) == (1, 1)
    assert (exact(["The", "cat"], "", "squad1"), f1(["The", "cat"], "", "squad1")) == (1, 0)
    assert (exact(["The", "cat"], "", "squad2"), f1(["The", "cat"], "", "squad2")) == (0, 0)  # "The" is no gold answer
    assert (exact([], "", "squad2"), f1([], "", "squad2")) == (1, 1)
    assert (exact([], "?!", "squad2"), f1([], "?!", "squad2")) == (1, 1)
    assert (exact([], "cat", "squad2"), f1([], "cat", "squad2")) == (0, 0)


def test_the_best_of_several_gold_answers():
    for script in SCRIPTS:
        assert exact(["x", "y z"], "y z", script) == 1
        assert f1(["w x", "y z w"], "y z", script) == pytest.approx(0.8)


@pytest.mark.parametrize(
    ("gold", "predicted", "em", "score"),
    [
        ("北京大学", "北京大学", 1, 1),
        ("北京大学", "北京，大学。", 1, 1),  # its signs vanish
        ("北京大学", "大学北京", 0, 0.5),  # the longest run is two characters
        ("北京大学", "在北京大学", 0, 8 / 9),
        ("北京大学", "北大", 0, 2 * (1 / 2) * (1 / 4) / (3 / 4)),
        ("1990年", "1990 年", 0, 1),  # one number, one character; the blank counts for EM only
        ("1990年", "199年", 0, 0.5),
        ("Li Ming", "li ming", 1, 1),
        ("Li Ming", "liming", 0, 0),
        ("《红楼梦》", "红楼梦", 1, 1),
        ("a-b", "ab", 1, 1),
        ("3.5%", "3.5", 0, 2 / 3),
        ("(中国)", "中国", 0, 2 * 1 * 0.5 / 1.5),  # ASCII brackets are words
        ("……", "…", 0, 0.0 + 2 * 0 + 0),  # the two-character sign of the script's list equals no character
        ("龦", "龦", 1, 1),  # after U+9FA5: not Chinese to the script
        ("龦龧", "龦", 0, 0),
        ("中", "", 0, 0),
        ("", "", 1, 0),  # as in 1.1
        ("，", "。", 1, 0),
    ],
)
def test_cmrc(gold, predicted, em, score):
    assert exact([gold], predicted, "cmrc2018") == em
    assert f1([gold], predicted, "cmrc2018") == pytest.approx(score, abs=1e-15)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("li ming's book", ["li", "ming", "'s", "book"]),
        ("don't we'll", ["do", "n't", "we", "'ll"]),
        ("students' work", ["students", "'", "work"]),
        ("'quoted'", ["'", "quoted", "'"]),
        ("1,000.50", ["1,000.50"]),
        ("a, b,c", ["a", ",", "b", ",", "c"]),
        ("u.s. army.", ["u.s.", "army", "."]),
        ("(end.)", ["(", "end", ".", ")"]),
        ("wait... what?!", ["wait", "...", "what", "?", "!"]),
        ('say "yes" now', ["say", "``", "yes", "''", "now"]),
        ("50% $3 a&b c@d #e", ["50", "%", "$", "3", "a", "&", "b", "c", "@", "d", "#", "e"]),
        ("[x]{y}<z>;*", ["[", "x", "]", "{", "y", "}", "<", "z", ">", ";", "*"]),
        ("  ", []),
    ],
)
def test_latin_words(text, words):
    assert latin_words(text) == words


# ---- the same in other ways ------------------------------------------------------------------------------------------


def plain_words(text):
    """SQuAD's normalisation, character by character."""
    kept = "".join(c for c in text.lower() if c not in string.punctuation)
    parts, word = [], ""
    for c in [*kept, " "]:
        if c.isalnum() or c == "_":
            word += c
        else:
            parts += ["" if word in ("a", "an", "the") else word, c]
            word = ""
    joined = "".join(" " if p == "" else p for p in parts)
    return joined.split()


def plain_f1(gold, found, same):
    if same == 0:
        return 0.0
    return 2 * same / (len(gold) + len(found))  # = 2PR / (P + R)


def overlap(one, other):
    rest, same = list(other), 0
    for word in one:
        if word in rest:
            rest.remove(word)
            same += 1
    return same


def texts(dice, n):
    parts = ["the", "The", "a", "an", "cat", "Cat", "dog", "the-cat", "a.", "...", "'s", "!", "1,000", "", "x_y", "été"]
    blanks = [" ", "  ", "", "\t", "\u00a0"]
    return ["".join(dice.choice(parts) + dice.choice(blanks) for _ in range(dice.randrange(6))) for _ in range(n)]


def test_squad_scores_computed_plainly():
    dice = random.Random(1)
    for _ in range(3000):
        golds, predicted = texts(dice, dice.randrange(1, 4)), texts(dice, 1)[0]
        found = plain_words(predicted)
        assert exact(golds, predicted, "squad1") == float(any(plain_words(g) == found for g in golds))
        right = max(plain_f1(plain_words(g), found, overlap(plain_words(g), found)) for g in golds)
        assert f1(golds, predicted, "squad1") == pytest.approx(right, abs=1e-12)
        worded = [plain_words(g) for g in golds if plain_words(g)] or [[]]
        assert exact(golds, predicted, "squad2") == float(found in worded)
        right = max(float(g == found) if not (g and found) else plain_f1(g, found, overlap(g, found)) for g in worded)
        assert f1(golds, predicted, "squad2") == pytest.approx(right, abs=1e-12)


def test_longest_runs_by_all_stretches():
    dice = random.Random(2)
    for _ in range(500):
        one, other = (["".join(dice.choice("abc")) for _ in range(dice.randrange(9))] for _ in range(2))
        stretches = {tuple(other[i:j]) for i in range(len(other)) for j in range(i, len(other) + 1)}
        right = max((j - i for i in range(len(one)) for j in range(i, len(one) + 1) if tuple(one[i:j]) in stretches),
                    default=0)  # fmt: skip
        assert longest_run(one, other) == right


def asked(**answers):
    """Questions by id; an answer is a list of texts."""
    return [
        Question(i, "?", "c", tuple((t, 0) for t in golds), impossible=not golds, labelled=True)
        for i, golds in answers.items()
    ]


def test_evaluate_1_1():
    questions = asked(q=["the cat"], r=["a dog barks", "dog"], s=["x"])
    found = evaluate(questions, {"q": "Cat", "r": "a big dog", "zz": "?"}, "squad1")
    assert found == {"exact_match": pytest.approx(100 / 3), "f1": pytest.approx(100 * (1 + 2 / 3) / 3), "missing": 1}
    assert evaluate([], {}, "squad1") == {"exact_match": 0.0, "f1": 0.0, "missing": 0}


def test_evaluate_cmrc():
    questions = asked(q=["北京大学"], r=["1990年"])
    found = evaluate(questions, {"q": "北京。"}, "cmrc2018")
    assert found == {"average": pytest.approx((0 + 100 / 3) / 2), "f1": pytest.approx(100 / 3), "em": 0.0, "total": 2,
                     "missing": 1}  # fmt: skip


def test_evaluate_2_0():
    questions = asked(q=["the cat"], r=["big dog"], no=[], non=[], gone=["x"])
    predictions = {"q": "cat", "r": "dog", "no": "", "non": "fish"}
    found = evaluate(questions, predictions)
    assert found == {
        **{"exact": 50.0, "f1": pytest.approx(100 * (1 + 2 / 3 + 1) / 4), "total": 4},
        **{"HasAns_exact": 50.0, "HasAns_f1": pytest.approx(100 * (1 + 2 / 3) / 2), "HasAns_total": 2},
        **{"NoAns_exact": 50.0, "NoAns_f1": 50.0, "NoAns_total": 2, "missing": 1},
    }
    doubts = {"q": 0.1, "r": 0.4, "no": 0.2, "non": 0.9}
    found = evaluate(questions, predictions, differences=doubts, threshold=0.5)
    assert found["exact"] == 75.0 and found["NoAns_exact"] == 100.0
    assert found["f1"] == pytest.approx(100 * (1 + 2 / 3 + 1 + 1) / 4)
    # from 2 (answer nothing) on: q 3, no 3, r 3 or 3 2/3, non one less
    assert (found["best_exact"], found["best_exact_thresh"]) == (75.0, 0.1)
    assert (found["best_f1"], found["best_f1_thresh"]) == (pytest.approx(100 * (3 + 2 / 3) / 4), 0.4)
    only = evaluate(asked(no=[]), {"no": "x"}, differences={"no": 3.0})
    assert (only["best_f1"], only["best_f1_thresh"]) == (100.0, 0.0) and "HasAns_f1" not in only
    assert evaluate([], {}) == {"exact": 0.0, "f1": 0.0, "total": 0, "missing": 0}


def test_the_best_threshold_is_at_least_every_threshold():
    """By trying all of them; the script may count more only where doubts are equal, which it parts all the same."""
    dice = random.Random(4)
    for trial in range(200):
        golds = {f"q{i}": dice.choice([[], ["cat"], ["big cat", "dog"]]) for i in range(9)}
        predictions = {i: dice.choice(["", "cat", "dog", "big fish"]) for i in golds}
        spread = (lambda: dice.random()) if trial % 2 else (lambda: dice.randrange(3) / 2)
        doubts = {i: spread() for i in golds}
        questions = asked(**golds)
        found = evaluate(questions, predictions, differences=doubts)
        tried = [evaluate(questions, predictions, differences=doubts, threshold=t) for t in (-1.0, *doubts.values())]
        for name in ("exact", "f1"):
            best = max(t[name] for t in tried)
            assert found[f"best_{name}"] >= best - 1e-9
            if trial % 2:
                assert found[f"best_{name}"] == pytest.approx(best)


def test_an_id_twice():
    """The 1.1 script goes through questions, the 2.0 script through ids: the last one stands."""
    questions = asked(q=["x"]) + asked(q=["y"])
    assert evaluate(questions, {"q": "y"}, "squad1")["exact_match"] == 50.0
    assert evaluate(questions, {"q": "y"}, "squad2")["exact"] == 100.0


def test_requests_that_make_no_sense():
    with pytest.raises(UserError, match="use one of squad1, squad2, cmrc2018"):
        exact(["x"], "x", "glue")
    with pytest.raises(UserError, match="is one string"):
        f1("x", "x")
    with pytest.raises(UserError, match="lack 1 questions .q."):
        evaluate(asked(q=["x"]), {"q": "x"}, differences={})
    with pytest.raises(UserError, match="threshold: is given without differences"):
        evaluate(asked(q=["x"]), {"q": "x"}, threshold=1.0)
    with pytest.raises(UserError, match="no meaning in squad1"):
        evaluate(asked(q=["x"]), {"q": "x"}, "squad1", differences={"q": 0.0})
    assert math.isinf(evaluate(asked(q=["x"]), {"q": "x"}, differences={"q": math.inf})["best_f1_thresh"])
