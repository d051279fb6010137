"""Tags: every scheme, both ways to read entities against a second definition, conversion, legality, scores.

The second definition is written with regular expressions, one string a type. When `Scorer` was written it was also
compared with `seqeval` 1.2.2 (39,058 times: all schemes, both modes, overall and per type) and with the decisions of
the conlleval script in Perl (7,840 times: IOB1, IOB2) on random groups of sentences, most of which broke their scheme:
no difference. `seqeval` itself is not needed here.
"""

import itertools
import json
import random
import re

import numpy as np
import pytest

from keras_bert_lab import UserError
from keras_bert_lab.tags import (
    MODES,
    SCHEMES,
    Scorer,
    Span,
    broken,
    convert,
    detect,
    encode,
    is_tag,
    labels,
    legal,
    scheme_name,
    spans,
    split,
)

# One entity of one, two, three words; two neighbours of one type; two of different types.
WRITTEN = {
    "IOB1": ["I-X", "I-X I-X", "I-X I-X I-X", "I-X B-X I-X", "I-X I-Y"],
    "IOB2": ["B-X", "B-X I-X", "B-X I-X I-X", "B-X B-X I-X", "B-X B-Y"],
    "BIOES": ["S-X", "B-X E-X", "B-X I-X E-X", "S-X B-X E-X", "S-X S-Y"],
    "BILOU": ["U-X", "B-X L-X", "B-X I-X L-X", "U-X B-X L-X", "U-X U-Y"],
    "BMES": ["S-X", "B-X E-X", "B-X M-X E-X", "S-X B-X E-X", "S-X S-Y"],
}
MEANT = [
    [Span("X", 0, 1)],
    [Span("X", 0, 2)],
    [Span("X", 0, 3)],
    [Span("X", 0, 1), Span("X", 1, 3)],
    [Span("X", 0, 1), Span("Y", 1, 2)],
]


def nasty(rng, scheme, types=("X", "Y"), longest=9):
    """Any tags of the scheme in any order: mostly broken."""
    return [rng.choice(labels(types, scheme)) for _ in range(rng.randrange(longest + 1))]


def tidy(rng, scheme, **more):
    tags = nasty(rng, scheme, **more)
    return encode(spans(tags, scheme), len(tags), scheme)


def of_type(tags, kind, scheme):
    """A letter a word: the tag's role as in BIOES if it has that type, else o."""
    other = {"BILOU": {"L": "E", "U": "S"}, "BMES": {"M": "I"}}.get(scheme, {})
    return "".join(other.get(t[0], t[0]) if t != "O" and t[2:] == kind else "o" for t in tags)


def second_reading(tags, scheme, strict):
    """`spans` by another definition."""
    found = []
    for kind in {tag[2:] for tag in tags if tag != "O"}:
        text = of_type(tags, kind, scheme)
        if not strict:
            pattern = "S|E|[BI]I*E?"
        elif scheme == "IOB2":
            pattern = "BI*"
        elif scheme == "IOB1":
            found += [Span(kind, i, j) for i in range(len(tags)) for j in range(i + 1, len(tags) + 1)
                      if iob1_entity(tags, text, i, j)]  # fmt: skip
            continue
        else:
            pattern = "BI*E|S"
        found += [Span(kind, *match.span()) for match in re.finditer(pattern, text)]
    return sorted(found, key=lambda s: s.start)


def iob1_entity(tags, text, i, j):
    """Whether seqeval's strict IOB1 sees words i to j, all of one type, as an entity of it."""
    padded = "o" + text + "o"  # word i is padded[i + 1]
    if not re.fullmatch("[BI]I*", text[i:j]) or padded[j + 1] == "I":
        return False
    if text[i] == "B" and padded[i] == "o":
        return False  # separates nothing
    if text[i] == "I" and (padded[i] == "I" or (padded[i] == "B" and i > 1 and padded[i - 1] in "BI")):
        return False  # inside
    other = j < len(tags) and tags[j][0] == "B" and padded[j + 1] == "o"
    return not (other and text[j - 1] == "B")


@pytest.mark.parametrize("scheme", SCHEMES)
def test_how_each_scheme_writes_entities(scheme):
    for written, meant in zip(WRITTEN[scheme], MEANT, strict=True):
        tags = written.split()
        for strict in (False, True):
            assert spans(tags, scheme, strict) == meant
            assert spans(["O", *tags, "O"], scheme, strict) == [Span(k, s + 1, e + 1) for k, s, e in meant]
        assert encode(meant[::-1], len(tags), scheme) == tags
        assert broken(tags, scheme) is None
        for other in SCHEMES:
            assert convert(tags, scheme, other) == WRITTEN[other][WRITTEN[scheme].index(written)].split()


