"""Masked language modelling: which pieces stood at the masked places, as BERT was pre-trained; and fill-mask.

The loss and the decoder tied to the token table are those of run_pretraining.py in google-research/bert
(get_masked_lm_output), the shares those of create_pretraining_data.py (create_masked_lm_predictions; Devlin et al.
2019, section 3.1). Masks are drawn in the graph, anew in every epoch. docs/masked_lm.md says where we differ, and why.
"""

from __future__ import annotations

import copy
import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import keras
import numpy as np
import tensorflow as tf

from keras_bert_lab import graph_windows, windows
from keras_bert_lab.encoder import mlm_logits
from keras_bert_lab.errors import UserError
from keras_bert_lab.head import Example, Features, Head
from keras_bert_lab.losses import UNLABELLED, Accuracy, SparseCategoricalCrossentropy
from keras_bert_lab.tables import FORMATS, Table, lines
from keras_bert_lab.wordpiece import SPECIAL

OUTPUT = "logits"
PLACES = "masked_lm_positions"  # the original's name; int32 [B, P], -1: none
RESERVED = re.compile(r"\[unused\d+\]")
LOW = 0xFFFFFFFF


@dataclass(frozen=True, kw_only=True)
class MaskedLM(Head):
    """The vocabulary's probabilities at masked places.

    Attributes:
        rate: share of a row's pieces, [CLS] and [SEP] counted as the original counts them, that are asked for in
            training and scoring; at least one.
        mask_share, random_share: how many of these become [MASK] and a random piece; the rest stay as they are.
        max_predictions: places a row at most; 0: no limit.
        top_k: how many answers to give for a [MASK].
        text_column: where the texts are, in files that are tables; a name, or in TSV and CSV without a header (see
            ``header``) a number from 0.
        file_format: "text" (one text a line), "tsv", "csv" or "jsonl"; None: by the file's name, "text" unless that
            ends in .tsv, .tab, .csv, .jsonl, .ndjson or .json.
        header, encoding: of the files, as in ``tables``.

    Answers: ``{"fills": [{"start", "end": of a [MASK] in the text, "tokens": [top_k], "probabilities": [top_k]}]}``.

    Example:
        >>> MaskedLM(rate=0.2, top_k=3).describe()
        '20 % of the pieces asked for: 80 % as [MASK], 10 % as a random piece, 10 % unchanged'
    """

    main_metric: ClassVar[str] = "mean_log_probability"
    needs_gold: ClassVar[bool] = False
    special_tokens: ClassVar[bool] = True
    draws: ClassVar[bool] = True

    rate: float = 0.15
    mask_share: float = 0.8
    random_share: float = 0.1
    max_predictions: int = 0
    top_k: int = 5
    text_column: str | int = "text"
    file_format: str | None = None
    header: bool = True
    encoding: str = "utf-8"

    def __post_init__(self) -> None:
        for option in ("rate", "mask_share", "random_share"):
            value = getattr(self, option)
            if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 <= value <= 1:
                raise UserError(option, f"is {value!r}", "give a share from 0 to 1")
        if self.rate == 0:
            raise UserError("rate", "is 0", "nothing is learned without a masked piece; the original's is 0.15")
        if self.mask_share + self.random_share > 1 + 1e-9:
            raise UserError("random_share", f"{self.random_share} and mask_share {self.mask_share} are more than 1",
                            "what both leave of 1 stays unchanged")  # fmt: skip
        for option, least in (("max_predictions", 0), ("top_k", 1)):
            value = getattr(self, option)
            if isinstance(value, bool) or not isinstance(value, int) or value < least:
                raise UserError(option, f"is {value!r}", f"give a whole number, {least} or more")
        if self.file_format not in (None, "text", "tsv", "csv", "jsonl"):
            raise UserError("file_format", f"is {self.file_format!r}", "choose text, tsv, csv or jsonl")

    # ---- data ----------------------------------------------------------------------------------------------------

    def read(self, path: str | Path) -> Iterator[Example]:
        """Every line of a text file, blank ones too, or every row of a table."""
        ending = Path(path).suffix.lower()
        form = self.file_format or ("text" if ending == ".txt" else FORMATS.get(ending, "text"))
        name = str(path)
        if form == "text":
            for number, line in lines(path, self.encoding):
                yield Example(line, where=f"{name}:{number}")
            return
        table = Table(path, header=self.header, format=form, encoding=self.encoding)
        if table.first is None:
            return
        key = table.find(self.text_column, "text_column")
        for number, row in table:
            text = row.get(key) if isinstance(row, dict) else row[key]
            if not isinstance(text, str):
                raise UserError(f"{name}:{number}", f"the text is {text!r}", "give a string")
            yield Example(text, where=f"{name}:{number}", fields=table.fields(row))

    def problem(self, example: Example) -> str | None:
        return None if example.text.strip() else "the text is empty"

    def usable(self, examples: Iterable[Example]) -> Iterator[Example]:
        """Without the blank lines, which in text files stand between documents."""
        return (example for example in examples if self.problem(example) is None)

    def describe(self) -> str:
        shares = self.mask_share, self.random_share, max(0.0, 1 - self.mask_share - self.random_share)
        percent = [f"{100 * share:.3g} %" for share in (self.rate, *shares)]
        return "{} of the pieces asked for: {} as [MASK], {} as a random piece, {} unchanged".format(*percent)

    def with_vocabulary(self, tokenizer: Any) -> MaskedLM:
        """Knows which ids are words: pieces that are masked, drawn as replacements and answered. The others: special
        tokens, [unusedN], blank lines of the vocabulary, and an entry that a later line repeats.
        """
        if tokenizer.mask_id is None:
            raise UserError("vocabulary", "has no [MASK]", "use that of a model that was pre-trained with masks")
        head = copy.copy(self)
        word = np.array([
            token not in ("", "##", *SPECIAL) and not RESERVED.fullmatch(token) and tokenizer.ids[token] == i
            for i, token in enumerate(tokenizer.tokens)
        ])  # fmt: skip
        if not word.any():
            raise UserError("vocabulary", f"has no words among its {len(word)} entries", "use a model's own vocab.txt")
        object.__setattr__(head, "_vocabulary", _Vocabulary(tokenizer.tokens, tokenizer.mask_id, word))
        return head

    @property
    def vocabulary(self) -> _Vocabulary:
        """What ``with_vocabulary`` keeps."""
        known = vars(self).get("_vocabulary")
        if known is None:
            raise UserError("masked_lm", "does not know the vocabulary yet", "call with_vocabulary(tokenizer)")
        return known

    def features(self, examples: Sequence[Example], text: Any) -> Features:
        """y["logits"] int32 [pieces], the pieces themselves, and w["logits"] float32; -100 and 0 where no word stands.

        Nothing is cut off: a text longer than a row goes on in the next one.
        """
        known = self.vocabulary
        pieces = text.pieces([example.text for example in examples])
        room = text.max_length - 2
        rows = text.cut(pieces, windows.sliding(pieces.lengths, room, room))
        weights = np.fromiter((example.weight for example in examples), np.float32, len(examples))
        word = known.word[rows.input_ids]
        y = np.where(word, rows.input_ids, np.int32(UNLABELLED))
        w = np.where(word, np.repeat(weights[rows.example], rows.lengths), np.float32(0))
        return Features(rows, {OUTPUT: y}, {OUTPUT: w})

    def prepare(
        self, x: dict[str, tf.Tensor], y: Any = None, w: Any = None, seed: tf.Tensor | None = None
    ) -> tuple[dict[str, tf.Tensor], Any, Any]:
        """With a seed: draws the places and what stands there. Without: asks for every [MASK].

        Returns:
            x with ``masked_lm_positions`` int32 [B, P], -1 where a row has fewer than P places; y int32 [B, P] and
            w float32 [B, P] at these, -100 and 0 where there is none.
        """
        x = {name: tf.convert_to_tensor(value) for name, value in x.items()}
        ids, real = x["input_ids"], x["attention_mask"] != 0
        mask_id = self.vocabulary.mask_id
        column = tf.range(tf.shape(ids)[1])[tf.newaxis]
        if seed is None:
            asked = (ids == mask_id) & real
            key = tf.where(asked, column, LAST + column)
            return {**x, PLACES: _places(key, tf.reduce_sum(tf.cast(asked, tf.int32), 1))}, y, w
        words = tf.constant(self.vocabulary.words, tf.int32)
        candidate = (w[OUTPUT] > 0) & (y[OUTPUT] != UNLABELLED) & real
        # int(round(len(tokens) * masked_lm_prob)) of the original: [CLS] and [SEP] count, halves go to the even number
        length = tf.reduce_sum(tf.cast(real, tf.float64), 1)
        count = tf.maximum(tf.cast(tf.round(length * self.rate), tf.int32), 1)
        if self.max_predictions:
            count = tf.minimum(count, self.max_predictions)
        count = tf.minimum(count, tf.reduce_sum(tf.cast(candidate, tf.int32), 1))
        order, chance, which = (_random(seed, stream, tf.size(column)) for stream in range(3))
        drawn = tf.cast(order // 4, tf.int32)  # 30 bits: below LAST
        places = _places(tf.where(candidate, drawn, LAST + column), count)
        chosen = tf.reduce_any(places[:, :, tf.newaxis] == column[:, tf.newaxis], 1)
        replaced = tf.gather(words, which * len(self.vocabulary.words) // 2**32)
        # as whole numbers, so that no device rounds them otherwise
        masked, random = (round(share * 2**32) for share in (self.mask_share, self.mask_share + self.random_share))
        new = tf.where(chance < masked, mask_id, tf.where(chance < random, replaced, ids))
        there, at = places >= 0, tf.maximum(places, 0)
        label = tf.where(there, tf.gather(y[OUTPUT], at, batch_dims=1), UNLABELLED)
        weight = tf.where(there, tf.gather(w[OUTPUT], at, batch_dims=1), 0.0)
        return {**x, "input_ids": tf.where(chosen, new, ids), PLACES: places}, {OUTPUT: label}, {OUTPUT: weight}

    # ---- network -------------------------------------------------------------------------------------------------

    def outputs(self, encoded: Any) -> dict[str, Any]:
        """{"logits": [B, P, vocabulary] float32} at the P places of ``masked_lm_positions``, and at no other.

        Variables: ``cls/predictions/...``; the decoder's kernel is the token table.
        """
        return {OUTPUT: mlm_logits(encoded, encoded.input(PLACES))}

    def losses(self) -> dict[str, keras.Loss]:
        return {OUTPUT: SparseCategoricalCrossentropy()}

    def metrics(self) -> dict[str, list[keras.Metric]]:
        return {OUTPUT: [Accuracy()]}

    def carries(self, path: str) -> bool:
        """The pooler and the next-sentence head stay as they are, for those who fine-tune what was trained here."""
        return path.startswith(("pooler/", "cls/"))

    def target(self, logits: Mapping[str, tf.Tensor], chosen: Mapping[str, tf.Tensor] | None = None) -> tf.Tensor:
        """[B]: the sum of the chosen pieces' logits over the places (where there is none, a constant)."""
        which = tf.argmax((logits if chosen is None else chosen)[OUTPUT], -1, output_type=tf.int32)
        return tf.reduce_sum(tf.gather(logits[OUTPUT], which, batch_dims=2), 1)

    # ---- answers -------------------------------------------------------------------------------------------------

    def digest(self, logits: dict[str, tf.Tensor], x: dict[str, tf.Tensor], y: Any = None) -> dict[str, tf.Tensor]:
        """The ``top_k`` best words of every place, at the pieces where they are asked.

        Returns:
            ``ids`` int32 and ``log_probability`` float32 [B, L, top_k], -1 and 0 where nothing is asked. The
            probability is that among all ids which have an entry in the vocabulary. With targets also ``target``
            int32 and ``target_log_probability`` float32 [B, L]: what is right there, and minus its loss.
        """
        scores, places, known = logits[OUTPUT], x[PLACES], self.vocabulary
        rows = int(scores.shape[-1])  # may be more than the vocabulary has entries, as in tables padded to 8s
        offered = np.zeros(rows, bool)
        offered[: len(known.word)] = known.word[:rows]
        if self.top_k > offered.sum():
            raise UserError("top_k", f"is {self.top_k}, but the vocabulary has {offered.sum()} words", "give less")
        best, ids = tf.math.top_k(tf.where(offered, scores, scores.dtype.min), self.top_k)
        best -= tf.reduce_logsumexp(scores[..., : len(known.word)], -1, keepdims=True)
        found = {"ids": (ids, -1), "log_probability": (best, 0.0)}
        if y is not None:
            right = tf.gather(scores, tf.maximum(y[OUTPUT], 0), batch_dims=2) - tf.reduce_logsumexp(scores, -1)
            found |= {"target": (y[OUTPUT], UNLABELLED), "target_log_probability": (right, 0.0)}
        column = tf.range(tf.shape(x["input_ids"])[1])
        at = places[:, :, tf.newaxis] == column  # [B, P, L]
        asked, which = tf.reduce_any(at, 1), tf.argmax(at, 1, output_type=tf.int32)
        out = {}
        for name, (values, nothing) in found.items():
            there = asked if len(values.shape) == 2 else asked[..., tf.newaxis]
            out[name] = tf.where(there, tf.gather(values, which, batch_dims=1), tf.cast(nothing, values.dtype))
        return out

    def decode(self, examples: Sequence[Example], windows: Any, logits: Mapping[str, Any]) -> list[dict[str, Any]]:
        """See the class. Of texts that are scored each fill also has "original", the piece that stood there, and its
        "log_probability".
        """
        tokens, scored = self.vocabulary.tokens, "target" in logits
        answers: list[dict[str, Any]] = [{"fills": []} for _ in examples]
        for row, of in enumerate(windows.example.tolist()):
            ids, begin = np.asarray(logits["ids"][row]), int(windows.splits[row])
            for at in np.flatnonzero(ids[:, 0] >= 0).tolist():
                fill = {
                    "start": int(windows.starts[begin + at]),
                    "end": int(windows.ends[begin + at]),
                    "tokens": [tokens[i] for i in ids[at].tolist()],
                    "probabilities": np.exp(logits["log_probability"][row][at]).tolist(),
                }
                if scored:
                    fill["original"] = tokens[int(logits["target"][row][at])]
                    fill["log_probability"] = float(logits["target_log_probability"][row][at])
                answers[of]["fills"].append(fill)
        return answers

    def score(self, examples: Iterable[Example], answers: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
        """``mean_log_probability`` of the masked pieces, ``loss`` (its negative), ``accuracy`` (share of the places
        where the best answer is the original piece), ``perplexity`` exp(loss), ``places``.

        Raises:
            UserError: no piece was asked for.
        """
        total, right, places, count = 0.0, 0, 0, 0
        for _, answer in zip(examples, answers, strict=True):
            count += 1
            for fill in answer["fills"]:
                if "original" in fill:
                    total += fill["log_probability"]
                    right += fill["original"] == fill["tokens"][0]
                    places += 1
        if not places:
            raise UserError("scores", f"no piece of {count} texts was masked", "give texts of words it knows")
        loss = -total / places
        return {
            "mean_log_probability": -loss,
            "loss": loss,
            "accuracy": right / places,
            "perplexity": math.exp(min(loss, 700.0)),  # the largest that a float holds
            "places": places,
        }

    def answers(self, logits: Mapping[str, tf.Tensor]) -> dict[str, tf.Tensor]:
        """{"tokens": string, "probabilities": float32}, [B, L, top_k]: "" and 0 at pieces that are no [MASK]."""
        ids = logits["ids"]
        asked = ids >= 0
        tokens = tf.gather(tf.constant(self.vocabulary.tokens), tf.maximum(ids, 0))
        return {
            "tokens": tf.where(asked, tokens, ""),
            "probabilities": tf.where(asked, tf.exp(logits["log_probability"]), 0.0),
        }

    def serve(self, texts: Mapping[str, tf.Tensor], run: Any) -> dict[str, tf.Tensor]:
        """The answers to every [MASK] of the texts, M of them in the text that has most.

        Returns:
            ``count`` int32 [B]; ``starts``, ``ends`` int32 [B, M], in code points, -1 from ``count`` on; ``tokens``
            string and ``probabilities`` float32 [B, M, top_k], "" and 0 from there on.
        """
        pieces, starts, ends = run.tokenize(texts["text"])
        room = tf.fill([tf.size(texts["text"])], run.max_length - 2)
        cuts = graph_windows.sliding(tf.cast(pieces.row_lengths(), tf.int32), room, room)
        numbers, _ = graph_windows.logits(run, pieces, cuts)
        flat = self.answers({name: ragged.values for name, ragged in numbers.items()})
        ids = numbers["ids"]
        at = tf.cast(tf.where(ids.values[:, 0] >= 0)[:, 0], tf.int32)
        row = tf.gather(tf.cast(ids.value_rowids(), tf.int32), at)
        of = tf.gather(cuts.example, row)
        # its place in the row without [CLS], after the pieces of earlier rows and texts
        place = at - tf.cast(tf.gather(ids.row_starts(), row), tf.int32) - 1 + tf.gather(cuts.begin, row)
        place += tf.cast(tf.gather(pieces.row_starts(), of), tf.int32)
        batch = tf.size(texts["text"])
        count = tf.math.bincount(of, minlength=batch, maxlength=batch)
        splits = tf.concat([[0], tf.cumsum(count)], 0)

        def padded(values: tf.Tensor, nothing: Any) -> tf.Tensor:
            ragged = tf.RaggedTensor.from_row_splits(values, tf.cast(splits, tf.int64), validate=False)
            return ragged.to_tensor(tf.constant(nothing, values.dtype))

        return {
            "count": count,
            "starts": padded(tf.gather(starts.values, place), -1),
            "ends": padded(tf.gather(ends.values, place), -1),
            "tokens": padded(tf.gather(flat["tokens"], at), ""),
            "probabilities": padded(tf.gather(flat["probabilities"], at), 0.0),
        }


class _Vocabulary:
    """tokens: tuple of str; mask_id: int; word: bool [tokens], what may be masked and answered; words: those ids."""

    def __init__(self, tokens: tuple[str, ...], mask_id: int, word: np.ndarray) -> None:
        self.tokens, self.mask_id, self.word = tokens, mask_id, word
        self.words = np.flatnonzero(word)


LAST = 1 << 30  # keys from here on stand for places that are not to be chosen


def _places(key: tf.Tensor, count: tf.Tensor) -> tf.Tensor:
    """int32 [B, P], P = max(1, largest count): the ``count[b]`` columns of smallest key of a row, ascending, then -1.

    key: int32 [B, L]. count: int32 [B].
    """
    most = tf.maximum(tf.reduce_max(count), 1)
    length = tf.shape(key)[1]
    first = tf.argsort(key)[:, :most]
    kept = tf.where(tf.range(tf.shape(first)[1]) < count[:, tf.newaxis], first, length)
    kept = tf.sort(kept)
    return tf.where(kept < length, kept, -1)


def _random(seed: tf.Tensor, stream: int, length: tf.Tensor) -> tf.Tensor:
    """int64 [B, length] in 0 .. 2**32 - 1, even: a function of a row's seed (int64 [B, 2]), the stream and the column.

    A counter-based generator, as TensorFlow's own are, but one whose numbers for a row are the same in any batch and
    for any padded length.
    """
    row = _mixed(_mixed((seed[:, :1] + 0x9E3779B9 * (stream + 1)) & LOW) ^ (seed[:, 1:] & LOW))
    column = tf.range(1, tf.cast(length, tf.int64) + 1)[tf.newaxis]
    return _mixed(_mixed((row + column * 0x9E3779B9) & LOW) ^ row)


def _mixed(x: tf.Tensor) -> tf.Tensor:
    """A bijection of the numbers below 2**32 (int64) that spreads every bit: Wellons' "lowbias32" of 2018."""

    def times(x: tf.Tensor, factor: int) -> tf.Tensor:  # modulo 2**32, without leaving int64
        return ((x & 0xFFFF) * factor + ((shifted(x, 16) * factor) & 0xFFFF) * 0x10000) & LOW

    def shifted(x: tf.Tensor, bits: int) -> tf.Tensor:
        return tf.bitwise.right_shift(x, tf.constant(bits, x.dtype))

    x = times(x ^ shifted(x, 16), 0x7FEB352D)
    x = times(x ^ shifted(x, 15), 0x846CA68B)
    return x ^ shifted(x, 16)
