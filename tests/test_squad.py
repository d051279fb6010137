"""SQuAD files with their damage; rows, targets and owners against the original's features and plain loops."""

import dataclasses
import json
import random
import time
import warnings

import numpy as np
import pytest

from keras_bert_lab import squad, windows
from keras_bert_lab.errors import UserError
from keras_bert_lab.squad import Question, continuations, locate, owned, owner, read, rows, spans, targets
from keras_bert_lab.windows import Cuts, Pieces, sliding
from keras_bert_lab.wordpiece import Tokenizer

VOCABULARIES = {
    "uncased": ("tiny_en/vocab.txt", True),
    "chinese": ("tiny_zh/vocab.txt", True),
    "cased": ("vocabs/bert_base_cased_vocab.txt", False),
}
ENTRIES = (
    "[PAD] [UNK] [CLS] [SEP] [MASK] the japanese japan industry un ##aff ##able grew in 1980 ##s . , ( ) 大 小 山 cafe"
)
LETTERS = "abcdefghijklmnopqrstuvwxyz0123456789"
ORACLE = ["en_v1", "en_v1_cased", "en_v1_ties", "en_v2", "zh_v2"]


@pytest.fixture(scope="module")
def tokenizer():
    entries = [*ENTRIES.split(), *LETTERS, *("##" + c for c in LETTERS if c != "s")]
    return Tokenizer("\n".join(entries).encode(), lower_case=True)


def oracle_tokenizer(shared, vocabulary):
    path, lower = VOCABULARIES[vocabulary]
    return Tokenizer(shared(f"oracle/{path}").read_bytes(), lower_case=lower)


def cutter(tokenizer):
    ids = {"cls_id": tokenizer.cls_id, "sep_id": tokenizer.sep_id, "pad_id": tokenizer.pad_id}

    def cut(pieces, cuts, first, dropped):
        return dataclasses.replace(windows.cut(pieces, cuts, first, **ids), dropped=dropped)

    return cut


def some_pieces(lengths):
    splits = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)
    at = np.concatenate([np.arange(n) for n in lengths] or [np.zeros(0)]).astype(np.int32)
    return Pieces(at + 10, 2 * at, 2 * at + 1, splits)


def bare_cut(pieces, cuts, first, dropped):
    return dataclasses.replace(windows.cut(pieces, cuts, first, cls_id=2, sep_id=3, pad_id=0), dropped=dropped)


def pieces_of(tokenizer, context, answer, start):
    """The pieces that are learned for an answer, as strings, and the characters that they cover."""
    text = tokenizer.pieces([context])
    first, last = locate(text, [[start, start + len(answer)]], continuations(tokenizer.tokens))[0]
    part = slice(first, last + 1)
    return [tokenizer.tokens[i] for i in text.ids[part]], context[text.starts[first] : text.ends[last]]


# ---- the original's features -----------------------------------------------------------------------------------------


def words_by_blanks(context):
    """run_squad.py's doc_tokens, as the word number of each character."""
    numbers, number, before = [], -1, True
    for c in context:
        blank = c in " \t\r\n\u202f"
        number += before and not blank
        before = blank
        numbers.append(number)
    return numbers


