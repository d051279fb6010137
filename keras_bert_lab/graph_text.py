"""The tokenizer of `wordpiece` as TensorFlow operations, from the same table: same ids, same character offsets.

Text becomes one flat tensor of code points; a table of pages says what becomes of each; what neighbours decide (final
sigma, order of combining marks, characters that become several or none, special tokens) is worked out in a branch
that only runs when such a character is there; words are cut by comparing neighbours; tensorflow_text's WordPiece
operation runs on ready words. Everything it needs travels inside a SavedModel.
"""

from __future__ import annotations

import functools
import os
import unicodedata
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from types import SimpleNamespace
from typing import Any

import numpy as np
import tensorflow as tf

from keras_bert_lab.errors import UserError
from keras_bert_lab.windows import Pieces, room_for, spread
from keras_bert_lab.wordpiece import (
    CODE_POINTS,
    FINAL_SIGMA,
    LONGEST_WORD,
    ORDINARY,
    SIGMA,
    SMALL_SIGMA,
    SPECIAL,
    CodePoints,
    Tokenizer,
)

# A table entry: what becomes of a code point in the high bits, its replacement (or row of `rare`) in the low 21.
BITS = 21
LOW = (1 << BITS) - 1
LETTER, SINGLE, BLANK, GONE, EMPTY, RARE = (code << BITS for code in range(6))
CHUNK = 512  # texts a step of `pieces`