@pytest.mark.parametrize("scheme", SCHEMES)
def test_reading_against_a_second_definition_on_nasty_tags(scheme):
    rng = random.Random(scheme)
    for _ in range(3000):
        tags = nasty(rng, scheme, rng.choice([("X",), ("X", "Y"), ("",), ("GENE-or-protein", "GENE")]))
        for strict in (False, True):
            assert spans(tags, scheme, strict) == second_reading(tags, scheme, strict), (tags, strict)


@pytest.mark.parametrize("scheme", SCHEMES)
def test_reading_against_a_second_definition_on_all_short_tags(scheme):
    for length in range(5 if scheme in ("IOB1", "IOB2") else 4):
        for tags in itertools.product(labels("XY", scheme), repeat=length):
            for strict in (False, True):
                assert spans(tags, scheme, strict) == second_reading(tags, scheme, strict), (tags, strict)


def test_strict_reading_where_it_drops_what_conlleval_keeps():
    def both(text, scheme):
        return [[(s.type, s.start, s.end) for s in spans(text.split(), scheme, strict)] for strict in (True, False)]

    assert both("I I", "IOB2") == [[], [("", 0, 2)]]
    assert both("B-X I-Y", "IOB2") == [[("X", 0, 1)], [("X", 0, 1), ("Y", 1, 2)]]
    assert both("B-X I-X O", "BIOES") == [[], [("X", 0, 2)]]
    assert both("B-X B-X L-X", "BILOU") == [[("X", 1, 3)], [("X", 0, 1), ("X", 1, 3)]]
    assert both("S-X E-X M-X", "BMES") == [[("X", 0, 1)], [("X", 0, 1), ("X", 1, 2), ("X", 2, 3)]]
    assert both("B-X I-X", "IOB1") == [[("X", 1, 2)], [("X", 0, 2)]]
    assert both("I-X B-X B-Y", "IOB1") == [[("X", 0, 1)], [("X", 0, 1), ("X", 1, 2), ("Y", 2, 3)]]


# ---- O15 ---------------------------------------------------------------------------------------------------------


def score(gold, predicted, scheme, mode="strict"):
    scorer = Scorer(scheme, mode)
    scorer.add(gold.split(), predicted.split())
    result = scorer.result()
    return [round(result[key], 2) for key in ("precision", "recall", "f1")]


def test_impossible_predictions_score_nothing_in_strict_mode():
    assert score("B-X I-X", "I-X I-X", "IOB2") == [0, 0, 0]
    assert score("B-X I-X", "I-X I-X", "IOB2", "conlleval") == [1, 1, 1]
    assert score("B-P E-P S-P", "B-P I-P S-P", "IOBES") == [1, 0.5, 0.67]
    assert score("B-X E-X B-X E-X", "B-X I-X I-X E-X", "IOBES") == [0, 0, 0]
    scorer = Scorer("IOB2", "strict")
    for gold, predicted in (("OOOBIIO", "OOBIIIO"), ("BIO", "BIO")):
        scorer.add(list(gold), list(predicted))
    assert [scorer.result()[k] for k in ("precision", "recall", "f1")] == [0.5, 0.5, 0.5]


@pytest.mark.parametrize("mode", MODES)
def test_bioes_bilou_and_bmes_of_the_same_data_score_the_same(mode):
    rng = random.Random(0)
    letters = {"BILOU": {"E": "L", "S": "U"}, "BMES": {"I": "M"}}
    scorers = {scheme: Scorer(scheme, mode) for scheme in ("BIOES", "BILOU", "BMES")}
    for _ in range(500):
        gold = tidy(rng, "BIOES")
        predicted = [rng.choice([tag, *labels("XY", "BIOES")]) for tag in gold]
        for scheme, scorer in scorers.items():
            new = letters.get(scheme, {})
            scorer.add(*([new.get(t[0], t[0]) + t[1:] for t in tags] for tags in (gold, predicted)))
    results = [{**scorer.result(), "scheme": ""} for scorer in scorers.values()]
    assert results[0] == results[1] == results[2]
    assert 0.1 < results[0]["f1"] < 0.9


