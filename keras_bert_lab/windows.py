"""One or two tokenized texts -> [CLS] .. [SEP] rows, flat and vectorised, with the way back to characters.

The rows are those of google-research/bert (`run_classifier.py`: `convert_single_example`, `_truncate_seq_pair`):
``[CLS] first [SEP]`` or ``[CLS] first [SEP] second [SEP]``, token types 0 and 1. Nothing is cut unless the row is
too long, and what was cut is counted in `Windows.dropped`.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from keras_bert_lab.errors import UserError

TRUNCATIONS = ("longest_first", "only_second", "error")


def spread(begins: np.ndarray, lengths: np.ndarray) -> np.ndarray:
    """The positions ``begins[r] .. begins[r] + lengths[r] - 1`` of every row r, one after the other: int64 [sum]."""
    splits = np.concatenate([[0], np.cumsum(lengths)])
    return np.arange(splits[-1]) + np.repeat(np.asarray(begins) - splits[:-1], lengths)


@dataclass(frozen=True)
class Pieces:
    """Many tokenized texts, flat: row r is ``[splits[r]:splits[r + 1]]`` of the other arrays.

    Attributes:
        ids: int32 [n], vocabulary ids.
        starts, ends: int32 [n], character offsets (code points) into the text that the user gave; the piece is
            spelled ``text[start:end]`` there.
        splits: int64 [rows + 1].

    Example:
        >>> import numpy as np
        >>> p = Pieces(np.array([7, 8, 9]), np.array([0, 3, 0]), np.array([2, 5, 4]), np.array([0, 2, 3]))
        >>> len(p), p[0][0].tolist()
        (2, [7, 8])
    """

    ids: np.ndarray
    starts: np.ndarray
    ends: np.ndarray
    splits: np.ndarray

    def __len__(self) -> int:
        return len(self.splits) - 1

    def __getitem__(self, row: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """(ids, starts, ends) of one row."""
        row = range(len(self))[row]  # IndexError ends iteration; negative rows count from the end
        part = slice(self.splits[row], self.splits[row + 1])
        return self.ids[part], self.starts[part], self.ends[part]

    @property
    def lengths(self) -> np.ndarray:
        """int64 [rows]."""
        return np.diff(self.splits)

    def take(self, rows: Sequence[int] | np.ndarray) -> Pieces:
        """The given rows, in the given order."""
        rows = np.asarray(rows, np.int64)
        lengths = self.lengths[rows]
        at = spread(self.splits[:-1][rows], lengths)
        return Pieces(self.ids[at], self.starts[at], self.ends[at], _splits(lengths))

    @staticmethod
    def concat(parts: Iterable[Pieces]) -> Pieces:
        """All rows of all parts, in order."""
        parts = list(parts)
        lengths = np.concatenate([np.zeros(0, np.int64)] + [p.lengths for p in parts])
        ids, starts, ends = (_join([getattr(p, k) for p in parts]) for k in ("ids", "starts", "ends"))
        return Pieces(ids, starts, ends, _splits(lengths))


@dataclass(frozen=True)
class Windows:
    """Rows ready for the model, flat and without padding: row r is ``[splits[r]:splits[r + 1]]``.

    Attributes:
        input_ids, token_type_ids: int32 [n].
        starts, ends: int32 [n], character offsets into the first text where token type is 0, into the second where
            it is 1; -1 at [CLS] and [SEP].
        splits: int64 [rows + 1].
        example: int32 [rows], index of the example that the row comes from.
        dropped: int32 [rows], number of pieces that were cut off.
        begin: int64 [rows], the piece of its text (the second, where there are two) that the row begins with.
        pad_id: the id that `pad` fills with.
    """

    input_ids: np.ndarray
    token_type_ids: np.ndarray
    starts: np.ndarray
    ends: np.ndarray
    splits: np.ndarray
    example: np.ndarray
    dropped: np.ndarray
    begin: np.ndarray
    pad_id: int = 0

    def __len__(self) -> int:
        return len(self.splits) - 1

    @property
    def lengths(self) -> np.ndarray:
        """int64 [rows], [CLS] and [SEP] included."""
        return np.diff(self.splits)

    def take(self, rows: Sequence[int] | np.ndarray) -> Windows:
        """The given rows, in the given order; `example` keeps its values."""
        rows = np.asarray(rows, np.int64)
        lengths = self.lengths[rows]
        at = spread(self.splits[:-1][rows], lengths)
        ids, types, starts, ends = self.input_ids[at], self.token_type_ids[at], self.starts[at], self.ends[at]
        kept = self.example[rows], self.dropped[rows], self.begin[rows]
        return Windows(ids, types, starts, ends, _splits(lengths), *kept, self.pad_id)

    def pad(
        self, rows: Sequence[int] | np.ndarray | None = None, length: int | None = None, multiple: int = 1
    ) -> dict[str, np.ndarray]:
        """The given rows (all by default) as a dense batch.

        Args:
            rows: row numbers, in the wanted order.
            length: of the padded rows; default the longest row's.
            multiple: the length is rounded up to a multiple of this.

        Returns:
            ``{"input_ids", "attention_mask", "token_type_ids"}``, each int32 [len(rows), length].

        Raises:
            UserError: a row is longer than `length`.
        """
        rows = np.arange(len(self)) if rows is None else np.asarray(rows, np.int64)
        lengths = self.lengths[rows]
        longest = int(lengths.max(initial=0))
        length = longest if length is None else length
        if longest > length:
            where = rows[int(lengths.argmax())]
            raise UserError(f"row {where}", f"has {longest} pieces, padded to {length}", "truncate it or pad to more")
        length = -(-length // multiple) * multiple
        mask = np.arange(length) < lengths[:, None]
        at = spread(self.splits[:-1][rows], lengths)
        ids = np.full(mask.shape, self.pad_id, np.int32)
        types = np.zeros(mask.shape, np.int32)
        ids[mask], types[mask] = self.input_ids[at], self.token_type_ids[at]
        return {"input_ids": ids, "attention_mask": mask.astype(np.int32), "token_type_ids": types}


def pack(
    first: Pieces,
    second: Pieces | None = None,
    *,
    cls_id: int,
    sep_id: int,
    pad_id: int = 0,
    max_length: int,
    truncation: str = "longest_first",
) -> Windows:
    """``[CLS] first [SEP]`` or ``[CLS] first [SEP] second [SEP]`` of every row, cut to `max_length`.

    Args:
        first, second: as many rows each; `second` None for single texts.
        cls_id, sep_id, pad_id: vocabulary ids.
        max_length: pieces a row at most, [CLS] and [SEP] included.
        truncation: what gives way in a row that is too long. ``"longest_first"``: the longer of the two texts
            loses its last piece (the second if both are equally long) until the row fits, as the original's
            `_truncate_seq_pair`. ``"only_second"``: the second text; only if the first alone is too long, the second
            vanishes and the first is cut too. A single text loses its end either way. ``"error"``: nothing.

    Returns:
        Windows, one a row; `dropped` says how many pieces each row lost.

    Raises:
        UserError: unknown truncation, no room for any piece, row counts differ, or a row too long under "error".

    Example:
        >>> import numpy as np
        >>> p = Pieces(*(np.arange(5, 9, dtype="int32"),) * 3, splits=np.array([0, 4]))
        >>> w = pack(p, cls_id=2, sep_id=3, max_length=5)
        >>> w.input_ids.tolist(), w.dropped.tolist()
        ([2, 5, 6, 7, 3], [1])
    """
    room = room_for(max_length, pair=second is not None, truncation=truncation)
    a = first.lengths
    b = np.zeros_like(a) if second is None else second.lengths
    if len(a) != len(b):
        raise UserError("pairs of texts", f"{len(a)} first texts but {len(b)} second ones")
    if truncation == "error" and (a + b > room).any():
        row = int((a + b > room).argmax())
        raise UserError(
            f"row {row}",
            f"has {a[row] + b[row]} pieces, there is room for {room} in max_length {max_length}",
            'shorten it, raise max_length, or ask for truncation="longest_first"',
        )
    if second is None:
        keep_a, keep_b = np.minimum(a, room), b
    elif truncation == "only_second":
        keep_a = np.minimum(a, room)
        keep_b = np.minimum(b, room - keep_a)
    else:  # where the loop of _truncate_seq_pair ends
        keep_a = np.minimum(a, np.maximum(room - b, room - room // 2))
        keep_b = np.minimum(b, np.maximum(room - a, room // 2))

    none, rows = np.zeros_like(a), np.arange(len(a))
    parts = [(first, Cuts(rows, none, keep_a))] + ([] if second is None else [(second, Cuts(rows, none, keep_b))])
    dropped = (a + b - keep_a - keep_b).astype(np.int32)
    return _laid(parts, dropped, cls_id=cls_id, sep_id=sep_id, pad_id=pad_id)


@dataclass(frozen=True)
class Cuts:
    """Stretches of texts, one a row: row r shows ``length[r]`` pieces of text ``example[r]`` from ``begin[r]`` on.

    Attributes:
        example, begin, length: int64 [rows].
    """

    example: np.ndarray
    begin: np.ndarray
    length: np.ndarray

    def __len__(self) -> int:
        return len(self.example)


def sliding(lengths: np.ndarray, room: int | np.ndarray, stride: int | np.ndarray) -> Cuts:
    """Windows of at most `room` pieces, one every `stride` pieces, until a text's end is covered.

    The loop of run_squad.py (`convert_examples_to_features`, ``doc_stride``) for all texts at once. A text of no
    pieces has one window of none.

    Args:
        lengths: int [texts], pieces of each.
        room: pieces of a window at most; one number, or one a text.
        stride: pieces from one window's begin to the next one's, 1 to `room`; one number, or one a text.

    Raises:
        UserError: a stride that is no number of pieces, or that would leave pieces out.

    Example:
        >>> cuts = sliding(np.array([7, 0]), room=4, stride=2)
        >>> cuts.example.tolist(), cuts.begin.tolist(), cuts.length.tolist()
        ([0, 0, 0, 1], [0, 2, 4, 0], [4, 4, 3, 0])
    """
    lengths = np.asarray(lengths, np.int64)
    rooms = np.broadcast_to(np.asarray(room, np.int64), lengths.shape)
    strides = np.broadcast_to(np.asarray(stride, np.int64), lengths.shape)
    wrong = (strides < 1) | (strides > rooms)
    if wrong.any():
        text = int(wrong.argmax())
        raise UserError(f"stride {strides[text]}", f"a window has room for {rooms[text]} pieces",
                        f"give 1 to {rooms[text]}")  # fmt: skip
    count = 1 + np.maximum(-(-(lengths - rooms) // strides), 0)
    example = np.repeat(np.arange(len(lengths)), count)
    begin = spread(np.zeros_like(count), count) * strides[example]
    return Cuts(example, begin, np.minimum(lengths[example] - begin, rooms[example]))


def by_words(first: np.ndarray, lengths: np.ndarray, room: int, stride: int) -> Cuts:
    """Windows that begin and end at word borders, for answers a word.

    A window takes as many whole words as `room` holds; the next begins with the word in which the piece `stride` after
    its begin lies, but never with the same one. A word longer than `room` fills a window alone with its first pieces.
    So every word's first piece is in a window, and the last window ends at the text's end. A text of no pieces has
    one window of none.

    Args:
        first: bool [all pieces], whether a piece is its word's first; a text's first piece always is.
        lengths: int [texts], pieces of each.
        room: pieces of a window at most.
        stride: from one window's begin to the next one's, in pieces, 1 to `room`.

    Raises:
        UserError: a stride that is no number of pieces, or that would leave pieces out.

    Example:
        >>> cuts = by_words(np.array([True, True, False, True, True]), np.array([5]), room=3, stride=2)
        >>> cuts.begin.tolist(), cuts.length.tolist()
        ([0, 1, 3], [3, 3, 2])
    """
    lengths = np.asarray(lengths, np.int64)
    if not 1 <= stride <= room:
        raise UserError(f"stride {stride}", f"a window has room for {room} pieces", f"give 1 to {room}")
    stops = np.cumsum(lengths)
    place = np.arange(len(first) + 1)
    border = np.append(first, True)
    word = np.maximum.accumulate(np.where(border, place, 0))  # where the word of a piece begins
    after = np.append(np.minimum.accumulate(np.where(border, place, len(first))[::-1])[::-1][1:], len(first))
    text, begin = np.arange(len(lengths)), stops - lengths
    found: list[tuple[np.ndarray, np.ndarray, np.ndarray]] = []
    while len(text):
        stop = np.minimum(begin + room, stops[text])
        end = np.where(word[stop] > begin, word[stop], stop)
        found.append((text, begin - stops[text] + lengths[text], end - begin))
        following = word[np.minimum(begin + stride, stops[text])]
        following = np.where(following > begin, following, after[begin])
        more = (end < stops[text]) & (following < stops[text])
        text, begin = text[more], following[more]
    nothing = (np.zeros(0, np.int64),) * 3
    example, begin, length = (np.concatenate(part) for part in zip(nothing, *found, strict=True))
    order = np.argsort(example, kind="stable")
    return Cuts(example[order], begin[order], length[order])


def most_context(cuts: Cuts, lengths: np.ndarray) -> np.ndarray:
    """Whether a row is the one in which a piece has most context: bool [sum of ``cuts.length``], row after row.

    The pieces on its shorter side are counted, within the row; of equal rows the first is taken. Every piece that is
    in a row is true in exactly one.

    Args:
        cuts: rows of a text one after the other.
        lengths: int [texts], pieces of each.

    Example:
        >>> most_context(sliding(np.array([4]), room=3, stride=1), np.array([4])).tolist()
        [True, True, False, False, True, True]
    """
    lengths = np.asarray(lengths, np.int64)
    nth = spread(np.zeros_like(cuts.length), cuts.length)
    row = np.repeat(np.arange(len(cuts)), cuts.length)
    context = np.minimum(nth, cuts.length[row] - 1 - nth)
    piece = (np.cumsum(lengths) - lengths)[cuts.example[row]] + cuts.begin[row] + nth
    order = np.lexsort((row, -context, piece))
    best = np.zeros(len(piece), bool)
    best[order[np.diff(piece[order], prepend=-1) != 0]] = True
    return best


def cut(
    pieces: Pieces, cuts: Cuts, first: Pieces | None = None, *, cls_id: int, sep_id: int, pad_id: int = 0
) -> Windows:
    """``[CLS] stretch [SEP]`` of every stretch, or ``[CLS] first [SEP] stretch [SEP]``; nothing is left out.

    Args:
        pieces: whole texts.
        cuts: which stretches of them.
        first: the text that stands before every stretch, one a text of `pieces` (a question before its context).
        cls_id, sep_id, pad_id: vocabulary ids.

    Example:
        >>> p = Pieces(*(np.arange(5, 9, dtype="int32"),) * 3, splits=np.array([0, 4]))
        >>> w = cut(p, sliding(p.lengths, room=3, stride=2), cls_id=2, sep_id=3)
        >>> w.input_ids.tolist(), w.begin.tolist()
        ([2, 5, 6, 7, 3, 2, 7, 8, 3], [0, 2])
    """
    parts = [(pieces, cuts)]
    if first is not None:
        whole = Cuts(cuts.example, np.zeros_like(cuts.begin), first.lengths[cuts.example])
        parts.insert(0, (first, whole))
    return _laid(parts, np.zeros(len(cuts), np.int32), cls_id=cls_id, sep_id=sep_id, pad_id=pad_id)


def _laid(parts: list[tuple[Pieces, Cuts]], dropped: np.ndarray, *, cls_id: int, sep_id: int, pad_id: int) -> Windows:
    """Rows of [CLS] and, for every part, its stretch and [SEP]; the parts' token types are 0, 1."""
    cuts = parts[-1][1]
    lengths = 1 + len(parts) + np.sum([part.length for _, part in parts], axis=0)
    splits = _splits(lengths)
    ids = np.full(splits[-1], sep_id, np.int32)
    starts, ends = np.full_like(ids, -1), np.full_like(ids, -1)
    types = np.zeros_like(ids)
    ids[splits[:-1]] = cls_id
    place = splits[:-1] + 1
    for kind, (pieces, part) in enumerate(parts):
        to = spread(place, part.length)
        at = spread(pieces.splits[:-1][part.example] + part.begin, part.length)
        ids[to], starts[to], ends[to] = pieces.ids[at], pieces.starts[at], pieces.ends[at]
        if kind:
            types[spread(place, part.length + 1)] = kind
        place = place + part.length + 1
    return Windows(ids, types, starts, ends, splits, cuts.example.astype(np.int32), dropped, cuts.begin, pad_id)


def room_for(max_length: int, *, pair: bool, truncation: str) -> int:
    """How many pieces of text fit into `max_length`; UserError if the request makes no sense."""
    if truncation not in TRUNCATIONS:
        raise UserError(f"truncation={truncation!r}", "unknown", "use one of " + ", ".join(TRUNCATIONS))
    room = max_length - (3 if pair else 2)
    if room < 1:
        raise UserError(f"max_length={max_length}", "leaves no room for text between [CLS] and [SEP]", "raise it")
    return room


def _splits(lengths: np.ndarray) -> np.ndarray:
    return np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)


def _join(arrays: list[np.ndarray]) -> np.ndarray:
    return np.concatenate([np.zeros(0, np.int32), *arrays]).astype(np.int32, copy=False)
