"""What ``Head.serve`` is given as ``run``: from raw text to logits inside one TensorFlow graph.

`Run` tokenizes in the graph, as the exported model does. `PythonRun` does the same through the Python tokenizer: the
other route to the same answers, against which exports are proved.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np
import tensorflow as tf

from .inputs import INPUTS
from .windows import pack
from .wordpiece import Tokenizer

if TYPE_CHECKING:
    from .graph_text import GraphTokenizer

Rows = dict[str, tf.Tensor]


class Run:
    """``run(first, second=None) -> (logits, packed)``: tokenizes, packs and calls the model, one row a text.

    Attributes:
        max_length: pieces of a row at most, [CLS] and [SEP] included.
        cls_id, sep_id, pad_id: vocabulary ids, for rows that a head lays out itself.

    Args:
        tokenizer: in the graph.
        model: the three inputs, int32 [rows, length] -> logits by output name.
        max_length, truncation: of the task, see ``windows.pack``.
    """

    def __init__(
        self, tokenizer: GraphTokenizer, model: Callable[[Rows], Rows], max_length: int, truncation: str
    ) -> None:
        self._set(tokenizer.tokenizer, model, max_length, truncation)
        self._graph = tokenizer

    def _set(self, tokenizer: Tokenizer, model: Callable, max_length: int, truncation: str) -> None:
        self._tokenizer, self._model, self.max_length, self._truncation = tokenizer, model, max_length, truncation
        self.cls_id, self.sep_id, self.pad_id = tokenizer.cls_id, tokenizer.sep_id, tokenizer.pad_id

    def __call__(self, first: tf.Tensor, second: tf.Tensor | None = None) -> tuple[Rows, Rows]:
        """Strings [B], and what stands after them in pairs -> (logits by output name, the three inputs [B, L])."""
        packed = self._pack(first, second)
        return self._model(packed), packed

    def tokenize(self, texts: tf.Tensor) -> tuple[tf.RaggedTensor, tf.RaggedTensor, tf.RaggedTensor]:
        """Strings [B] -> ids, starts, ends of all their pieces, int32 [B, (pieces)]; offsets count code points."""
        return self._graph.tokenize(texts)

    def model(self, input_ids: tf.Tensor, attention_mask: tf.Tensor, token_type_ids: tf.Tensor) -> Rows:
        """Logits by output name of rows laid out by the head: int32 [R, L] each, R from 0, L from 1 to the model's."""
        return self._model(dict(zip(INPUTS, (input_ids, attention_mask, token_type_ids), strict=True)))

    def _pack(self, first: tf.Tensor, second: tf.Tensor | None) -> Rows:
        return self._graph.pack(first, second, max_length=self.max_length, truncation=self._truncation)[0]


class PythonRun(Run):
    """The same through the Python tokenizer and ``windows.pack``; works eagerly and, as py_functions, in a graph."""

    def __init__(
        self, tokenizer: Tokenizer, model: Callable[[Rows], Rows], max_length: int, truncation: str = "longest_first"
    ) -> None:
        self._set(tokenizer, model, max_length, truncation)

    def tokenize(self, texts: tf.Tensor) -> tuple[tf.RaggedTensor, tf.RaggedTensor, tf.RaggedTensor]:
        def pieces(column: tf.Tensor) -> tuple:
            found = self._tokenizer.pieces(_strings(column))
            return found.ids, found.starts, found.ends, found.splits

        *flat, splits = tf.py_function(pieces, [texts], [tf.int32, tf.int32, tf.int32, tf.int64])
        splits = tf.ensure_shape(splits, [None])
        ids, starts, ends = (tf.RaggedTensor.from_row_splits(tf.ensure_shape(f, [None]), splits) for f in flat)
        return ids, starts, ends

    def _pack(self, first: tf.Tensor, second: tf.Tensor | None) -> Rows:
        def rows(*columns: tf.Tensor) -> list[np.ndarray]:
            t, found = self._tokenizer, [self._tokenizer.pieces(_strings(column)) for column in columns]
            windows = pack(*found, cls_id=t.cls_id, sep_id=t.sep_id, pad_id=t.pad_id, max_length=self.max_length,
                           truncation=self._truncation)  # fmt: skip
            padded = windows.pad(length=max(2, int(windows.lengths.max(initial=2))))
            return [padded[name] for name in INPUTS]

        given = [first] if second is None else [first, second]
        found: Any = tf.py_function(rows, given, [tf.int32] * 3)
        return {name: tf.ensure_shape(row, [None, None]) for name, row in zip(INPUTS, found, strict=True)}


def _strings(column: tf.Tensor) -> list[str]:
    return [text.decode() for text in column.numpy()]