@pytest.mark.parametrize("name", ORACLE)
def test_features_are_the_originals(shared, name):
    features = json.loads(shared(f"oracle/squad_post/{name}.features.json").read_bytes())
    tokenizer = oracle_tokenizer(shared, features["params"]["vocab"])
    asked = list(read(shared(f"oracle/squad_post/{name}.squad.json")))
    contexts = tokenizer.pieces([q.context for q in asked])
    options = features["params"]
    w = rows(
        tokenizer.pieces([q.question for q in asked]),
        contexts,
        cutter(tokenizer),
        max_length=options["max_seq_length"],
        stride=options["doc_stride"],
        max_question=options["max_query_length"],
    )
    start, end = targets(w, locate(contexts, spans(asked), continuations(tokenizer.tokens)))
    mine, inside = owned(w), squad.context(w)
    assert len(w) == len(features["train"]["features"]) == len(features["predict"]["features"])
    answered = 0
    for r, (right, other) in enumerate(
        zip(features["train"]["features"], features["predict"]["features"], strict=True)
    ):
        part, length = slice(w.splits[r], w.splits[r + 1]), w.lengths[r]
        question = asked[w.example[r]]
        assert features["train"]["examples"][right["example_index"]]["qas_id"] == question.id
        ids = w.input_ids[part].tolist()
        assert [tokenizer.tokens[i] for i in ids] == right["tokens"] == other["tokens"]
        assert ids + [0] * (len(right["input_ids"]) - length) == right["input_ids"]
        assert w.token_type_ids[part].tolist() == right["segment_ids"][:length]
        assert sum(right["input_mask"]) == length
        places = np.flatnonzero(inside[part])
        assert {str(p): bool(mine[part][p]) for p in places} == right["token_is_max_context"]
        word = words_by_blanks(question.context)
        assert {str(p): word[w.starts[part][p]] for p in places} == right["token_to_orig_map"]
        assert (start[r], end[r]) == (right["start_position"] or 0, right["end_position"] or 0)
        answered += start[r] > 0
        # what the original does not give: the answer, character for character, out of the row
        if start[r]:
            begin, finish = w.starts[part][start[r]], w.ends[part][end[r]]
            gold = question.answers[0][0]
            assert question.context[begin:finish] == ("Japanese" if gold == "Japan" else gold)
    assert answered >= 5


def test_owners_are_the_originals(shared):
    cases = json.loads(shared("oracle/squad_post/misc.json").read_bytes())["max_context"]
    for case in cases:
        cuts = sliding(np.array([case["n_tokens"]]), case["max_tokens_for_doc"],
                       min(case["doc_stride"], case["max_tokens_for_doc"]))  # fmt: skip
        assert np.stack([cuts.begin, cuts.length], 1).tolist() == case["spans"]
        assert owners(cuts, case["n_tokens"]) == case["max_context_span_of_position"]


def owners(cuts, n):
    """Which window owns each of the n pieces of the only text."""
    found = [None] * n
    flat = iter(owner(cuts))
    for row in range(len(cuts)):
        for p in range(cuts.begin[row], cuts.begin[row] + cuts.length[row]):
            if next(flat):
                assert found[p] is None
                found[p] = row
    return found


# ---- owners ----------------------------------------------------------------------------------------------------------


def test_every_piece_is_owned_once_by_the_row_with_most_context():
    """O16, and the rule written as a loop over Python's floats."""
    dice = random.Random(3)
    for _ in range(60):
        lengths = np.array([dice.randrange(40) for _ in range(5)])
        room = dice.randrange(1, 12)
        cuts = sliding(lengths, room, dice.randrange(1, room + 1))
        order = list(range(len(cuts)))
        dice.shuffle(order)  # rows in any order: the earlier row wins, not the earlier window
        cuts = Cuts(cuts.example[order], cuts.begin[order], cuts.length[order])
        best = {}
        for row in range(len(cuts)):
            begin, length = int(cuts.begin[row]), int(cuts.length[row])
            for p in range(begin, begin + length):
                score = min(p - begin, begin + length - 1 - p) + 0.01 * length
                key = int(cuts.example[row]), p
                if key not in best or score > best[key][0]:
                    best[key] = score, row
        right = [
            best[int(cuts.example[row]), p][1] == row
            for row in range(len(cuts))
            for p in range(cuts.begin[row], cuts.begin[row] + cuts.length[row])
        ]
        assert owner(cuts).tolist() == right
        assert sum(right) == lengths.sum()


