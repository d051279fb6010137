import json

import numpy as np
import pytest

from keras_bert_lab.errors import UserError
from keras_bert_lab.windows import Cuts, Pieces, by_words, cut, most_context, pack, sliding, spread

CLS, SEP, PAD = 101, 102, 0


def pieces(lengths, seed=0):
    rng = np.random.default_rng(seed)
    n = int(np.sum(lengths))
    starts = rng.integers(0, 1000, n, dtype=np.int32)
    splits = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)
    return Pieces(rng.integers(5, 99, n, dtype=np.int32), starts, starts + 2, splits)


def cut_longest_first(a, b, room):
    """The loop of the paper's code, on lists."""
    a, b = list(a), list(b)
    while len(a) + len(b) > room:
        (a if len(a) > len(b) else b).pop()
    return a, b


def test_longest_first_is_the_loop_of_the_original_for_all_small_lengths():
    grid = [(i, j) for i in range(12) for j in range(12)]
    first, second = pieces([i for i, _ in grid], 1), pieces([j for _, j in grid], 2)
    for max_length in range(4, 28):
        w = pack(first, second, cls_id=CLS, sep_id=SEP, pad_id=PAD, max_length=max_length)
        for r in range(len(grid)):
            a, b = cut_longest_first(first[r][0], second[r][0], max_length - 3)
            part = slice(w.splits[r], w.splits[r + 1])
            assert w.input_ids[part].tolist() == [CLS, *a, SEP, *b, SEP]
            assert w.token_type_ids[part].tolist() == [0] * (len(a) + 2) + [1] * (len(b) + 1)
            assert w.dropped[r] == sum(grid[r]) - len(a) - len(b)


def test_kept_lengths_of_the_oracle(shared):
    """Pretraining's own truncate_seq_pair cuts at a random end, but as much from each text."""
    cases = json.loads(shared("oracle/masking.json").read_text())["truncate_seq_pair"]
    assert len(cases) == 25
    for case in cases:
        first, second = pieces([len(case["tokens_a"])]), pieces([len(case["tokens_b"])])
        w = pack(first, second, cls_id=CLS, sep_id=SEP, pad_id=PAD, max_length=case["max_num_tokens"] + 3)
        kept = len(case["out_a"]) + 2, len(case["out_b"]) + 1
        assert ((w.token_type_ids == 0).sum(), (w.token_type_ids == 1).sum()) == kept


def test_only_second_leaves_the_first_alone_while_it_fits():
    w = pack(
        pieces([4, 9]), pieces([9, 9]), cls_id=CLS, sep_id=SEP, pad_id=PAD, max_length=10, truncation="only_second"
    )
    assert w.lengths.tolist() == [10, 10]
    assert (w.token_type_ids == 0).sum() == (4 + 2) + (7 + 2)  # the second row's first text has 9, room is 7
    assert w.dropped.tolist() == [6, 11]
    assert w.input_ids[w.splits[1:] - 1].tolist() == [SEP, SEP]


def test_a_long_text_keeps_cls_and_sep_and_says_what_was_dropped():
    w = pack(pieces([100]), cls_id=CLS, sep_id=SEP, pad_id=PAD, max_length=64)
    assert w.lengths.tolist() == [64] and w.dropped.tolist() == [38]
    assert (w.input_ids[0], w.input_ids[-1]) == (CLS, SEP)


def test_offsets_travel_and_are_minus_one_at_special_tokens():
    first, second = pieces([2, 0], 3), pieces([1, 2], 4)
    w = pack(first, second, cls_id=CLS, sep_id=SEP, pad_id=PAD, max_length=20)
    a, b = first[0], second[0]
    assert w.starts[:6].tolist() == [-1, *a[1], -1, *b[1], -1]
    assert w.ends[:6].tolist() == [-1, *a[2], -1, *b[2], -1]
    assert w.example.tolist() == [0, 1] and w.example.dtype == w.dropped.dtype == w.input_ids.dtype == np.int32


