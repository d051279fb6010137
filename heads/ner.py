"""Named entities: stretches of words that have a type. One tag a word, from its first piece.

The network is that of Devlin et al. 2019, section 5.3: dropout and one linear layer on the encoder's output; a CRF over
it is an option. Sentences longer than the model are seen through windows that begin and end at word borders; the tags
of all words of a text are then chosen together. docs/ner.md lists formats, options and formulas.
"""

from __future__ import annotations

import copy
import dataclasses
import functools
import itertools
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, TextIO

import keras
import numpy as np
import tensorflow as tf
from keras import ops

from keras_bert_lab import conll, crf, graph_text, graph_windows, tags
from keras_bert_lab.errors import UserError
from keras_bert_lab.head import Example, Features, Head
from keras_bert_lab.losses import UNLABELLED, Accuracy, SparseCategoricalCrossentropy
from keras_bert_lab.sentences import Sentence, align
from keras_bert_lab.squad import continuations
from keras_bert_lab.tags import OUTSIDE, Span
from keras_bert_lab.windows import Cuts, Windows, by_words, spread
from keras_bert_lab.words import Words, given, owned, plain

OUTPUT, TABLE = "logits", "crf"
NEVER = -1e4  # added to the logits of entities at padding; within float16
PLACES = 1 << 16  # words (padding included) whose tags are chosen at a time
INSIDE = {"IOB1": "I", "IOB2": "I", "BIOES": "I", "BILOU": "I", "BMES": "M"}


@dataclass(frozen=True)
class Tagged(Example):
    """An example whose words are given: a sentence of a file. Of any other example the tokenizer finds the words.

    Attributes:
        sentence: its words and whatever stood beside them in the file. ``gold`` holds a tag each.

    Example:
        >>> example = Tagged.of(["Ann", "left"], ["B-PER", "O"])
        >>> example.text, example.gold
        ('Ann left', ('B-PER', 'O'))
    """

    sentence: Sentence | None = None

    @classmethod
    def of(cls, tokens: Sequence[str], gold: Sequence[str] | None = None, **more: Any) -> Tagged:
        """From words and, if they are known, their tags; ``more`` as for ``Sentence.of``."""
        return cls.from_sentence(Sentence.of(tokens, gold, **more))

    @classmethod
    def from_sentence(cls, sentence: Sentence) -> Tagged:
        gold = sentence.entities if sentence.tokens is None else sentence.tags
        return cls(sentence.text, gold=gold, where=sentence.where, fields=sentence.fields, sentence=sentence)