class GraphTokenizer(tf.Module):
    """`wordpiece.Tokenizer` inside the graph.

    Args:
        tokenizer: gives vocabulary, switches and table.

    Raises:
        UserError: tensorflow_text cannot be imported.

    Example:
        >>> t = Tokenizer("\\n".join("[PAD] [UNK] [CLS] [SEP] hello ##s".split()).encode(), lower_case=True)
        >>> ids, starts, ends = GraphTokenizer(t).tokenize(["  Hellos you"])
        >>> ids.to_list(), starts.to_list(), ends.to_list()
        ([[4, 5, 1]], [[2, 7, 9]], [[7, 8, 12]])
    """

    def __init__(self, tokenizer: Tokenizer) -> None:
        super().__init__(name="graph_tokenizer")
        text = _tensorflow_text()
        self.tokenizer = tokenizer
        letters = set().union(*tokenizer.tokens)
        self._filler = next(c for c in range(CODE_POINTS - 3, 0, -1) if chr(c) not in letters)
        self._specials = [t for t in SPECIAL if t in tokenizer.ids] if tokenizer.special_tokens else []
        self._wordpiece = text.FastWordpieceTokenizer(
            _usable(tokenizer),
            unknown_token="[UNK]",
            no_pretokenization=True,
            max_bytes_per_word=4 * LONGEST_WORD + 100,
            token_out_type=tf.int32,
            support_detokenization=False,
        )
        sizes = [max(1, len(t) - 2 * t.startswith("##")) for t in tokenizer.tokens]
        self._sizes = tf.constant(sizes, tf.int32)  # characters of a piece
        table = tokenizer._table
        entries, rare = _entries(table, tokenizer.lower_case, bracket=bool(self._specials))
        self._table = _Pages(entries - np.arange(CODE_POINTS))  # relative, so that most pages are equal
        self._rare = {name: tf.constant(array) for name, array in rare.items()}
        self._context = _Pages(np.where(table.ignorable, 2, np.where(table.cased, 1, 0)).astype(np.int32))
        self._order = _Pages(table.order.astype(np.int32))
        self._starter = _Pages(table.starter.astype(np.int32))
        # For `pieces`. In a plain object, so that a SavedModel does not carry these two functions.
        rows = [tf.TensorSpec([None], tf.string)]
        self._bulk = SimpleNamespace(
            with_offsets=tf.function(lambda texts: self._flattened(texts, True), rows, autograph=False),
            ids_only=tf.function(lambda texts: self._flattened(texts, False), rows, autograph=False),
        )

    def tokenize(self, texts: tf.Tensor, offsets: bool = True) -> tuple[tf.RaggedTensor, Any, Any]:
        """Ids and character offsets of every text.

        Args:
            texts: string [batch], UTF-8; bytes that are not are left out.
            offsets: False saves their time and gives None instead.

        Returns:
            (ids, starts, ends): RaggedTensor int32 [batch, (pieces)], offsets in code points of the text.
        """
        with tf.device("/device:CPU:0"):  # strings live there; small integer operations elsewhere would be copies
            return self._tokenize(tf.convert_to_tensor(texts, tf.string), offsets)

    def _tokenize(self, texts: tf.Tensor, offsets: bool) -> tuple[tf.RaggedTensor, Any, Any]:
        points, splits = _decode(texts)
        entry = self._table(points) + points
        entry, at = tf.cond(
            tf.reduce_any(entry >= GONE),
            lambda: self._settle(points, entry),
            lambda: (entry, tf.range(tf.size(points))),
        )
        # Only letters, single characters and blanks are left.
        solid = tf.where(entry < BLANK)[:, 0]
        entry = tf.gather(entry, solid)
        at = tf.gather(at, solid)
        single = entry >= SINGLE
        char = tf.bitwise.bitwise_and(entry, LOW)
        joined = tf.logical_or(single[1:], single[:-1])
        begins = tf.concat([tf.ones_like(single[:1]), joined | (solid[1:] != solid[:-1] + 1)], 0)
        word_at = tf.where(begins)[:, 0]
        word_splits = tf.concat([word_at, tf.shape(char, tf.int64)], 0)
        word_size = tf.cast(word_splits[1:] - word_splits[:-1], tf.int32)

        plain = tf.where(char < CODE_POINTS, char, self._filler) if self._specials else char
        words = tf.strings.unicode_encode(tf.RaggedTensor.from_row_splits(plain, word_splits, validate=False), "UTF-8")
        # The operation counts bytes; the limit is in characters.
        long = word_size > LONGEST_WORD
        words = tf.cond(tf.reduce_any(long), lambda: tf.where(long, chr(self._filler), words), lambda: words)
        pieces = self._wordpiece.tokenize(words)
        ids, piece_splits = pieces.values, pieces.row_splits
        rows = tf.searchsorted(tf.gather(at, word_at), tf.cast(splits, tf.int32), out_type=tf.int64)
        rows = tf.gather(piece_splits, rows)
        if not offsets and not self._specials:
            return tf.RaggedTensor.from_row_splits(ids, rows, validate=False), None, None

        # The pieces of a word cover it, so their sizes add up to where each begins; [UNK] is as long as its word.
        unknown = tf.where(ids == self.tokenizer.unk_id)
        word = tf.searchsorted(piece_splits[1:], unknown[:, 0], side="right")
        size = tf.tensor_scatter_nd_update(tf.gather(self._sizes, ids), unknown, tf.gather(word_size, word))
        end = tf.cumsum(size)
        first = end - size
        starts, ends = tf.gather(at, first), tf.gather(at, end - 1) + 1
        if self._specials:
            char = tf.gather(char, first) - CODE_POINTS
            special, which = char >= 0, tf.maximum(char, 0)
            ids = tf.where(special, tf.gather([self.tokenizer.ids[t] for t in self._specials], which), ids)
            ends += tf.where(special, tf.gather([len(t) - 1 for t in self._specials], which), 0)
        base = tf.repeat(tf.cast(splits[:-1], tf.int32), rows[1:] - rows[:-1])
        ragged = [tf.RaggedTensor.from_row_splits(v, rows, validate=False) for v in (ids, starts - base, ends - base)]
        return tuple(ragged) if offsets else (ragged[0], None, None)

    def pack(
        self, first: Any, second: Any = None, *, max_length: int, truncation: str = "longest_first"
    ) -> tuple[dict[str, tf.Tensor], tf.Tensor]:
        """``[CLS] first [SEP]`` or ``[CLS] first [SEP] second [SEP]``, cut to `max_length` and padded.

        The same rows as `windows.pack`, from plain TensorFlow operations only.

        Args:
            first, second: string [batch], or ids from `tokenize` (RaggedTensor int32 [batch, (pieces)]).
            max_length: pieces a row at most, [CLS] and [SEP] included.
            truncation: as for `windows.pack`; under ``"error"`` a row that is too long stops the graph with an
                InvalidArgumentError.

        Returns:
            ``({"input_ids", "attention_mask", "token_type_ids"}, dropped)``: int32 [batch, longest row] each, and
            int32 [batch], the number of pieces that each row lost. Any batch size, 0 included (then 2 long).

        Raises:
            UserError: unknown truncation, or no room for any text.
        """
        t = self.tokenizer
        room = room_for(max_length, pair=second is not None, truncation=truncation)
        first = self._ids(first)
        a = tf.cast(first.row_lengths(), tf.int32)
        if second is None:
            b = tf.zeros_like(a)
        else:
            second = self._ids(second)
            b = tf.cast(second.row_lengths(), tf.int32)
        if second is None:
            keep_a, keep_b = tf.minimum(a, room), b
        elif truncation == "only_second":
            keep_a = tf.minimum(a, room)
            keep_b = tf.minimum(b, room - keep_a)
        else:
            keep_a = tf.minimum(a, tf.maximum(room - b, room - room // 2))
            keep_b = tf.minimum(b, tf.maximum(room - a, room // 2))
        dropped = a + b - keep_a - keep_b
        if truncation == "error":
            message = f"a text has more pieces than the {room} that max_length {max_length} leaves room for"
            with tf.control_dependencies([tf.debugging.assert_equal(tf.reduce_max(dropped), 0, message)]):
                dropped = tf.identity(dropped)

        end_a = (keep_a + 1)[:, None]  # place of the first [SEP]
        end = end_a if second is None else end_a + keep_b[:, None] + 1  # of the last
        # A batch of no rows has the length of an empty text: layers that look at [CLS] need one.
        place = tf.range(tf.reduce_max(tf.concat([end[:, 0] + 1, [2]], 0)))[None]

        def laid(ragged: tf.RaggedTensor, shift: tf.Tensor | int, inside: tf.Tensor, ids: tf.Tensor) -> tf.Tensor:
            index = tf.cast(ragged.row_starts(), tf.int32)[:, None] + place - shift
            found = tf.gather(tf.concat([ragged.values, [0]], 0), tf.where(inside, index, tf.size(ragged.values)))
            return tf.where(inside, found, ids)

        ids = tf.where(place == 0, t.cls_id, tf.where((place == end_a) | (place == end), t.sep_id, t.pad_id))
        ids = laid(first, 1, (place > 0) & (place < end_a), ids)
        types = tf.zeros_like(ids)
        if second is not None:
            ids = laid(second, end_a + 1, (place > end_a) & (place < end), ids)
            types = tf.cast((place > end_a) & (place <= end), tf.int32)
        mask = tf.cast(place <= end, tf.int32)
        return {"input_ids": ids, "attention_mask": mask, "token_type_ids": types}, dropped

    def pieces(self, texts: Sequence[str], offsets: bool = True) -> Pieces:
        """Many texts at once, chunks in parallel on all cores; what `Tokenizer.pieces` gives.

        Args:
            texts: strings.
            offsets: False saves their time and leaves zeros.

        Raises:
            UserError: something that is not a string, with its position.
        """
        if isinstance(texts, str):
            raise UserError("texts", "is one string", "give a list of strings")
        texts = list(texts)
        for row, text in enumerate(texts):
            if not isinstance(text, str):
                raise UserError(f"text {row}", f"is {type(text).__name__}, not a string")
        work = partial(self._chunk, self._bulk.with_offsets if offsets else self._bulk.ids_only)
        chunks = [texts[i : i + CHUNK] for i in range(0, len(texts), CHUNK)]
        if len(chunks) < 2:
            return Pieces.concat(map(work, chunks))
        with ThreadPoolExecutor(len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else None) as pool:
            return Pieces.concat(pool.map(work, chunks))

    def _chunk(self, flattened: Any, texts: list[str]) -> Pieces:
        try:
            held = [text.encode() for text in texts]
        except UnicodeEncodeError:  # half a surrogate pair is no UTF-8; a character that no entry has stands for it
            lone = dict.fromkeys(range(0xD800, 0xE000), self._filler)
            held = [text.translate(lone).encode() for text in texts]
        ids, splits, starts, ends = (v.numpy() for v in flattened(tf.constant(held, tf.string)))
        return Pieces(ids, starts, ends, splits)

    def _flattened(self, texts: tf.Tensor, offsets: bool) -> tuple[tf.Tensor, ...]:
        ids, starts, ends = self.tokenize(texts, offsets)
        flat = (starts.values, ends.values) if offsets else (tf.zeros_like(ids.values),) * 2
        return ids.values, ids.row_splits, *flat

    def _ids(self, texts: Any) -> tf.RaggedTensor:
        return texts if isinstance(texts, tf.RaggedTensor) else self.tokenize(texts, offsets=False)[0]

    def _settle(self, points: tf.Tensor, entry: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        """Characters that vanish, become several, or look at their neighbours: (entries without such, positions)."""
        if self._specials:
            points, entry = self._find_specials(points, entry)
        at = tf.where((entry < GONE) | (entry >= EMPTY))[:, 0]
        points, entry = tf.gather(points, at), tf.gather(entry, at)
        at = tf.cast(at, tf.int32)
        if self.tokenizer.lower_case:
            sigma = points == ord(SIGMA)
            entry = tf.cond(tf.reduce_any(sigma), lambda: self._set_sigmas(points, entry, sigma), lambda: entry)

        def without_empty() -> tuple[tf.Tensor, tf.Tensor]:
            full = tf.where(entry < EMPTY)[:, 0]
            return tf.gather(entry, full), tf.gather(at, full)

        return tf.cond(tf.reduce_any(entry >= RARE), lambda: self._expand(points, entry, at), without_empty)

    def _expand(self, points: tf.Tensor, entry: tf.Tensor, at: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        """Characters that become several, each with the position of the one it comes from."""
        rare = entry >= RARE
        row = tf.where(rare, entry - RARE, 0)
        count = tf.where(rare, tf.gather(self._rare["count"], row), tf.cast(entry < EMPTY, tf.int32))
        total = tf.cumsum(count)
        owner = tf.RaggedTensor.from_row_lengths(tf.range(total[-1]), count, validate=False).value_rowids()
        nth = tf.range(total[-1]) - tf.gather(total - count, owner)
        listed = tf.gather(rare, owner)
        index = tf.gather(tf.gather(self._rare["begin"], row), owner) + nth
        new = tf.gather(self._rare["entry"], tf.where(listed, index, 0))
        new = tf.where(listed, new, tf.gather(entry, owner))
        if self.tokenizer.strip_accents:
            marks = rare & tf.gather(self._rare["marks"], row)
            new = tf.cond(tf.reduce_any(marks), lambda: self._in_canonical_order(points, new, owner), lambda: new)
        return new, tf.gather(at, owner)

    def _find_specials(self, points: tf.Tensor, entry: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        """A special token becomes one code point beyond the last; the rest of it vanishes."""
        size = tf.size(points)
        ahead = tf.concat([points, tf.zeros([10], tf.int32)], 0)
        vanish = tf.zeros_like(points, tf.bool)
        entry = tf.where(points == ord("["), SINGLE + ord("["), entry)
        for number, token in enumerate(self._specials):
            match = tf.ones_like(vanish)
            for i, c in enumerate(token):
                match &= ahead[i : size + i] == ord(c)
            entry = tf.where(match, SINGLE + CODE_POINTS + number, entry)
            points = tf.where(match, 0, points)
            for i in range(1, len(token)):
                vanish |= tf.concat([tf.zeros([i], tf.bool), match], 0)[:size]
        return points, tf.where(vanish, GONE, entry)

    def _set_sigmas(self, points: tf.Tensor, entry: tf.Tensor, sigma: tf.Tensor) -> tf.Tensor:
        """As `wordpiece._set_sigmas`; blanks and special tokens are neither cased nor ignorable."""
        context = self._context(points)
        solid = tf.where(context != 2)[:, 0]
        cased = tf.gather(context, solid) == 1
        edge = tf.zeros([1], tf.bool)
        final = tf.concat([edge, cased[:-1]], 0) & ~tf.concat([cased[1:], edge], 0)
        which = tf.boolean_mask(tf.stack([solid, tf.cast(final, tf.int64)], 1), tf.gather(sigma, solid))
        new = tf.where(which[:, 1] == 1, LETTER + ord(FINAL_SIGMA), LETTER + ord(SMALL_SIGMA))
        return tf.tensor_scatter_nd_update(entry, which[:, :1], new)

    def _in_canonical_order(self, points: tf.Tensor, new: tf.Tensor, owner: tf.Tensor) -> tf.Tensor:
        """As `wordpiece._in_canonical_order`."""
        run = tf.gather(tf.cumsum(tf.cast(self._starter(points), tf.int64)), owner)
        char = tf.minimum(tf.bitwise.bitwise_and(new, LOW), CODE_POINTS - 1)
        order = tf.where(new < BLANK, self._order(char), 0)
        size = tf.size(new, tf.int64)
        key = (run * 256 + tf.cast(order, tf.int64)) * size + tf.range(size)  # unique: any sort is stable
        return tf.gather(new, tf.argsort(key))


def slices(texts: tf.Tensor, start: tf.Tensor, end: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    """The characters [start, end) of every text, ends moved over combining marks that follow.

    Args:
        texts: string [B].
        start, end: int32 [B, n]; equal: nothing.

    Returns:
        strings and moved ends, [B, n] each.
    """
    points = tf.strings.unicode_decode(texts, "UTF-8", errors="ignore")
    base = tf.cast(points.row_starts(), tf.int32)[:, None]
    size = tf.size(points.values)
    # the next place that is no mark; a stop behind every text
    solid = tf.concat([tf.cast(tf.where(~_is_mark(points.values))[:, 0], tf.int32), [size]], 0)
    moved = tf.gather(solid, tf.searchsorted(solid, tf.reshape(base + end, [-1])))
    limit = base + tf.cast(points.row_lengths(), tf.int32)[:, None]
    moved = tf.minimum(tf.reshape(moved, tf.shape(end)), limit) - base
    end = tf.where(start < end, moved, end)
    places = tf.ragged.range(tf.reshape(base + start, [-1]), tf.reshape(base + end, [-1]))
    found = tf.strings.unicode_encode(places.with_values(tf.gather(points.values, places.values)), "UTF-8")
    return tf.reshape(found, tf.shape(end)), end


@functools.cache
def _mark_edges() -> np.ndarray:
    """Where runs of code points of the category Mn begin and end, in turn."""
    marks = np.array([unicodedata.category(chr(c)) == "Mn" for c in range(CODE_POINTS)])
    return np.flatnonzero(np.diff(np.concatenate([[False], marks, [False]]))).astype(np.int32)


def _is_mark(points: tf.Tensor) -> tf.Tensor:
    """bool: code points of the category Mn."""
    return tf.searchsorted(tf.constant(_mark_edges()), points, side="right") % 2 == 1


class _Pages(tf.Module):
    """int32 [0x110000] as pages of 256, equal pages stored once."""

    def __init__(self, values: np.ndarray) -> None:
        super().__init__(name="pages")
        pages, number = np.unique(values.reshape(-1, 256), axis=0, return_inverse=True)
        self._values = tf.constant(pages.reshape(-1), tf.int32)
        self._base = tf.constant(number.reshape(-1) * 256, tf.int32)

    def __call__(self, points: tf.Tensor) -> tf.Tensor:
        base = tf.gather(self._base, tf.bitwise.right_shift(points, 8))
        return tf.gather(self._values, base + tf.bitwise.bitwise_and(points, 255))


def _decode(texts: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    """Code points int32 [n] and row splits int64 [batch + 1]; a line feed ends each text, so none touches the next."""
    texts = texts + "\n"
    joined = tf.io.decode_raw(tf.strings.reduce_join(texts), tf.uint8)

    def ascii_only() -> tuple[tf.Tensor, tf.Tensor]:
        lengths = tf.cast(tf.strings.length(texts), tf.int64)
        return tf.cast(joined, tf.int32), tf.concat([[0], tf.cumsum(lengths)], 0)

    def any_text() -> tuple[tf.Tensor, tf.Tensor]:
        points = tf.strings.unicode_decode(texts, "UTF-8", errors="ignore")
        return points.values, points.row_splits

    return tf.cond(tf.reduce_all(joined < 128), ascii_only, any_text)


def _entries(table: CodePoints, lower_case: bool, bracket: bool) -> tuple[np.ndarray, dict[str, np.ndarray]]:
    """The table in the form of LETTER .. RARE, and the rows that RARE entries point at."""
    length = np.diff(table.splits)
    target = table.flat[np.minimum(table.splits[:-1], len(table.flat) - 1)]
    code = np.array([LETTER, GONE, BLANK, SINGLE], np.int32)[table.kind]  # by ORDINARY, DROP, SPACE, ALONE
    code[(table.kind == ORDINARY) & table.punctuation[target]] = SINGLE
    code[(table.kind == ORDINARY) & (length == 0)] = EMPTY
    entries = np.where(length == 1, code + target, code)
    marks = np.zeros(CODE_POINTS, bool)
    marks[np.repeat(np.arange(CODE_POINTS), length)[table.order[table.flat] > 0]] = True
    several = (length > 1) | marks
    several[ord(SIGMA)] |= lower_case
    several[ord("[")] |= bracket
    rare = np.flatnonzero(several)
    entries[rare] = RARE + np.arange(len(rare))
    flat = table.flat[spread(table.splits[rare], length[rare])]
    return entries.astype(np.int32), {
        "begin": (np.cumsum(length[rare]) - length[rare]).astype(np.int32),
        "count": length[rare].astype(np.int32),
        "entry": (flat + np.where(table.punctuation[flat], SINGLE, LETTER)).astype(np.int32),
        "marks": marks[rare],
    }


def _usable(tokenizer: Tokenizer) -> list[str]:
    """The entries as the operation can take them.

    An entry that no word can match (blank, or given again by a later line) gives way to a stand-in with a blank in
    it, which no word has.
    """
    return [
        token if tokenizer.ids[token] == i and token not in ("", "##") else f" {i}"
        for i, token in enumerate(tokenizer.tokens)
    ]


def _tensorflow_text() -> Any:
    try:
        import tensorflow_text
    except Exception as error:  # a mismatched build raises NotFoundError, not ImportError
        raise UserError(
            "tensorflow_text",
            f"cannot be imported ({type(error).__name__}: {str(error).splitlines()[0][:200]})",
            f"pip install 'tensorflow-text=={tf.__version__.rsplit('.', 1)[0]}.*', or use "
            "keras_bert_lab.Tokenizer, which needs none (it has no wheels for Windows and some Arm machines)",
        ) from error
    return tensorflow_text