def test_pad_and_take():
    w = pack(pieces([3, 0, 5]), cls_id=CLS, sep_id=SEP, pad_id=7, max_length=20)
    batch = w.pad([2, 1], multiple=4)
    assert {k: v.shape for k, v in batch.items()} == dict.fromkeys(
        ("input_ids", "attention_mask", "token_type_ids"), (2, 8)
    )
    assert all(v.dtype == np.int32 for v in batch.values())
    assert batch["input_ids"][1].tolist() == [CLS, SEP] + [7] * 6
    assert batch["attention_mask"].sum(1).tolist() == [7, 2]
    taken = w.take([2, 1])
    assert taken.example.tolist() == [2, 1]
    np.testing.assert_array_equal(taken.pad(length=8)["input_ids"], batch["input_ids"])
    assert w.take([]).pad()["input_ids"].shape == (0, 0)
    assert len(w.take([])) == 0


def test_pieces_take_concat_and_index():
    p = pieces([3, 0, 5])
    q = Pieces.concat([p.take([2, 0]), p.take([1]), p.take([])])
    assert len(q) == 3 and q.lengths.tolist() == [5, 3, 0]
    for mine, theirs in ((0, 2), (1, 0), (-1, 1)):
        for x, y in zip(q[mine], p[theirs], strict=True):
            np.testing.assert_array_equal(x, y)
    with pytest.raises(IndexError):
        p[3]
    assert len(Pieces.concat([])) == 0


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"truncation": "longest"}, "longest_first, only_second, error"),
        ({"max_length": 3}, "max_length=3"),
        ({"truncation": "error", "max_length": 8}, "row 1: has 8 pieces, there is room for 5"),
        ({"second": pieces([1])}, "2 first texts but 1 second"),
    ],
)
def test_requests_that_cannot_be_met(change, said):
    request = {"first": pieces([2, 4]), "second": pieces([1, 4]), "max_length": 10}
    with pytest.raises(UserError, match=said):
        pack(**{**request, **change}, cls_id=CLS, sep_id=SEP, pad_id=PAD)


def test_padding_to_less_than_a_row_is_refused():
    with pytest.raises(UserError, match="row 1: has 6 pieces, padded to 5"):
        pack(pieces([1, 4]), cls_id=CLS, sep_id=SEP, pad_id=PAD, max_length=10).pad(length=5)


def loop(length, room, stride):
    """The loop over a document in run_squad.py."""
    found, begin = [], 0
    while True:
        size = min(length - begin, room)
        found.append((begin, size))
        if begin + size >= length:
            return found
        begin += min(size, stride)


def test_sliding_is_the_loop_of_the_original_for_all_small_lengths():
    lengths = np.arange(30)
    for room in range(1, 9):
        for stride in range(1, room + 1):
            cuts = sliding(lengths, room, stride)
            for text in lengths:
                mine = cuts.example == text
                assert list(zip(cuts.begin[mine], cuts.length[mine], strict=True)) == loop(text, room, stride)


def test_sliding_with_a_room_for_each_text():
    lengths, rooms = np.array([9, 3, 0, 9]), np.array([4, 5, 2, 9])
    cuts = sliding(lengths, rooms, 2)
    right = [(t, *window) for t in range(4) for window in loop(lengths[t], rooms[t], 2)]
    assert list(zip(cuts.example, cuts.begin, cuts.length, strict=True)) == right
    assert len(sliding(np.zeros(0, int), 4, 2)) == 0
    strides = np.minimum(rooms, 3)  # and with a stride for each
    cuts = sliding(lengths, rooms, strides)
    right = [(t, *window) for t in range(4) for window in loop(lengths[t], rooms[t], strides[t])]
    assert list(zip(cuts.example, cuts.begin, cuts.length, strict=True)) == right


@pytest.mark.parametrize("stride", [0, 5, -1])
def test_a_stride_that_leaves_pieces_out_is_refused(stride):
    with pytest.raises(UserError, match="room for 4 pieces. give 1 to 4"):
        sliding(np.array([9]), 4, stride)