def test_owners_of_the_published_case():
    cuts = sliding(np.array([12]), 5, 3)
    assert list(zip(cuts.begin, cuts.length, strict=True)) == [(0, 5), (3, 5), (6, 5), (9, 3)]
    assert owners(cuts, 12) == [0, 0, 0, 0, 1, 1, 1, 2, 2, 2, 3, 3]


def test_rounding_decides_as_in_the_original():
    """Piece 508: 2 + 0.01 * 511 and 4 + 0.01 * 311 are one number, but not in floats."""
    assert 2 + 0.01 * 511 > 4 + 0.01 * 311
    for order in ([0, 1], [1, 0]):
        cuts = Cuts(np.array([0, 0]), np.array([0, 504])[order], np.array([511, 311])[order])
        assert owners(cuts, 815)[508] == order.index(0)


# ---- rows ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("stride", [114, 115, 5000])
def test_a_stride_of_the_whole_room_or_more_leaves_nothing_out(stride):
    w = rows(some_pieces([11]), some_pieces([157]), bare_cut, max_length=128, stride=stride)
    assert list(zip(w.begin, w.lengths - 14, strict=True)) == [(0, 114), (114, 43)]


def test_a_stride_is_a_step():
    w = rows(some_pieces([11]), some_pieces([157]), bare_cut, max_length=128, stride=64)
    assert list(zip(w.begin, w.lengths - 14, strict=True)) == [(0, 114), (64, 93)]


def test_each_question_has_its_own_room():
    """The long question's windows step by what they hold, the short one's by the stride."""
    w = rows(some_pieces([2, 9]), some_pieces([20, 20]), bare_cut, max_length=16, stride=6)
    assert w.begin[w.example == 0].tolist() == [0, 6, 12]
    assert w.begin[w.example == 1].tolist() == [0, 4, 8, 12, 16]
    assert owned(w).sum() == 40


def test_a_question_that_leaves_no_room_is_refused_at_once():
    begin = time.perf_counter()
    with pytest.raises(UserError, match="question 1: has 61 pieces.*leaves 0 of max_length 64.*raise max_length to 65"):
        rows(some_pieces([3, 61]), some_pieces([5000, 5000]), bare_cut, max_length=64)
    assert time.perf_counter() - begin < 1
    assert len(rows(some_pieces([60]), some_pieces([7]), bare_cut, max_length=64)) == 7  # room for one piece


def test_long_questions_are_cut():
    w = rows(some_pieces([9, 2]), some_pieces([3, 3]), bare_cut, max_length=12, max_question=4)
    assert w.lengths.tolist() == [1 + 4 + 1 + 3 + 1, 1 + 2 + 1 + 3 + 1]
    assert w.input_ids[: w.splits[1]].tolist() == [2, 10, 11, 12, 13, 3, 10, 11, 12, 3]
    assert w.dropped.tolist() == [5, 0]


@pytest.mark.parametrize("option", ["stride", "max_question"])
def test_numbers_of_pieces_below_one_are_refused(option):
    with pytest.raises(UserError, match=f"{option}=0"):
        rows(some_pieces([3]), some_pieces([3]), bare_cut, max_length=12, **{option: 0})


def test_nothing_to_ask_and_nothing_to_read():
    w = rows(some_pieces([3, 0, 0]), some_pieces([0, 2, 0]), bare_cut, max_length=12)
    assert w.lengths.tolist() == [6, 5, 3]
    assert squad.context(w).sum() == owned(w).sum() == 2
    start, end = targets(w, np.array([[-1, -1], [0, 1], [-2, -2]]))
    assert start.tolist() == [0, 2, -100] and end.tolist() == [0, 3, -100]
    none = rows(some_pieces([]), some_pieces([]), bare_cut, max_length=12)
    assert len(none) == 0 and len(owned(none)) == 0
    assert targets(none, np.zeros((0, 2)))[0].shape == (0,)