@dataclass(frozen=True, kw_only=True)
class Ner(Head):
    """The entities of a text.

    Attributes:
        scheme: how tags are written (see ``tags``), in files and in answers; None: found out from the training tags.
        label_scheme: the scheme that the network learns; None: the same.
        types: of entities, in the order of the logits; empty: sorted from the training examples.
        crf: a CRF on the linear layer (``crf.Crf``).
        crf_rate: how many times as fast as the encoder the CRF learns.
        constrained: answers keep the scheme's rules; False: they may break them, and entities are then read as
            conlleval reads them.
        label_pieces: "first": a word's first piece is labelled, the others are ignored; "all": the others are
            labelled as inside of the entity.
        long: what becomes of a text that is longer than the model: "window", or "cut": what does not fit is lost.
        stride: from one window's begin to the next one's, in pieces; None: half of a window.
        mode: how entities are counted for the main score: "strict" or "conlleval" (see ``tags``).
        dropout: rate before the last layer.
        token, tag, file_format, encoding, join: how files are read, see ``conll.read``.
        bad_rows: "error" or "skip": sentences that cannot be learned from in training and scoring.

    Answers: ``{"entities": [{"type", "start", "end", "text", "score"}], "tags": [str], "words": [[start, end]]}``,
    start and end in characters of the text; a tag for every word.

    Example:
        >>> head = Ner().fit([Tagged.of(["Ann", "left"], ["B-PER", "O"])])
        >>> head.scheme, head.labels
        ('IOB2', ('O', 'B-PER', 'I-PER'))
    """

    main_metric: ClassVar[str] = "f1"

    scheme: str | None = None
    label_scheme: str | None = None
    types: tuple[str, ...] = ()
    crf: bool = False
    crf_rate: float = 50.0
    constrained: bool = True
    label_pieces: str = "first"
    long: str = "window"
    stride: int | None = None
    mode: str = "strict"
    dropout: float = 0.1
    token: int | str = 0
    tag: int | str | None = -1
    file_format: str | None = None
    encoding: str = "utf-8"
    join: str | None = None
    bad_rows: str = "error"  # type: ignore[misc]  # the base's constant becomes an option here

    def __post_init__(self) -> None:
        for option in ("scheme", "label_scheme"):
            if getattr(self, option) is not None:
                object.__setattr__(self, option, tags.scheme_name(getattr(self, option)))
        object.__setattr__(self, "types", tuple(self.types))
        if not all(isinstance(kind, str) for kind in self.types) or len(set(self.types)) < len(self.types):
            raise UserError("types", f"are {list(self.types)}", "list every type once, as strings")
        for option in ("crf", "constrained"):
            if not isinstance(getattr(self, option), bool):
                raise UserError(option, f"is {getattr(self, option)!r}", "choose true or false")
        for option, choices in (("label_pieces", ("first", "all")), ("long", ("window", "cut")),
                                ("mode", tags.MODES), ("bad_rows", ("error", "skip")),
                                ("file_format", (None, *conll.FORMATS))):  # fmt: skip
            if getattr(self, option) not in choices:
                raise UserError(option, f"is {getattr(self, option)!r}", f"choose {' or '.join(map(str, choices))}")
        if self.crf and self.label_pieces == "all":
            raise UserError("label_pieces", 'is "all", but a CRF scores what tag follows which word by word',
                            'choose "first", or no CRF')  # fmt: skip
        for option, most in (("crf_rate", 1e6), ("dropout", 1)):
            value = getattr(self, option)
            if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 <= value < most:
                raise UserError(option, f"is {value!r}", f"give a number from 0 up to, not including, {most:g}")
        if not self.crf_rate:
            raise UserError("crf_rate", "is 0", "give a number above 0")
        if self.stride is not None and (isinstance(self.stride, bool) or not isinstance(self.stride, int)):
            raise UserError("stride", f"is {self.stride!r}", "give a number of pieces")

    # ---- data ----------------------------------------------------------------------------------------------------

    def read(self, path: str | Path) -> Iterator[Example]:
        """Columns, JSONL with tokens and tags, JSONL with character spans, plain text: see ``conll``."""
        sentences = conll.read(path, token=self.token, tag=self.tag, format=self.file_format, encoding=self.encoding,
                               join=self.join)  # fmt: skip
        return map(Tagged.from_sentence, sentences)

    def problem(self, example: Example) -> str | None:
        if not example.text.strip():
            return "the text is empty"
        if example.gold is None:
            return "no tags and no entities"
        words = _words_of(example)
        if words is None:
            try:
                spans = _spans(example.gold)
                tags.encode(spans, len(example.text), "IOB2")  # characters for words
            except UserError as error:
                return f"{error.culprit}: {error.evidence}"
            strange = {span.type for span in spans} - set(self.types)
        else:
            if len(example.gold) != len(words.tokens or ()):
                return f"{len(example.gold)} tags for {len(words.tokens or ())} words"
            try:
                if self.scheme is not None:
                    tags.spans(example.gold, self.scheme)
                strange = {kind for prefix, kind in map(tags.split, example.gold) if prefix != OUTSIDE}
                strange -= set(self.types)
            except UserError as error:
                return f"{error.culprit} {error.evidence}"
            if self.label_scheme not in (None, self.scheme) and self.scheme is not None:
                wrong = tags.broken(example.gold, self.scheme)
                if wrong is not None:
                    return f"word {wrong + 1} breaks {self.scheme}, so that nothing can be converted"
        if self.types and strange:
            return f"unknown type {min(strange)!r}, the types are {', '.join(self.types)}"
        return None

    def fit(self, examples: Iterable[Example]) -> Ner:
        """Learns the scheme and the types, unless they are given.

        Raises:
            UserError: sentences that cannot be used (see ``usable``); no entity; tags of no known scheme.
        """
        kinds: set[str] = set()
        seen: list[tuple[str, tuple[str, ...]]] = []  # where, tags
        for example in self.usable(examples):
            if _words_of(example) is None:
                kinds.update(span.type for span in _spans(example.gold))
            else:
                seen.append((example.where, tuple(example.gold)))
                kinds.update(kind for prefix, kind in map(tags.split, example.gold) if prefix != OUTSIDE)
        types = self.types or tuple(sorted(kinds))
        if not types:
            raise UserError("training examples", "have no entity", "give at least one of every type")
        scheme = self.scheme or (tags.detect(t for _, t in seen) if seen else "IOB2")
        if self.label_scheme not in (None, scheme):
            for where, found in seen:
                if tags.broken(found, scheme) is not None:
                    raise UserError(where or "a sentence", f"breaks {scheme}, so that nothing can be converted to "
                                    f"{self.label_scheme}", "mend its tags, or leave out label_scheme")  # fmt: skip
        return dataclasses.replace(self, types=types, scheme=scheme)

    @property
    def fitted(self) -> bool:
        return bool(self.types) and self.scheme is not None

    @functools.cached_property
    def labels(self) -> tuple[str, ...]:
        """The tags, in the order of the logits; O first."""
        if not self.fitted:
            raise UserError("ner", "scheme and types are not known yet", "call fit, or give both as options")
        return tuple(tags.labels(self.types, self._learned))

    @property
    def _learned(self) -> str:
        return str(self.label_scheme or self.scheme)

    def describe(self) -> str:
        learned = "" if self._learned == self.scheme else f", learned as {self._learned}"
        kinds = ", ".join(kind or "(no name)" for kind in self.types)
        return f"{len(self.types)} types: {kinds}; tags in the scheme {self.scheme}{learned}"

    def with_vocabulary(self, tokenizer: Any) -> Ner:
        """Knows the tokenizer, which finds the words of plain texts."""
        head = copy.copy(self)
        object.__setattr__(head, "_tokenizer", tokenizer)
        object.__setattr__(head, "_continues", continuations(tokenizer.tokens))
        return head

    def features(self, examples: Sequence[Example], text: Any) -> Features:
        """y["logits"] int32 [pieces], w["logits"] float32 [pieces]: a word counts in the row where it has most context.

        Raises:
            UserError: a stride that the model's length does not allow.
        """
        words = self._words(examples, text.pieces)
        room = text.max_length - 2
        lengths = words.pieces.lengths
        cuts = by_words(words.first, lengths, room, self._stride(room))
        dropped = None
        if self.long == "cut":
            keep = np.flatnonzero(np.diff(cuts.example, prepend=-1))
            cuts = Cuts(cuts.example[keep], cuts.begin[keep], cuts.length[keep])
            dropped = lengths - cuts.length
        windows = text.cut(words.pieces, cuts, dropped=dropped)
        at, piece, chosen = owned(windows.splits, cuts, words)
        y = np.full(len(windows.input_ids), UNLABELLED, np.int32)
        known = self._word_labels(examples, words)
        y[at[chosen]] = known[words.word[piece[chosen]]]
        if self.label_pieces == "all":
            row = np.repeat(np.arange(len(cuts)), cuts.length)
            owner = np.full(len(words.starts), -1)
            owner[words.word[piece[chosen]]] = row[chosen]
            rest = ~words.first[piece] & (owner[words.word[piece]] == row)
            label = known[words.word[piece[rest]]]
            y[at[rest]] = np.where(label >= 0, self._inside[label], label)
        weight = np.array([e.weight for e in examples], np.float32)[windows.example]
        w = np.where(y == UNLABELLED, np.float32(0), np.repeat(weight, windows.lengths))
        return Features(windows, {OUTPUT: y}, {OUTPUT: w.astype(np.float32)})

    def _stride(self, room: int) -> int:
        return max(1, room // 2) if self.stride is None else self.stride

    @functools.cached_property
    def _inside(self) -> np.ndarray:
        """The label of further pieces of a word with a label."""
        index = {label: i for i, label in enumerate(self.labels)}
        middle = INSIDE[self._learned]
        kinds = [tags.split(label) for label in self.labels]
        return np.array([index[p if p == OUTSIDE else middle + (f"-{k}" if k else "")] for p, k in kinds], np.int32)

    def _words(self, examples: Sequence[Example], pieces: Any) -> Words:
        sentences = [_words_of(e) for e in examples]
        told = [i for i, sentence in enumerate(sentences) if sentence is not None]
        rest = [i for i, sentence in enumerate(sentences) if sentence is None]
        parts = []
        if told:
            parts.append(given([sentence for sentence in sentences if sentence is not None], pieces))
        if rest or not told:
            parts.append(plain([examples[i].text for i in rest], pieces, self._known("_continues")))
        return parts[0] if len(parts) == 1 else Words.concat(parts).take(np.argsort(told + rest))

    def _known(self, what: str) -> Any:
        found = vars(self).get(what)
        if found is None:
            raise UserError("ner", "does not know the tokenizer", "call with_vocabulary(tokenizer) first")
        return found

    def _word_labels(self, examples: Sequence[Example], words: Words) -> np.ndarray:
        """int32 [all words], -100 where the gold answer is not known or cannot be learned."""
        index = {label: i for i, label in enumerate(self.labels)}
        found = np.full(len(words.starts), UNLABELLED, np.int32)
        for i, example in enumerate(examples):
            if self.problem(example) is not None:
                continue
            part = slice(words.splits[i], words.splits[i + 1])
            gold = _gold_tags(example, words.starts[part], words.ends[part], str(self.scheme))
            if self._learned != self.scheme:
                gold = tags.convert(gold, str(self.scheme), self._learned)
            found[part] = [index[tag] for tag in gold]
        return found

    # ---- network -------------------------------------------------------------------------------------------------

    def outputs(self, encoded: Any) -> dict[str, Any]:
        """{"logits": [B, L, labels] float32} and, of a CRF, {"crf": [B, labels + 2, labels] float32}.

        Variables: ``classifier/kernel`` [hidden, labels], ``classifier/bias``; ``crf/transitions``, ``crf/start``,
        ``crf/end``.
        """
        init = keras.initializers.TruncatedNormal(stddev=encoded.config.initializer_range)
        hidden = keras.layers.Dropout(self.dropout, name="classifier_dropout")(encoded.sequence)
        dense = keras.layers.Dense(len(self.labels), kernel_initializer=init, dtype="float32", name="classifier")
        logits = dense(hidden)
        # what sees no mask must not find an entity in padding
        surely = np.where(np.arange(len(self.labels)) == 0, 0.0, NEVER).astype("float32")
        logits = ops.where(ops.expand_dims(encoded.mask, -1), logits, ops.convert_to_tensor(surely))
        return {OUTPUT: logits, **({TABLE: crf.Crf(self.crf_rate, name="crf")(logits)} if self.crf else {})}

    def losses(self) -> dict[str, keras.Loss]:
        return {OUTPUT: crf.CrfLoss(TABLE) if self.crf else SparseCategoricalCrossentropy()}

    def metrics(self) -> dict[str, list[keras.Metric]]:
        return {OUTPUT: [Accuracy()]}

    def target(self, logits: Mapping[str, tf.Tensor], chosen: Mapping[str, tf.Tensor] | None = None) -> tf.Tensor:
        """[B]: how far the pieces' best tags are above O, summed over pieces whose best tag is an entity's.

        In a row without any, the piece that comes nearest to it counts.
        """
        rows = logits[OUTPUT]
        decides = rows if chosen is None else chosen[OUTPUT]
        best = tf.argmax(decides[..., 1:], -1, output_type=tf.int32) + 1
        lead = tf.reduce_max(decides[..., 1:], -1) - decides[..., 0]
        nearest = tf.one_hot(tf.argmax(lead, -1), tf.shape(lead)[1], on_value=True, off_value=False)
        counts = (lead > 0) | (nearest & ~tf.reduce_any(lead > 0, -1, keepdims=True))
        margin = tf.gather(rows, best, batch_dims=2) - rows[..., 0]
        return tf.reduce_sum(tf.where(counts, margin, 0.0), -1)

    # ---- answers -------------------------------------------------------------------------------------------------

    def decode(self, examples: Sequence[Example], windows: Windows, logits: Mapping[str, Any]) -> list[dict[str, Any]]:
        if not examples:
            return []
        words = self._words(examples, self._known("_tokenizer").pieces)
        cuts = Cuts(windows.example.astype(np.int64), windows.begin, windows.lengths - 2)
        at, piece, chosen = owned(windows.splits, cuts, words)
        # words without a piece, and those that were cut off, are outside, whatever their neighbours are
        emissions = np.full((len(words.starts), len(self.labels)), -np.inf, np.float32)
        emissions[:, 0] = 0
        emissions[words.word[piece[chosen]]] = np.concatenate(logits[OUTPUT])[at[chosen]]
        table = logits[TABLE][:1] if self.crf else None
        best, alone, after = self._chosen_tags(emissions, words.splits, table)
        starts, ends = words.starts.tolist(), words.ends.tolist()
        return [
            self._answer(example.text, starts[a:b], ends[a:b], best[a:b], alone[a:b], after[a:b])
            for example, a, b in zip(examples, words.splits[:-1], words.splits[1:], strict=True)
        ]

    def _answer(
        self, text: str, starts: list, ends: list, best: np.ndarray, alone: np.ndarray, after: np.ndarray
    ) -> dict[str, Any]:
        said = [self.labels[k] for k in best.tolist()]
        spans = tags.spans(said, self._learned)
        if self._learned != self.scheme:
            said = tags.encode(spans, len(said), str(self.scheme))
        entities = [
            {"type": kind, "start": starts[a], "end": ends[b - 1], "text": text[starts[a] : ends[b - 1]],
             "score": math.exp(min(0.0, float(alone[a]) + float(after[a + 1 : b].sum())))}
            for kind, a, b in spans
        ]  # fmt: skip
        words = [list(word) for word in zip(starts, ends, strict=True)]
        return {"entities": entities, "tags": said, "words": words}

    def _chosen_tags(
        self, emissions: np.ndarray, splits: np.ndarray, table: np.ndarray | None
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Best labels of all words, log p(tag) and log p(tag | the tag before), [words] each.

        Texts of like length go together, so that little is padded.
        """
        lengths = np.diff(splits)
        order = np.argsort(-lengths, kind="stable")
        best = np.zeros(len(emissions), np.int32)
        alone, after = np.zeros(len(emissions), np.float32), np.zeros(len(emissions), np.float32)
        begin = 0
        while begin < len(order) and lengths[order[begin]]:
            longest = lengths[order[begin]]
            rows = order[begin : begin + max(1, PLACES // longest)]
            begin += len(rows)
            mask = np.arange(longest) < lengths[rows][:, None]
            at = spread(splits[:-1][rows], lengths[rows])
            scores = np.zeros((*mask.shape, emissions.shape[1]), np.float32)
            scores[mask] = emissions[at]
            found = self._decide(tf.constant(scores), tf.constant(mask), *([] if table is None else [table]))
            best[at], alone[at], after[at] = (v.numpy()[mask] for v in found)
        return best, alone, after

    @functools.cached_property
    def _decide(self) -> Any:
        k = len(self.labels)
        shapes = [tf.TensorSpec([None, None, k]), tf.TensorSpec([None, None], tf.bool)]
        shapes += [tf.TensorSpec([1, k + 2, k])] if self.crf else []
        return tf.function(self._best, shapes, autograph=False)

    def _best(
        self, emissions: tf.Tensor, mask: tf.Tensor, table: tf.Tensor | None = None
    ) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
        """Of words [B, T, K]: labels int32, log p(tag), log p(tag | the tag before), [B, T] each."""
        if table is None and not self.constrained:
            best = tf.where(mask, tf.argmax(emissions, -1, output_type=tf.int32), 0)
            sure = tf.gather(tf.nn.log_softmax(emissions), best, batch_dims=2)
            return best, sure, sure
        k = len(self.labels)
        scores = [tf.zeros([k, k]), tf.zeros([k]), tf.zeros([k])] if table is None else list(crf.unpack(table))
        if self.constrained:
            scores = [a + b for a, b in zip(scores, crf.rules(*tags.legal(self._learned, self.labels)), strict=True)]
        best, _ = crf.viterbi(emissions, mask, *scores)
        return best, *crf.log_probabilities(emissions, best, mask, *scores)

    def answers(self, logits: Mapping[str, tf.Tensor]) -> dict[str, tf.Tensor]:
        """Of every piece, by itself: {"tag": string [B, L], "probabilities": float32 [B, L, labels]}.

        A word's answer is that of its first piece. Of a CRF also "crf", see ``crf.unpack``: its tags belong together.
        """
        rows = tf.cast(logits[OUTPUT], tf.float32)
        found = {
            "tag": tf.gather(tf.constant(self.labels), tf.argmax(rows, -1)),
            "probabilities": tf.nn.softmax(rows, -1),
        }
        return found | ({TABLE: logits[TABLE]} if self.crf else {})

    def serve(self, texts: Mapping[str, tf.Tensor], run: Any) -> dict[str, tf.Tensor]:
        """``decode`` of plain texts in the graph, windows of long ones included.

        Returns:
            ``count`` int32 [B], the number of entities; ``type``, ``text`` string, ``start``, ``end`` int32 and
            ``score`` float32, [B, most entities] each, filled up with "" and 0.
        """
        text = texts["text"]
        ids, starts, ends = run.tokenize(text)
        lengths = tf.cast(ids.row_lengths(), tf.int32)
        first = ~tf.gather(tf.constant(self._known("_continues")), ids.values)
        room = run.max_length - 2
        cuts = graph_windows.by_words(first, lengths, room, self._stride(room))
        if self.long == "cut":
            keep = tf.where(cuts.begin == 0)[:, 0]
            cuts = graph_windows.Cuts(*(tf.gather(part, keep) for part in cuts))
        logits, _ = graph_windows.logits(run, ids, cuts)

        # one row of logits a word, in order
        owned = graph_windows.most_context(cuts, lengths, by_length=0.0)
        row = tf.cast(owned.value_rowids(), tf.int32)
        nth = tf.ragged.range(cuts.length).values
        piece = tf.gather(tf.gather(tf.cumsum(lengths) - lengths, cuts.example) + cuts.begin, row) + nth
        at = tf.gather(tf.cast(logits[OUTPUT].row_starts(), tf.int32), row) + 1 + nth
        chosen = tf.where(owned.values & tf.gather(first, piece))[:, 0]
        word = tf.cumsum(tf.cast(first, tf.int32)) - 1
        number = tf.cast(tf.reduce_sum(ids.with_values(tf.cast(first, tf.int32)), 1), tf.int32)
        found = tf.gather(logits[OUTPUT].values, tf.gather(at, chosen))
        k = len(self.labels)
        size = tf.reduce_sum(number)
        unseen = tf.constant([0.0] + [-math.inf] * (k - 1))
        emissions = tf.tensor_scatter_nd_update(
            tf.tile(unseen[None], [size, 1]), tf.gather(word, tf.gather(piece, chosen))[:, None], found
        )
        word_start = tf.boolean_mask(starts.values, first)
        last = tf.concat([first[1:], tf.ones_like(first[:1])], 0)
        word_end = tf.boolean_mask(ends.values, last)

        mask = tf.sequence_mask(number)
        dense = tf.RaggedTensor.from_row_lengths(emissions, number, validate=False).to_tensor(shape=[None, None, k])
        best, alone, after = self._best(dense, mask, *([logits[TABLE][:1]] if self.crf else []))
        return self._entities(text, mask, best, alone, after, word_start, word_end)

    def _entities(
        self, text: tf.Tensor, mask: tf.Tensor, best: tf.Tensor, alone: tf.Tensor, after: tf.Tensor,
        word_start: tf.Tensor, word_end: tf.Tensor,
    ) -> dict[str, tf.Tensor]:  # fmt: skip
        """As ``tags.spans`` reads them: what begins and what ends is decided by two neighbours."""
        begins, ends = _edges(self._learned, self.labels)
        outside = tf.zeros_like(best[:, :1])
        before, behind = tf.concat([outside, best], 1)[:, :-1], tf.concat([best, outside], 1)[:, 1:]
        opens = tf.gather_nd(tf.constant(begins), tf.stack([before, best], -1)) & mask
        closes = tf.gather_nd(tf.constant(ends), tf.stack([best, behind], -1)) & mask
        # back to the flat order of words; an entity's words share a number
        best, alone, after, opens, closes, text_of = (
            tf.boolean_mask(v, mask)
            for v in (best, alone, after, opens, closes, tf.range(tf.shape(mask)[0])[:, None] + tf.zeros_like(best))
        )
        begin, end = tf.where(opens)[:, 0], tf.where(closes)[:, 0]
        nth = tf.cumsum(tf.cast(opens, tf.int32)) - 1
        part = tf.where(best == 0, 0.0, tf.where(opens, alone, after))
        score = tf.math.unsorted_segment_sum(part, tf.where(best == 0, -1, nth), tf.size(begin))
        which = tf.gather(text_of, begin)
        kinds = tf.constant([tags.split(label)[1] for label in self.labels])
        start, stop = tf.gather(word_start, begin), tf.gather(word_end, end)
        found = {
            "type": tf.gather(kinds, tf.gather(best, begin)),
            "start": start,
            "end": stop,
            "score": tf.exp(tf.minimum(score, 0.0)),
        }
        count = tf.math.bincount(which, minlength=tf.shape(text)[0], maxlength=tf.shape(text)[0])
        padded = {
            name: tf.RaggedTensor.from_row_lengths(value, count, validate=False).to_tensor()
            for name, value in found.items()
        }
        padded["text"], padded["end"] = graph_text.slices(text, padded["start"], padded["end"])
        return {"count": count, **padded}

    # ---- scores and files ----------------------------------------------------------------------------------------

    def score(self, examples: Iterable[Example], answers: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
        """Precision, recall and F1 of entities in ``mode``, F1 in both modes, accuracy of tags, and scores per type.

        Sentences with tags are scored by tags. Gold entities in characters are found if their first and last character
        are.

        Raises:
            UserError: a sentence without known gold (with ``bad_rows="skip"`` it is left out), or none at all.
        """
        scheme = str(self.scheme)
        scorers = {mode: tags.Scorer(scheme, mode) for mode in tags.MODES}
        broken = count = 0
        for example, answer in self.scorable(examples, answers):
            if _words_of(example) is None:
                gold, said = _by_characters(example, answer, scheme)
            else:
                gold, said = list(example.gold), list(answer["tags"])
            count += 1
            broken += tags.broken(gold, scheme) is not None
            for scorer in scorers.values():
                scorer.add(gold, said)
        if not count:
            raise UserError("scores", "there is no sentence with gold tags", "evaluate a file with tags or entities")
        result = scorers[self.mode].result()
        kept = {name: result[name] for name in ("f1", "precision", "recall", "accuracy")}
        both = {f"f1_{mode}": scorer.result()["f1"] for mode, scorer in scorers.items()}
        # gold that breaks the declared scheme is worth a look: perhaps the file has another one
        odd = {"sentences_that_break_the_scheme": broken} if broken else {}
        more = {name: result[name] for name in ("gold", "predicted", "correct", "per_type", "scheme", "mode")}
        return {**kept, **both, "sentences": count, **odd, **more}

    def write(self, to: str | Path | TextIO, answered: Iterable[tuple[Example, Any]]) -> None:
        """To .conll, .iob, .bio, .txt ...: the original columns and a further one. To others: a row a text."""
        suffix = Path(to).suffix.lower() if isinstance(to, str | Path) else ""
        if suffix != ".txt" and (conll.ENDINGS.get(suffix) != "conll" or suffix in (".tsv", ".tab")):
            super().write(to, answered)
            return

        def sentence(example: Example, answer: Mapping[str, Any]) -> Sentence:
            starts, ends = ([word[i] for word in answer["words"]] for i in (0, 1))
            return _words_of(example) or Sentence(example.text).with_words(starts, ends)

        one, other = itertools.tee(answered)  # read in step
        conll.write(Path(str(to)), (sentence(*pair) for pair in one), (answer["tags"] for _, answer in other))


# ---- gold ------------------------------------------------------------------------------------------------------------


def _words_of(example: Example) -> Sentence | None:
    """The sentence, if the example's words are given."""
    sentence = getattr(example, "sentence", None)
    return sentence if sentence is not None and sentence.tokens is not None else None


def _spans(gold: Any) -> list[Span]:
    """Gold entities in characters: ``Span``s, dicts as in answers, or [start, end, type].

    Raises:
        UserError: something else.
    """
    found = []
    for item in gold if isinstance(gold, list | tuple) else [gold]:
        if isinstance(item, Mapping) and {"start", "end"} <= set(item) and {"type", "label"} & set(item):
            item = Span(item["type"] if "type" in item else item["label"], item["start"], item["end"])
        elif isinstance(item, list | tuple) and len(item) == 3:
            item = Span(*item) if isinstance(item[0], str) else Span(item[2], item[0], item[1])
        else:
            raise UserError("entity", f"{item!r} is not understood", 'write {"start": 0, "end": 3, "type": "PER"}')
        if not isinstance(item.type, str) or not all(isinstance(x, int) for x in item[1:]):
            raise UserError("entity", f"{tuple(item)!r} is not understood", "start and end are whole numbers")
        found.append(item)
    return sorted(found, key=lambda span: (span.start, span.end))


def _gold_tags(example: Example, starts: np.ndarray, ends: np.ndarray, scheme: str) -> list[str]:
    if _words_of(example) is not None:
        return list(example.gold)
    return tags.encode(align(_spans(example.gold), starts, ends)[0], len(starts), scheme)


def _by_characters(example: Example, answer: Mapping[str, Any], scheme: str) -> tuple[list[str], list[str]]:
    """Gold and answer as tags of the same stretches, cut wherever a word or an entity begins or ends."""
    gold = []
    for kind, start, end in _spans(example.gold):  # blanks at its edges are nobody's
        inner = example.text[start:end]
        start += len(inner) - len(inner.lstrip())
        gold.append(Span(kind, start, max(start + 1, start + len(inner.strip()))))
    found = [Span(e["type"], e["start"], e["end"]) for e in answer["entities"]]
    borders = sorted({x for word in answer["words"] for x in word} | {x for s in (*gold, *found) for x in s[1:]})
    place = {x: i for i, x in enumerate(borders)}
    stretches = max(0, len(borders) - 1)
    one, other = (
        tags.encode([Span(s.type, place[s.start], place[s.end]) for s in spans], stretches, scheme)
        for spans in (gold, found)
    )
    return one, other


# ---- in the graph ----------------------------------------------------------------------------------------------------


def _edges(scheme: str, labels: Sequence[str]) -> tuple[np.ndarray, np.ndarray]:
    """bool [n, n] each, for two neighbours: whether an entity begins at the second, whether one ends at the first."""
    begins, ends = (np.zeros((len(labels),) * 2, bool) for _ in range(2))
    for i, one in enumerate(labels):
        for j, other in enumerate(labels):
            spans = tags.spans([one, other], scheme)
            begins[i, j] = any(span.start == 1 for span in spans)
            ends[i, j] = any(span.end == 1 for span in spans)
    return begins, ends