def test_cut_shows_each_stretch_after_its_first_text():
    first, second = pieces([2, 0, 3], 1), pieces([7, 0, 5], 2)
    cuts = sliding(second.lengths, 3, 2)
    alone = cut(second, cuts, cls_id=CLS, sep_id=SEP, pad_id=PAD)
    both = cut(second, cuts, first, cls_id=CLS, sep_id=SEP, pad_id=PAD)
    for w in (alone, both):
        assert w.example.tolist() == cuts.example.tolist() and w.begin.tolist() == cuts.begin.tolist()
        assert not w.dropped.any()
    for r, (text, begin, size) in enumerate(zip(cuts.example, cuts.begin, cuts.length, strict=True)):
        ids, starts, ends = second[text]
        stretch, part = slice(begin, begin + size), slice(alone.splits[r], alone.splits[r + 1])
        assert alone.input_ids[part].tolist() == [CLS, *ids[stretch], SEP]
        assert alone.starts[part].tolist() == [-1, *starts[stretch], -1]
        question, q_starts, _ = first[text]
        part = slice(both.splits[r], both.splits[r + 1])
        assert both.input_ids[part].tolist() == [CLS, *question, SEP, *ids[stretch], SEP]
        assert both.starts[part].tolist() == [-1, *q_starts, -1, *starts[stretch], -1]
        assert both.ends[part].tolist()[-size - 1 :] == [*ends[stretch], -1]
        assert both.token_type_ids[part].tolist() == [0] * (len(question) + 2) + [1] * (size + 1)
    taken = both.take([2, 0])
    assert taken.begin.tolist() == [both.begin[2], both.begin[0]]
    nothing = cut(second, Cuts(*(np.zeros(0, np.int64),) * 3), cls_id=CLS, sep_id=SEP)
    assert len(nothing) == 0 and nothing.pad()["input_ids"].shape == (0, 0)


def random_words(random, texts, longest):
    """Lengths of texts, and which of their pieces begin a word."""
    lengths = random.integers(0, longest + 1, texts)
    first = random.random(lengths.sum()) < random.choice([0.1, 0.5, 1.0])
    first[(np.cumsum(lengths) - lengths)[lengths > 0]] = True
    return lengths, first


@pytest.mark.parametrize("seed", range(30))
def test_windows_at_word_borders(seed):
    """Every word begins in some window; windows hold whole words unless one is longer than a window; none is idle."""
    random = np.random.default_rng(seed)
    lengths, first = random_words(random, 6, 30)
    room = int(random.integers(1, 12))
    stride = int(random.integers(1, room + 1))
    cuts = by_words(first, lengths, room, stride)
    owner = most_context(cuts, lengths)
    offset = 0
    for text, length in enumerate(lengths):
        starts = np.flatnonzero(first[offset : offset + length])
        rows = np.flatnonzero(cuts.example == text)
        begin, end = cuts.begin[rows], cuts.begin[rows] + cuts.length[rows]
        assert len(rows) and (np.diff(begin) > 0).all() and (cuts.length[rows] <= room).all()
        if not length:
            assert cuts.length[rows].tolist() == [0]
            continue
        assert begin[0] == 0 and set(begin) <= set(starts) and (cuts.length[rows] > 0).all()
        borders = {*starts.tolist(), int(length)}
        for b, e in zip(begin, end, strict=True):
            word_end = min(x for x in borders if x > b)
            assert e in borders or (e == b + room and word_end > e)
        for start in starts:
            holding = [r for r, b, e in zip(rows, begin, end, strict=True) if b <= start < e]
            context = [min(start - cuts.begin[r], cuts.begin[r] + cuts.length[r] - 1 - start) for r in holding]
            at = np.concatenate([[0], np.cumsum(cuts.length)])
            owning = [r for r in holding if owner[at[r] + start - cuts.begin[r]]]
            assert owning == [holding[int(np.argmax(context))]]  # most context; the first of equals
        offset += length


def test_windows_of_words_of_one_piece_are_plain_windows():
    lengths = np.array([12, 0, 3])
    cuts, plain = by_words(np.ones(15, bool), lengths, 5, 3), sliding(lengths, 5, 3)
    for name in ("example", "begin", "length"):
        assert getattr(cuts, name).tolist() == getattr(plain, name).tolist()
    owners = np.repeat(np.arange(len(cuts)), cuts.length)[most_context(cuts, lengths)]
    pieces = (cuts.begin.repeat(cuts.length) + spread(cuts.begin * 0, cuts.length))[most_context(cuts, lengths)]
    assert owners[np.argsort(pieces[:12])].tolist() == [0, 0, 0, 0, 1, 1, 1, 2, 2, 2, 3, 3]
    with pytest.raises(UserError, match="room for 4 pieces. give 1 to 4"):
        by_words(np.ones(9, bool), np.array([9]), 4, 5)