# ---- where the answer is ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("context", "answer", "start", "learned", "slice_"),
    [
        ("The Japanese industry", "Japan", 4, ["japanese"], "Japanese"),  # in the midst of a piece
        ("(unaffable)", "aff", 3, ["un", "##aff", "##able"], "unaffable"),  # a piece that continues a word
        ("unaffable", "able", 5, ["un", "##aff", "##able"], "unaffable"),
        ("in the 1980s.", "1980", 7, ["1980"], "1980"),  # begins with its word and ends with a piece: exact
        ("in the 1980s.", "the 198", 3, ["the", "1980", "##s"], "the 1980s"),
        ("in the 1980s.", "1980s", 7, ["1980", "##s"], "1980s"),
        ("in the 1980s.", "1980s.", 7, ["1980", "##s", "."], "1980s."),
        ("in the 1980s.", "in", 0, ["in"], "in"),  # the first piece
        ("   in the 1980s", "in", 3, ["in"], "in"),  # leading blanks count
        ("   in the 1980s", "1980s", 10, ["1980", "##s"], "1980s"),  # the last piece
        ("in the industry", " the ", 2, ["the"], "the"),  # outer blanks have no piece
        ("大山小山", "山", 3, ["山"], "山"),  # the second of two: the original learns the first
        ("the Café grew", "Café", 4, ["cafe"], "Café"),
        ("the Cafe\u0301 grew", "Cafe\u0301", 4, ["cafe"], "Cafe"),  # no piece is made of the accent
        ("[UNK] ☃☃ grew", "☃", 7, ["[UNK]"], "☃☃"),
    ],
)
def test_the_pieces_of_an_answer(tokenizer, context, answer, start, learned, slice_):
    assert context[start : start + len(answer)] == answer
    assert pieces_of(tokenizer, context, answer, start) == (learned, slice_)


def test_answers_without_a_piece_are_not_known(tokenizer):
    """Of a control character no piece is made: nothing to learn, and not "no answer"."""
    text = tokenizer.pieces(["the\x00 japan", "\x00", "", "the"])
    found = locate(text, [[3, 4], [0, 1], [-1, -1], [-2, -2]], continuations(tokenizer.tokens))
    assert found.tolist() == [[-2, -2], [-2, -2], [-1, -1], [-2, -2]]
    assert locate(tokenizer.pieces([]), np.zeros((0, 2)), continuations(tokenizer.tokens)).shape == (0, 2)


def test_locating_is_the_loop_over_pieces(tokenizer):
    """Many contexts at once against one at a time, character by character."""
    dice = random.Random(5)
    words = ["the", "japanese", "unaffable", "1980s", "☃", "大山", "cafe\u0301", ".", "(", " ", "\u00a0", "\x00", "in"]
    contexts = ["".join(dice.choices(words, k=dice.randrange(9))) for _ in range(300)]
    asked = []
    for context in contexts:
        a, b = sorted(dice.choices(range(len(context) + 1), k=2))
        asked.append((a, b) if a < b else (-1, -1))
    text, more = tokenizer.pieces(contexts), continuations(tokenizer.tokens)
    kinds = set()
    for row, (found, (a, b)) in enumerate(zip(locate(text, asked, more).tolist(), asked, strict=True)):
        ids, begins, ends = text[row]
        if a < 0:
            assert found == [-1, -1]
            continue
        touched = [i for i in range(len(ids)) if ends[i] > a and begins[i] < b]
        if not touched:
            assert found == [-2, -2]
            continue
        first, last = touched[0], touched[-1]
        if begins[first] < a or ends[last] > b or more[ids[first]]:
            kinds.add("widened")
            while more[ids[first]]:
                first -= 1
            while last + 1 < len(ids) and more[ids[last + 1]]:
                last += 1
        kinds.add("whole" if first == touched[0] and last == touched[-1] else "grown")
        assert found == [first, last]
    assert kinds == {"widened", "whole", "grown"}


