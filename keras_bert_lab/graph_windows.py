"""Windows inside the TensorFlow graph, for `Head.serve`: what `windows.sliding` and `windows.cut` do, and the logits of
any number of rows in bounded memory.

Plain TensorFlow operations only; any number of texts, none included.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

import tensorflow as tf

from .inputs import INPUTS

if TYPE_CHECKING:
    from .serving import Run

PLACES = 4096  # rows times length of what the model sees at once


class Cuts(NamedTuple):
    """Stretches of texts, one a row, as ``windows.Cuts``: int32 [rows] each."""

    example: tf.Tensor
    begin: tf.Tensor
    length: tf.Tensor


def sliding(lengths: tf.Tensor, room: tf.Tensor, stride: tf.Tensor) -> Cuts:
    """The windows of ``windows.sliding``.

    Args:
        lengths: int32 [texts], pieces of each.
        room: int32 [texts], pieces of a window at most; 1 or more.
        stride: int32 [texts], 1 to ``room``.

    Example:
        >>> cuts = sliding(tf.constant([7, 0]), tf.constant([4, 4]), tf.constant([2, 2]))
        >>> cuts.example.numpy().tolist(), cuts.begin.numpy().tolist(), cuts.length.numpy().tolist()
        ([0, 0, 0, 1], [0, 2, 4, 0], [4, 4, 3, 0])
    """
    count = 1 + tf.maximum(-((room - lengths) // stride), 0)
    example = tf.repeat(tf.range(tf.size(lengths)), count)
    begin = (tf.range(tf.size(example)) - tf.repeat(tf.cumsum(count) - count, count)) * tf.gather(stride, example)
    return Cuts(example, begin, tf.minimum(tf.gather(lengths, example) - begin, tf.gather(room, example)))


def by_words(first: tf.Tensor, lengths: tf.Tensor, room: int, stride: int) -> Cuts:
    """The windows of ``windows.by_words``.

    Args:
        first: bool [all pieces], whether a piece is its word's first.
        lengths: int32 [texts], pieces of each.
        room, stride: pieces of a window at most, and from one begin to the next; 1 <= stride <= room.

    Example:
        >>> cuts = by_words(tf.constant([True, True, False, True, True]), tf.constant([5]), 3, 2)
        >>> cuts.begin.numpy().tolist(), cuts.length.numpy().tolist()
        ([0, 1, 3], [3, 3, 2])
    """
    size = tf.size(first)
    border = tf.concat([tf.cast(tf.where(first)[:, 0], tf.int32), [size]], 0)
    nth = tf.cumsum(tf.concat([tf.cast(first, tf.int32), [1]], 0)) - 1
    word = tf.gather(border, nth)  # where the word of a piece begins
    after = tf.gather(border, tf.minimum(nth + 1, tf.size(border) - 1))
    stops = tf.cumsum(lengths)
    none = tf.zeros([0], tf.int32)
    free = tf.TensorShape([None])

    def step(text: tf.Tensor, begin: tf.Tensor, *found: tf.Tensor) -> tuple:
        last = tf.gather(stops, text)
        stop = tf.minimum(begin + room, last)
        end = tf.gather(word, stop)
        end = tf.where(end > begin, end, stop)
        new = text, begin - last + tf.gather(lengths, text), end - begin
        following = tf.gather(word, tf.minimum(begin + stride, last))
        following = tf.where(following > begin, following, tf.gather(after, begin))
        more = tf.where((end < last) & (following < last))[:, 0]
        found = tuple(tf.concat(pair, 0) for pair in zip(found, new, strict=True))
        return tf.gather(text, more), tf.gather(following, more), *found

    state = (tf.range(tf.size(lengths)), stops - lengths, none, none, none)
    *_, example, begin, length = tf.while_loop(
        lambda text, *_: tf.size(text) > 0, step, state, shape_invariants=(free,) * 5, parallel_iterations=1
    )
    order = tf.argsort(example, stable=True)
    return Cuts(*(tf.gather(part, order) for part in (example, begin, length)))


def logits(
    run: Run, pieces: tf.RaggedTensor, cuts: Cuts, first: tf.RaggedTensor | None = None, places: int = PLACES
) -> tuple[dict[str, Any], tf.Tensor]:
    """The model's logits of ``[CLS] stretch [SEP]`` or ``[CLS] first [SEP] stretch [SEP]`` of every stretch.

    Rows are sorted by length and go through the model in batches of at most ``places`` places (or one row), each
    padded to its own longest row.

    Args:
        run: what ``Head.serve`` is given.
        pieces: int32 [texts, (pieces)], ids of whole texts.
        cuts: which stretches of them; no row may be longer than ``run.max_length``.
        first: int32 [texts, (pieces)], what stands before every stretch of a text.
        places: see above.

    Returns:
        ({output: logits}, lengths): outputs of a row as tensors [rows, ...], outputs of a piece as RaggedTensors
        [rows, (length of the row), ...]; int32 [rows], lengths of the rows.
    """
    model = tf.function(run.model, [tf.TensorSpec([None, None], tf.int32)] * 3, autograph=False)
    made = model.get_concrete_function().structured_outputs
    per_piece = {name: len(value.shape) > 1 and value.shape[1] is None for name, value in made.items()}
    # A row without any piece, of a text behind the last one, stands at the end: so there always is a batch to run.
    texts = [pieces] if first is None else [first, pieces]
    values = [tf.concat([text.values, [0]], 0) for text in texts]
    begins = [tf.concat([tf.cast(text.row_starts(), tf.int32), [0]], 0) for text in texts]
    example = tf.concat([cuts.example, [tf.cast(pieces.nrows(), tf.int32)]], 0)
    stretch = (tf.concat([cuts.begin, [0]], 0), tf.concat([cuts.length, [0]], 0))
    parts = [stretch]
    if first is not None:
        whole = tf.gather(tf.concat([tf.cast(first.row_lengths(), tf.int32), [0]], 0), example)
        parts.insert(0, (tf.zeros_like(whole), whole))
    total = tf.add_n([length + 1 for _, length in parts]) + 1
    order = tf.argsort(total, direction="DESCENDING", stable=True)
    count = tf.size(order)

    def batch(at: tf.Tensor) -> tuple[tf.Tensor, dict[str, tf.Tensor]]:
        """The rows from place ``at`` of the order on, as many as fit: their number, and the values they give."""
        longest = total[order[at]]
        number = tf.minimum(tf.maximum(places // longest, 1), count - at)
        rows = order[at : at + number]
        x = _laid(run, rows, longest, example, values, begins, parts)
        found = {}
        for name, value in model(*(x[key] for key in INPUTS)).items():
            found[name] = tf.boolean_mask(value, x["attention_mask"] > 0) if per_piece[name] else value
        return number, found

    number, found = batch(tf.constant(0))
    arrays = {
        name: tf.TensorArray(
            value.dtype, 1, dynamic_size=True, infer_shape=False, element_shape=[None, *value.shape[1:]]
        ).write(0, value)
        for name, value in found.items()
    }

    def step(at: tf.Tensor, n: tf.Tensor, arrays: Mapping[str, tf.TensorArray]) -> tuple:
        number, found = batch(at)
        return at + number, n + 1, {name: array.write(n, found[name]) for name, array in arrays.items()}

    _, _, arrays = tf.while_loop(
        lambda at, *_: at < count, step, (number, tf.constant(1), arrays), parallel_iterations=1
    )
    back = tf.argsort(order, stable=True)[:-1]
    out = {}
    for name, array in arrays.items():
        flat = array.concat()
        if per_piece[name]:
            flat = tf.RaggedTensor.from_row_lengths(flat, tf.gather(total, order), validate=False)
        out[name] = tf.gather(flat, back)
    return out, total[:-1]


def _laid(
    run: Run, rows: tf.Tensor, longest: tf.Tensor, example: tf.Tensor, values: list, begins: list, parts: list
) -> dict[str, tf.Tensor]:
    """The three inputs of some rows, int32 [rows, longest]."""
    place, which = tf.range(longest)[None], tf.gather(example, rows)
    ids = tf.where(place == 0, run.cls_id, run.pad_id) + tf.zeros_like(rows)[:, None]
    types, at = tf.zeros_like(ids), tf.ones_like(rows)[:, None]
    for kind, (flat, starts, (begin, length)) in enumerate(zip(values, begins, parts, strict=True)):
        source = (tf.gather(starts, which) + tf.gather(begin, rows))[:, None] + place - at
        end = at + tf.gather(length, rows)[:, None]
        inside = (place >= at) & (place < end)
        ids = tf.where(inside, tf.gather(flat, tf.where(inside, source, 0)), tf.where(place == end, run.sep_id, ids))
        if kind:
            types = tf.where((place >= at) & (place <= end), kind, types)
        at = end + 1
    return {"input_ids": ids, "attention_mask": tf.cast(place < at, tf.int32), "token_type_ids": types}


def most_context(cuts: Cuts, lengths: tf.Tensor, by_length: float = 0.01) -> tf.RaggedTensor:
    """Whether a row is the one in which a piece has most context: bool [rows, (length of the stretch)].

    The rule of run_squad.py (`_check_is_max_context`), in float64 as there: pieces on its shorter side plus a hundredth
    of the stretch's length; the first of equal rows. Every piece that is in a row is true in exactly one.

    Args:
        cuts: as from ``sliding``.
        lengths: int32 [texts], pieces of each.
        by_length: what a piece of the stretch's length counts; 0: the rule of ``windows.most_context``.
    """
    nth = tf.ragged.range(cuts.length)
    row = tf.cast(nth.value_rowids(), tf.int32)
    of_row = tf.gather(cuts.length, row)
    shorter = tf.cast(tf.minimum(nth.values, of_row - 1 - nth.values), tf.float64)
    context = shorter + by_length * tf.cast(of_row, tf.float64)
    first = tf.gather(tf.cumsum(lengths) - lengths, cuts.example) + cuts.begin
    piece = tf.gather(first, row) + nth.values
    best = tf.math.unsorted_segment_max(context, piece, tf.reduce_sum(lengths))
    candidate = tf.where(context == tf.gather(best, piece), row, tf.size(cuts.length))
    owner = tf.math.unsorted_segment_min(candidate, piece, tf.reduce_sum(lengths))
    return nth.with_values(tf.gather(owner, piece) == row)
