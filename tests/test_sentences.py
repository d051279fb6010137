"""Sentences: joined texts and their offsets; entities in characters become entities in words."""

import itertools
import random

import pytest

from keras_bert_lab import UserError
from keras_bert_lab.sentences import Sentence, align, joint, wide
from keras_bert_lab.tags import Span, encode


@pytest.mark.parametrize("join", [" ", "", "--", None])
def test_offsets_spell_the_tokens(join):
    rng = random.Random(0)
    pool = ["Ann", "", " ", "\u3000", "#", "é", "e\u0301", "中", "國", "😀", "a b", "."]
    for _ in range(200):
        tokens = [rng.choice(pool) for _ in range(rng.randrange(6))]
        s = Sentence.of(tokens, join=join)
        assert s.text == (joint(tokens) if join is None else join).join(tokens)
        assert [s.text[a:b] for a, b in zip(s.starts, s.ends, strict=True)] == tokens
        assert s.tokens == tuple(tokens) and s.tags is None
        assert all(a <= b for a, b in itertools.pairwise(s.starts))


def test_a_tag_for_every_token():
    assert Sentence.of(["a", "b"], ["O", "B-X"]).tags == ("O", "B-X")
    with pytest.raises(UserError, match="f:3: has 2 tokens and 1 tags"):
        Sentence.of(["a", "b"], ["O"], where="f:3")


def test_what_joins_tokens():
    assert joint([]) == " "
    assert joint(["我", "是", "人", "。"]) == ""
    assert joint(["我", "2", "0", "0", "8", "年", "在"]) == " "  # as many wide as others
    assert joint(["２", "０", "０", "８", "年"]) == ""
    assert joint(["我们", "是", "中国", "人"]) == " "
    assert joint(["の", "は", "と"]) == ""
    assert joint(["I", "a", "m"]) == " "
    assert [wide(c) for c in "中Ａ。가a é"] == [True, True, True, True, False, False, False]


def overlapping(entity, starts, ends):
    return [i for i, (s, e) in enumerate(zip(starts, ends, strict=True)) if s < entity.end and e > entity.start]


def test_align_against_looking_at_every_word():
    rng = random.Random(1)
    reasons = set()
    for _ in range(2000):
        cuts = sorted(rng.sample(range(20), 2 * rng.randrange(8)))
        starts, ends = cuts[::2], cuts[1::2]
        cuts = sorted(rng.sample(range(20), 2 * rng.randrange(5)))
        entities = [Span(rng.choice("XY"), a, b) for a, b in zip(cuts[::2], cuts[1::2], strict=True)]
        placed, trouble = align(rng.sample(entities, len(entities)), starts, ends)
        want, why, taken = [], {}, set()
        for e in entities:
            words = overlapping(e, starts, ends)
            if not words:
                why[e] = "covers no word"
            elif taken & set(words):
                why[e] = "shares a word with another entity"
            else:
                want.append(Span(e.type, words[0], words[-1] + 1))
                taken |= set(words)
                if starts[words[0]] < e.start or ends[words[-1]] > e.end:
                    why[e] = "begins or ends inside a word"
        assert (placed, dict(trouble)) == (want, why)
        assert len(trouble) == len(why)
        encode(placed, len(starts), "IOB2")  # never overlapping
        reasons |= set(why.values())
    assert len(reasons) == 3


def test_white_space_at_an_entitys_edges_does_not_matter():
    assert align([Span("X", 3, 9)], [0, 4, 10], [3, 8, 12]) == ([Span("X", 1, 2)], [])


def test_with_words():
    s = Sentence("Ann Lee left Rome.", entities=(Span("PER", 0, 7), Span("LOC", 13, 17)), where="f:1")
    words = s.with_words([0, 4, 8, 13, 17], [3, 7, 12, 17, 18], "BIOES")
    assert words.tokens == ("Ann", "Lee", "left", "Rome", ".")
    assert words.tags == ("B-PER", "E-PER", "O", "S-LOC", "O")
    assert (words.text, words.entities, words.where) == (s.text, s.entities, "f:1")
    assert Sentence("a").with_words([0], [1]).tags is None
    nothing = Sentence("", entities=()).with_words([], [])
    assert (nothing.tokens, nothing.tags) == ((), ())
    again = Sentence.of(["Ann", "left"], ["B-X", "O"], columns=(("Ann", "B-X"), ("left", "O"))).with_words([0], [8])
    assert (again.tokens, again.tags, again.columns) == (("Ann left",), None, None)