def test_targets_are_in_the_rows_that_hold_the_whole_answer(tokenizer):
    context = "the japanese industry grew in the 1980s . " * 3
    text = tokenizer.pieces([context, context])
    w = rows(tokenizer.pieces(["the", "in"]), text, cutter(tokenizer), max_length=12, stride=3)
    located = locate(text, [[34, 39], [-1, -1]], continuations(tokenizer.tokens))
    start, end = targets(w, located)
    first, last = located[0]
    held = 0
    for r in range(len(w)):
        shown = range(w.begin[r], w.begin[r] + w.lengths[r] - 4)
        if w.example[r] == 0 and first in shown and last in shown:
            held += 1
            at = w.splits[r]
            assert context[w.starts[at + start[r]] : w.ends[at + end[r]]] == "1980s"
        else:
            assert start[r] == end[r] == 0
    assert held == 3
    assert start.dtype == end.dtype == np.int32


@pytest.mark.parametrize(
    ("file", "vocabulary", "widened"),
    [
        ("squad/squad2_dev_visible_articles.json", "uncased", 10),
        ("squad/xquad.en.json", "cased", 1),
        ("squad/xquad.zh.json", "chinese", 0),
        ("zh/cmrc2018/cmrc2018_dev.json", "chinese", 3),
    ],
)
def test_every_answer_of_real_files_comes_back(shared, file, vocabulary, widened):
    """All answers that stand in their place: pieces -> the same characters, or whole words around them."""
    tokenizer = oracle_tokenizer(shared, vocabulary)
    asked = list(read(shared(f"data/{file}"), warn=False))
    pairs = [(q.context, text, start) for q in asked for text, start in q.answers]
    pairs = [(c, text, start) for c, text, start in pairs if squad.place(c, [(text, start)])]
    unique = sorted({c for c, _, _ in pairs})
    number = {c: i for i, c in enumerate(unique)}
    text = tokenizer.pieces(unique).take([number[c] for c, _, _ in pairs])
    found = locate(text, [(s, s + len(t)) for _, t, s in pairs], continuations(tokenizer.tokens))
    assert len(pairs) > 1000 and (found >= 0).all()
    at = text.splits[:-1, None] + found
    grown = 0
    for (context, answer, start), begin, end in zip(pairs, text.starts[at[:, 0]], text.ends[at[:, 1]], strict=True):
        bare = answer.strip()
        if context[begin:end] != bare:
            grown += 1
            assert bare in context[begin:end] or start + len(answer) > end, (answer, context[begin:end])
    assert grown == widened


# ---- files -----------------------------------------------------------------------------------------------------------


def write(path, *asked, context="The Japanese industry grew.", **paragraph):
    data = {
        "version": "x",
        "data": [{"title": "t", "paragraphs": [{"context": context, "qas": list(asked), **paragraph}]}],
    }
    path.write_text(json.dumps(data), "utf-8")
    return path


def ask(**changes):
    right = {"id": "q", "question": "What grew?", "answers": [{"text": "industry", "answer_start": 13}]}
    return {k: v for k, v in {**right, **changes}.items() if v is not ...}


def test_a_question_as_it_stands_in_the_file(tmp_path):
    context = "   The Japanese industry\u00a0grew. "
    file = write(tmp_path / "a.json", ask(answers=[{"text": "industry", "answer_start": 16}]), context=context)
    found = list(read(file))
    right = Question("q", "What grew?", context, (("industry", 16),), False, f"{file}: question q", None, True)
    assert found == [right]
    assert found[0].span == (16, 24) and found[0].problem is None


def test_squad_2_and_files_without_answers(tmp_path):
    file = write(
        tmp_path / "a.json",
        ask(id="no", answers=[], is_impossible=True, plausible_answers=[{"text": "The", "answer_start": 0}]),
        ask(id="yes", is_impossible=False),
        ask(id="open", answers=...),
        ask(id="hidden", answers=[]),
        ask(id=7),
    )
    found = list(read(file))
    assert [q.id for q in found] == ["no", "yes", "open", "hidden", "7"]
    assert [q.impossible for q in found] == [True, False, False, False, False]
    assert [q.labelled for q in found] == [True, True, False, False, True]
    assert [q.problem for q in found] == [None, None, "no answer given", "no answer given", None]
    assert [q.fault for q in found] == [None] * 5
    assert spans(found).tolist() == [[-1, -1], [13, 21], [-2, -2], [-2, -2], [13, 21]]
    assert spans([]).shape == (0, 2)