def test_constrained_decoding_never_gives_an_impossible_sequence():
    rng = np.random.default_rng(0)
    for trial in range(1000):
        scheme = SCHEMES[trial % len(SCHEMES)]
        tags = labels(["X", "Y"], scheme)
        start, transition, end = legal(scheme, tags)
        logits = rng.normal(size=(rng.integers(1, 8), len(tags)))
        best, back = np.where(start, logits[0], -np.inf), []
        for row in logits[1:]:
            step = best[:, None] + np.where(transition, 0, -np.inf)
            back.append(step.argmax(0))
            best = step.max(0) + row
        path = [int(np.where(end, best, -np.inf).argmax())]
        for came in reversed(back):
            path.append(int(came[path[-1]]))
        assert broken([tags[i] for i in reversed(path)], scheme) is None


def test_the_scheme_is_part_of_the_score_and_of_what_is_refused():
    result = Scorer("iobes").result()
    assert (result["scheme"], result["mode"]) == ("BIOES", "strict")
    with pytest.raises(UserError, match="tag 'S-X': is no tag of the scheme IOB2, whose prefixes are B, I, O"):
        Scorer("IOB2").add(["S-X"], ["O"])
    with pytest.raises(UserError, match="tag scheme 'BIOSE': is not known; did you mean BIOES"):
        Scorer("BIOSE")
    with pytest.raises(UserError, match="scoring mode 'lenient'"):
        Scorer("IOB2", "lenient")
    assert [scheme_name(s) for s in ("iob1", "IOB", "bio", "Iobes", "bilou")] == [
        "IOB1", "IOB1", "IOB2", "BIOES", "BILOU"]  # fmt: skip


# ---- scores ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("scheme", SCHEMES)
def test_scores_against_sets_of_the_second_reading(scheme, mode):
    rng = random.Random(f"{scheme}{mode}")
    for _ in range(30):
        scorer = Scorer(scheme, mode)
        gold, found, same, words = set(), set(), 0, 0
        for number in range(rng.randrange(1, 20)):
            tags = (tidy if rng.random() < 0.5 else nasty)(rng, scheme)
            predicted = [t if rng.random() < 0.7 else rng.choice(labels("XY", scheme)) for t in tags]
            scorer.add(tags, predicted)
            gold |= {(number, s) for s in second_reading(tags, scheme, mode == "strict")}
            found |= {(number, s) for s in second_reading(predicted, scheme, mode == "strict")}
            same += sum(map(str.__eq__, tags, predicted))
            words += len(tags)
        result = scorer.result()
        check(result, gold, found)
        assert result["accuracy"] == pytest.approx(same / words if words else 0)
        assert set(result["per_type"]) == {s.type for _, s in gold | found}
        for kind, of_kind in result["per_type"].items():
            check(of_kind, *({x for x in some if x[1].type == kind} for some in (gold, found)))


def check(result, gold, found):
    both = len(gold & found)
    assert (result["gold"], result["predicted"], result["correct"]) == (len(gold), len(found), both)
    p, r = both / max(1, len(found)), both / max(1, len(gold))
    assert result["precision"] == pytest.approx(p)
    assert result["recall"] == pytest.approx(r)
    assert result["f1"] == pytest.approx(2 * p * r / (p + r) if both else 0)


def test_scores_of_nothing_and_of_uneven_lengths():
    scorer = Scorer("IOB2")
    assert scorer.result() == {
        "f1": 0.0, "precision": 0.0, "recall": 0.0, "gold": 0, "predicted": 0, "correct": 0,
        "accuracy": 0.0, "per_type": {}, "scheme": "IOB2", "mode": "strict",
    }  # fmt: skip
    scorer.add([], [])
    scorer.add(["O"], ["B-PER"])
    assert json.loads(json.dumps(scorer.result()))["per_type"]["PER"]["predicted"] == 1
    with pytest.raises(UserError, match="sentence 3: has 2 gold and 1 predicted tags"):
        scorer.add(["O", "O"], ["O"])


# ---- schemes -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("scheme", SCHEMES)
def test_detects_what_was_written(scheme):
    rng = random.Random(scheme)
    sentences = [tidy(rng, scheme) for _ in range(50)]
    assert detect(sentences) == scheme
    assert detect(iter(sentences)) == scheme
    seen = {tag[0] for tags in sentences for tag in tags}
    for _ in range(300):  # any single sentence, where its prefixes leave no choice
        tags = tidy(rng, scheme)
        if {t[0] for t in tags} == seen:
            assert detect([tags]) == scheme


def test_detects_with_little_to_go_on():
    assert detect([["O"], ["B-X"]]) == "IOB2"
    assert detect([["I-X", "O", "I-X"]]) == "IOB1"
    assert detect([["S-X", "B-X", "E-X"]]) == "BIOES"  # BMES looks the same
    assert detect([["B", "M", "E"]]) == "BMES"
    assert detect([["U"]]) == "BILOU"
    assert detect([["B-X", "I-Y"], ["I-X"]][1:]) == "IOB1"