@pytest.mark.parametrize(
    ("changes", "fault", "of_use"),
    [
        ({"answers": [{"text": "industry", "answer_start": 14}]}, squad.ELSEWHERE, False),
        ({"answers": [{"text": "industry", "answer_start": -1}]}, squad.ELSEWHERE, False),
        ({"answers": [{"text": "39764.0", "answer_start": -1}]}, squad.ABSENT, False),
        ({"answers": [{"text": "industry", "answer_start": 14}, {"text": "grew", "answer_start": 22}]},
         squad.ELSEWHERE, True),
        ({"answers": [{"text": " ", "answer_start": 12}]}, squad.EMPTY_ANSWER, False),
        ({"answers": [{"text": "industry"}]}, f"{squad.NO_LIST}; {squad.ELSEWHERE}", False),
        ({"answers": [{"text": "industry", "answer_start": "13"}]}, f"{squad.NO_LIST}; {squad.ELSEWHERE}", False),
        ({"answers": [{"text": "industry", "answer_start": True}]}, f"{squad.NO_LIST}; {squad.ELSEWHERE}", False),
        ({"answers": "industry"}, squad.NO_LIST, False),
        ({"answers": ["industry"]}, squad.NO_LIST, False),
        ({"question": "  "}, squad.EMPTY_QUESTION, False),
        ({"question": None}, squad.EMPTY_QUESTION, False),
        ({"id": ...}, squad.NO_ID, True),
        ({"id": ""}, squad.NO_ID, True),
        ({"is_impossible": "no"}, squad.NO_BOOL, True),
        ({"is_impossible": True}, squad.BOTH, True),
        ({"is_impossible": False, "answers": []}, squad.NEITHER, False),
    ],
)  # fmt: skip
def test_damage_is_told(tmp_path, changes, fault, of_use):
    file = write(tmp_path / "a.json", ask(**changes), ask(id="sound"))
    with pytest.warns(UserWarning, match="1 of 2 questions are damaged") as told:
        bad, sound = read(file)
    assert bad.fault == fault and sound.fault is None
    assert (bad.problem is None) is of_use and sound.problem is None
    assert bad.id in str(told[0].message) and fault.split("; ")[0] in str(told[0].message)
    assert squad.damage([bad, sound]) == {kind: [bad.id] for kind in fault.split("; ")}


def test_whole_floats_are_positions(tmp_path):
    (found,) = read(write(tmp_path / "a.json", ask(answers=[{"text": "industry", "answer_start": 13.0}])))
    assert found.fault is None and found.span == (13, 21)


def test_a_context_that_is_none(tmp_path):
    with pytest.warns(UserWarning, match="the context is empty: 1"):
        (found,) = read(write(tmp_path / "a.json", ask(answers=[]), context=None))
    assert found.problem == squad.EMPTY_CONTEXT and found.context == ""


def test_an_id_twice(tmp_path):
    with pytest.warns(UserWarning, match="twice: 2 .q, q."):
        found = list(read(write(tmp_path / "a.json", ask(), ask(), ask())))
    assert [q.fault for q in found] == [None, squad.TWICE, squad.TWICE]


def test_the_warning_names_ten_and_counts_all(tmp_path):
    file = write(tmp_path / "a.json", *(ask(id=f"q{i}", answers=[{"text": "?", "answer_start": 0}]) for i in range(25)))
    with pytest.warns(UserWarning) as told:
        assert len(list(read(file))) == 25
    message = str(told[0].message)
    assert f"25 of 25 questions are damaged: {squad.ABSENT}: 25 (q0, q1" in message
    assert "q9, ...)" in message and "q10" not in message
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert len(list(read(file, warn=False))) == 25


@pytest.mark.parametrize(
    ("content", "told"),
    [
        (b'{"data": [', r"is not JSON: .* line 1, column 11"),
        (b"", "is not JSON"),
        (b"\xff\xfe{}", "is not UTF-8"),
        (b"[]", 'no list "data"'),
        (b'{"data": {}}', 'no list "data"'),
        (b'{"data": [{"title": "t"}]}', r'data\[0\]: has no list "paragraphs"'),
        (b'{"data": [7]}', r'data\[0\]: has no list "paragraphs"'),
        (b'{"data": [{"paragraphs": ["t"]}]}', r"data\[0\].paragraphs\[0\]: is not an object"),
        (b'{"data": [{"paragraphs": [{"context": "t"}]}]}', r'paragraphs\[0\]: has no list "qas"'),
        (b'{"data": [{"paragraphs": [{"context": "t", "qas": [1]}]}]}', 'has no list "qas"'),
    ],
)
def test_files_of_another_form(tmp_path, content, told):
    file = tmp_path / "a.json"
    file.write_bytes(content)
    with pytest.raises(UserError, match=told):
        list(read(file))


def test_no_such_file(tmp_path):
    with pytest.raises(UserError, match="no such file"):
        list(read(tmp_path / "a.json"))
    with pytest.raises(UserError, match="cannot be read"):
        list(read(tmp_path))


def test_byte_order_mark_and_line_ends_make_no_difference(tmp_path):
    plain = write(tmp_path / "a.json", ask())
    other = tmp_path / "b.json"
    other.write_bytes(
        b"\xef\xbb\xbf" + json.dumps(json.loads(plain.read_bytes()), indent=1).replace("\n", "\r\n").encode() + b"\r\n"
    )
    (one,), (two,) = read(plain), read(other)
    assert (one.id, one.question, one.context, one.answers) == (two.id, two.question, two.context, two.answers)


def test_the_damage_of_cmrc_2018(shared):
    """What was found in these files by hand: 193 answers of the dev set are nowhere, 7 elsewhere."""
    path = shared("data/zh/cmrc2018/cmrc2018_dev.json")
    with pytest.warns(UserWarning, match="of 3219 questions are damaged"):
        dev = list(read(path))
    damage = squad.damage(dev)
    bad = [(a, q) for q in dev for a in q.answers if squad.place(q.context, [a]) is None]
    assert len(bad) == 200
    absent = [a for a, q in bad if a[0] not in q.context]
    assert len(absent) == 193 and all(start == -1 for _, start in absent)
    assert len(dev) == 3219 and sum(q.problem is not None for q in dev) == 3
    assert set(damage) == {squad.ABSENT, squad.ELSEWHERE}
    trial = list(read(shared("data/zh/cmrc2018/cmrc2018_trial.json"), warn=False))
    damage = squad.damage(trial)
    assert len(trial) == 1002
    assert set(damage[squad.EMPTY_QUESTION]) == {"TRIAL_776_QUERY_4", "TRIAL_20_QUERY_0"}
    assert len(damage[squad.ELSEWHERE]) == 5 and all(i.startswith("TRIAL_210_") for i in damage[squad.ELSEWHERE])
    assert sum(q.problem is not None for q in trial) == 7


@pytest.mark.parametrize(
    ("file", "count", "impossible"),
    [("squad2_dev_visible_articles", 4199, 2231), ("xquad.en", 1190, 0), ("xquad.zh", 1190, 0)],
)
def test_sound_files_are_sound(shared, file, count, impossible):
    found = list(read(shared(f"data/squad/{file}.json")))  # a warning would be an error
    assert len(found) == count and sum(q.impossible for q in found) == impossible
    assert not any(q.fault or q.problem for q in found)