@pytest.mark.parametrize(
    ("tags", "message"),
    [
        ([["O", "O"], []], "no entity.*name the scheme"),
        ([], "no entity"),
        ([["B-X", "O", "I-X"]], r"neither IOB2 \(1 times, first: I-X begins an entity \(sentence 1, word 3\)\) nor"),
        ([["B-X", "L-X"], ["O", "S-X"]], r"no scheme has all of these prefixes.*S-X \(sentence 2, word 2\)"),
        ([["B-X", "M-X", "I-X"]], "no scheme has all"),
        ([["O"], ["O", "NNP"]], "sentence 2, word 2: tag 'NNP': is no tag"),
        ([["PER-B"]], "write the prefix first"),
        ([["b-PER"]], "is no tag"),
        ([[" O"]], "white space is no part"),
    ],
)
def test_what_tells_no_scheme_is_refused_with_its_place(tags, message):
    with pytest.raises(UserError, match=message):
        detect(tags)


def test_tags():
    assert split("I-GENE-or-protein") == ("I", "GENE-or-protein")
    assert split("B--") == ("B", "-")
    assert [is_tag(t) for t in ("O", "B", "M-X", "O-X", "B-", "BX", "", "-", "X-PER", "o")] == [True] * 3 + [False] * 7


@pytest.mark.parametrize("scheme", SCHEMES)
def test_a_legal_sequence_is_one_that_encode_writes(scheme):
    tags = labels(["X", "Y"], scheme)
    start, transition, end = legal(scheme, tags)
    assert (start.dtype, transition.dtype, end.dtype) == (bool, bool, bool)
    some = 0
    for length in range(1, 4):
        for numbers in itertools.product(range(len(tags)), repeat=length):
            sequence = [tags[i] for i in numbers]
            ours = (
                start[numbers[0]] and end[numbers[-1]] and all(transition[a, b] for a, b in itertools.pairwise(numbers))
            )
            assert ours == (encode(spans(sequence, scheme), length, scheme) == sequence), sequence
            assert ours == (broken(sequence, scheme) is None)
            some += ours
    assert some > 20


def test_legal_keeps_the_order_of_any_labels_and_refuses_others():
    mixed = ["I-Y", "O", "B-Y", "I", "B"]
    start, transition, end = legal("BIO", mixed)
    assert start.tolist() == [False, True, True, False, True]
    assert transition[:, 0].tolist() == [True, False, True, False, False]
    assert transition[:, 3].tolist() == [False, False, False, True, True]
    assert end.all()
    with pytest.raises(UserError, match="'O': is listed more than once"):
        legal("IOB2", ["O", "O"])
    with pytest.raises(UserError, match="'E-X': is no tag of the scheme IOB2"):
        legal("IOB2", ["E-X"])
    assert [a.shape for a in legal("IOB2", [])] == [(0,), (0, 0), (0,)]


@pytest.mark.parametrize("scheme", SCHEMES)
def test_converting_loses_nothing(scheme):
    rng = random.Random(scheme)
    for _ in range(300):
        tags = tidy(rng, scheme, types=("X", "Y", ""))
        for other in SCHEMES:
            there = convert(tags, scheme, other)
            assert broken(there, other) is None
            assert convert(there, other, scheme) == tags
            assert spans(there, other, strict=True) == spans(tags, scheme)


def test_converting_refuses_what_it_would_change():
    with pytest.raises(UserError, match="word 2: I-X after O is not IOB2"):
        convert(["O", "I-X"], "IOB2", "BIOES")
    with pytest.raises(UserError, match="word 2: the end after B-X is not BIOES"):
        convert(["B-X"], "BIOES", "IOB2")
    with pytest.raises(UserError, match="word 1: E-X after the beginning is not BIOES"):
        convert(["E-X"], "IOBES", "IOB2")
    assert convert(["O", "I-X"], "IOB2", "BIOES", strict=False) == ["O", "S-X"]


@pytest.mark.parametrize(
    ("entities", "message"),
    [
        ([Span("X", 0, 2), Span("Y", 1, 3)], "'Y' at 1:3: overlaps 'X' at 0:2"),
        ([Span("X", 1, 1)], "'X' at 1:1: does not lie within 3 words"),
        ([Span("X", 2, 4)], "within 3 words"),
        ([Span("X", -1, 1)], "within 3 words"),
    ],
)
def test_entities_that_no_tags_can_say(entities, message):
    with pytest.raises(UserError, match=message):
        encode(entities, 3, "IOB2")
