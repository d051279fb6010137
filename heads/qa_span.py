"""Extractive question answering: the answer to a question is a stretch of a text, or there is none.

Question and context share a row, ``[CLS] question [SEP] stretch of the context [SEP]``; long contexts have several
rows. A dense layer of two units scores every piece as the answer's first and as its last one (Devlin et al. 2019,
sections 4.2 and 4.3; run_squad.py). [CLS] stands for "no answer here". docs/qa_span.md describes files, options and
formulas; the rule by which answers are chosen stands in ``keras_bert_lab.answers`` and, once more, in the graph.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import keras
import numpy as np
import tensorflow as tf
from keras import ops

from keras_bert_lab import answers as rule
from keras_bert_lab import graph_text, graph_windows, squad, squad_scores
from keras_bert_lab.errors import UserError
from keras_bert_lab.head import Example, Features, Head
from keras_bert_lab.losses import UNLABELLED, Accuracy, SparseCategoricalCrossentropy
from keras_bert_lab.tables import Table, blank

START, END = "start_logits", "end_logits"
NEVER = -1e4  # the logit of padding: no probability is left for it, and it is within float16
TABLES = (".tsv", ".tab", ".csv", ".jsonl", ".ndjson")
LANGUAGES = ("en", "zh")


@dataclass(frozen=True, kw_only=True)
class QaSpan(Head):
    """The span of a context that answers a question.

    Attributes:
        doc_stride: pieces of the context from one window's begin to the next one's: a step, not an overlap.
        max_query_length: pieces of the question that are kept.
        max_answer_length: pieces of an answer at most.
        n_best: entries of the list of best answers.
        impossible: whether "there is no answer" may be the answer (SQuAD 2.0); None: if the training data have such.
        threshold: there is no answer if [CLS] scores higher than the best span by more than this; tuned on dev data.
        language: "en" for the scores of the SQuAD scripts, "zh" for those of CMRC 2018 (characters for words).
        bad_rows: "skip": damaged questions (no answer where the file says) teach nothing, but are scored by the
            texts of their answers; those without any gold are left out. "error": both are refused.

    Example:
        >>> head = QaSpan().fit([Example("who?", "a dog", gold=[("a dog", 0)]), Example("why?", "a dog", gold=())])
        >>> head.describe()
        'questions may have no answer (threshold 0)'
    """

    main_metric: ClassVar[str] = "f1"
    text_inputs: ClassVar[tuple[str, ...]] = ("question", "context")

    doc_stride: int = 128
    max_query_length: int = 64
    max_answer_length: int = 30
    n_best: int = 20
    impossible: bool | None = None
    threshold: float = 0.0
    language: str = "en"
    bad_rows: str = "skip"  # type: ignore[misc]  # the base's constant becomes an option here

    def __post_init__(self) -> None:
        for option in ("doc_stride", "max_query_length", "max_answer_length", "n_best"):
            value = getattr(self, option)
            if isinstance(value, bool) or not isinstance(value, int) or value < 1:
                raise UserError(option, f"is {value!r}", "give a number from 1 up")
        if self.impossible not in (None, True, False):
            raise UserError("impossible", f"is {self.impossible!r}", "choose true, false, or null to see from the data")
        if isinstance(self.threshold, bool) or not isinstance(self.threshold, (int, float)):
            raise UserError("threshold", f"is {self.threshold!r}", "give a number")
        if not math.isfinite(self.threshold):
            raise UserError("threshold", f"is {self.threshold!r}", "give a finite number")
        if self.language not in LANGUAGES:
            raise UserError("language", f"is {self.language!r}", f"choose from {', '.join(LANGUAGES)}")
        if self.bad_rows not in ("error", "skip"):
            raise UserError("bad_rows", f"is {self.bad_rows!r}", 'choose "error" or "skip"')

    # ---- data ----------------------------------------------------------------------------------------------------

    def read(self, path: str | Path) -> Iterator[Example]:
        """Questions of a SQuAD file, or of a table with the columns question and context (and perhaps answers)."""
        if Path(path).suffix.lower() in TABLES:
            yield from _table(path)
            return
        for q in squad.read(path):
            yield Example(q.question, q.context, q.answers if q.labelled else None, q.where, fields={"id": q.id})

    def problem(self, example: Example) -> str | None:
        if example.gold is None:
            return "no answer is given, nor that there is none"
        return _question(example).problem if self.bad_rows == "error" else None

    def stratum(self, example: Example) -> bool:
        return bool(_golds(example))

    def describe(self) -> str:
        if not self.impossible:
            return "every question has an answer"
        return f"questions may have no answer (threshold {self.threshold:g})"

    def fit(self, examples: Iterable[Example]) -> QaSpan:
        """Learns from the data whether a question may have no answer, unless told.

        Raises:
            UserError: no examples, or, with ``bad_rows="error"``, damaged ones.
        """
        some, without = False, False
        for example in self.usable(examples):
            some, without = True, without or not _golds(example)
        if not some:
            raise UserError("training examples", "there are none", "give a file with questions and answers")
        return self if self.impossible is not None else dataclasses.replace(self, impossible=without)

    @property
    def fitted(self) -> bool:
        return self.impossible is not None

    def features(self, examples: Sequence[Example], text: Any) -> Features:
        """y int32 [rows] per output: the answer's first and last piece, 0 ([CLS]) where the row does not hold it.

        A question that nothing can be learned from (no gold, damaged, an answer without a piece) has -100, weight 0.

        Raises:
            UserError: an example without a context; a question that leaves no room for it.
        """
        for e in examples:
            if e.pair is None:
                raise UserError(e.where or "example", "has no context", "give pairs of (question, context)")
        asked = [_question(e) for e in examples]
        numbers = {context: i for i, context in enumerate(dict.fromkeys(q.context for q in asked))}
        contexts = text.pieces(list(numbers)).take([numbers[q.context] for q in asked])
        questions = text.pieces([q.question for q in asked])
        kept = np.minimum(questions.lengths, self.max_query_length)
        for e, pieces in zip(examples, kept.tolist(), strict=True):
            if (room := text.max_length - 3 - pieces) < 1:
                found = f"{pieces} pieces of the question leave room for {max(room, 0)} of the context"
                remedy = f"raise max_length, or set max_query_length to {text.max_length - 4} or less"
                raise UserError(e.where or "example", f"{found} in max_length {text.max_length}", remedy)
        windows = squad.rows(questions, contexts, text.cut, max_length=text.max_length, stride=self.doc_stride,
                             max_question=self.max_query_length)  # fmt: skip
        spans = squad.spans(asked)
        spans[[q.problem is not None for q in asked]] = squad.UNKNOWN
        located = squad.locate(contexts, spans, squad.continuations(text.tokenizer.tokens))
        start, end = squad.targets(windows, located)
        w = np.fromiter((e.weight for e in examples), np.float32, len(examples))[windows.example]
        w = np.where(start == UNLABELLED, np.float32(0), w)
        return Features(windows, {START: start, END: end}, {START: w, END: w})

    # ---- network -------------------------------------------------------------------------------------------------

    def outputs(self, encoded: Any) -> dict[str, Any]:
        """{"start_logits", "end_logits": [B, L] float32}, ``NEVER`` at padding.

        Variables: ``cls/squad/output_weights`` [2, H] and ``cls/squad/output_bias`` [2], as in run_squad.py.
        """
        both = SpanScores(encoded.config.initializer_range, name="squad", dtype="float32")(encoded.sequence)
        both = ops.where(ops.expand_dims(encoded.mask, -1), both, NEVER)
        return {START: both[..., 0], END: both[..., 1]}

    def losses(self) -> dict[str, keras.Loss]:
        return {START: PositionCrossentropy(), END: PositionCrossentropy()}

    def metrics(self) -> dict[str, list[keras.Metric]]:
        return {START: [Accuracy()], END: [Accuracy()]}

    def target(self, logits: Mapping[str, tf.Tensor], chosen: Mapping[str, tf.Tensor] | None = None) -> tf.Tensor:
        """[B]: start logit + end logit of the row's best span of at most ``max_answer_length`` pieces."""
        decide = logits if chosen is None else chosen
        pairs = decide[START][:, :, None] + decide[END][:, None, :]  # [B, first piece, last piece]
        allowed = tf.linalg.band_part(tf.ones_like(pairs), 0, self.max_answer_length - 1) > 0
        pairs = tf.where(allowed, pairs, tf.reduce_min(pairs) - 1)
        length = tf.shape(pairs)[1]
        best = tf.argmax(tf.reshape(pairs, [tf.shape(pairs)[0], length * length]), -1, output_type=tf.int32)
        first = tf.gather(logits[START], best // length, batch_dims=1)
        return first + tf.gather(logits[END], best % length, batch_dims=1)

    # ---- answers -------------------------------------------------------------------------------------------------

    def choose(self, examples: Sequence[Example], windows: Any, logits: Mapping[str, Any]) -> list[rule.Answer]:
        """What ``keras_bert_lab.answers`` says about the examples, with this head's options."""
        return rule.choose([e.pair or "" for e in examples], windows, logits[START], logits[END], n_best=self.n_best,
                           max_answer_length=self.max_answer_length, impossible=bool(self.impossible),
                           threshold=self.threshold)  # fmt: skip

    def decode(self, examples: Sequence[Example], windows: Any, logits: Mapping[str, Any]) -> list[dict[str, Any]]:
        """Answers with text, characters [start, end) of the context, scores and the n best; see docs/qa_span.md."""
        out = []
        for example, a in zip(examples, self.choose(examples, windows, logits), strict=True):
            answered = a.start >= 0 and a.best is not None
            out.append({
                **({"id": example.fields["id"]} if "id" in example.fields else {}),
                "text": a.text, "start": a.start, "end": a.end,
                "score": a.best.score if answered and a.best is not None else a.null_score,
                "probability": a.probability,
                "no_answer_probability": a.null_probability,
                "null_odds": None if a.best is None else a.difference,
                "n_best": [dataclasses.asdict(span) for span in a.nbest],
            })  # fmt: skip
        return out

    @property
    def tunes(self) -> str:
        return "the threshold of no answer" if self.impossible else ""

    def tuned(self, examples: Sequence[Example], windows: Any, logits: Mapping[str, Any]) -> QaSpan:
        """The head with the threshold that gives the highest F1 on these examples."""
        if not self.impossible:
            return self
        chosen, golds = self.choose(examples, windows, logits), [_texts(e) for e in examples]
        differences = np.array([a.difference for a in chosen], np.float64)
        scores = [0.0 if a.best is None or not g else squad_scores.f1(g, a.best.text, self._script())
                  for a, g in zip(chosen, golds, strict=True)]  # fmt: skip
        threshold, _ = rule.tune(differences, np.array(scores), np.array([bool(g) for g in golds], bool))
        return dataclasses.replace(self, threshold=float(threshold))

    def _script(self) -> str:
        return "cmrc2018" if self.language == "zh" else "squad2" if self.impossible else "squad1"

    def score(self, examples: Iterable[Example], answers: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
        """EM and F1 in percent, as the official script of the data gives them (see ``squad_scores``).

        Raises:
            UserError: no example has gold; with ``bad_rows="error"``, damaged ones.
        """
        questions: list[squad.Question] = []
        predictions: dict[str, str] = {}
        odds: dict[str, float] = {}

        for example, answer in self.scorable(examples, answers):
            number = str(len(questions))  # ids may be absent, or given twice
            questions.append(dataclasses.replace(_question(example), id=number, question="", context=""))
            predictions[number] = answer["text"]
            odds[number] = 1e9 if answer["null_odds"] is None else answer["null_odds"]
        if not questions:
            raise UserError("scores", "there is no question with a gold answer", "evaluate a file with answers")
        script = self._script()
        differences = odds if script == "squad2" else None
        found = squad_scores.evaluate(questions, predictions, script, differences=differences)
        em = next(found[name] for name in ("exact", "exact_match", "em") if name in found)
        others = {k: v for k, v in found.items() if k not in ("exact_match", "em", "missing")}
        return {"exact": em, "f1": found["f1"], "total": len(questions)} | others

    def answers(self, logits: Mapping[str, tf.Tensor]) -> dict[str, tf.Tensor]:
        """{"start_logits", "end_logits": float32 [B, L]} of the rows' pieces: from ids alone no text can be told."""
        return {START: tf.cast(logits[START], tf.float32), END: tf.cast(logits[END], tf.float32)}

    def serve(self, texts: Mapping[str, tf.Tensor], run: Any) -> dict[str, tf.Tensor]:
        """``decode`` in the graph, windows of long contexts included: [B] each, names and values as there.

        A question so long that Python refuses it (no room for a context) is cut to leave room for one piece.
        """
        if run.max_length < 4:
            raise UserError(f"max_length {run.max_length}", "leaves no room for a context", "raise it")
        context, size = texts["context"], tf.shape(texts["context"])[0]
        question, _, _ = run.tokenize(texts["question"])
        question = question[:, : min(self.max_query_length, run.max_length - 4)]
        ids, starts, ends = run.tokenize(context)
        asked, lengths = (tf.cast(t.row_lengths(), tf.int32) for t in (question, ids))
        room = run.max_length - 3 - asked
        cuts = graph_windows.sliding(lengths, room, tf.minimum(room, self.doc_stride))
        logits, _ = graph_windows.logits(run, ids, cuts, question)
        first, last = logits[START], logits[END]

        null = tf.cast(_at_first(first), tf.float64) + tf.cast(_at_first(last), tf.float64)
        null = tf.math.unsorted_segment_min(null, cuts.example, size)
        inside = _stretches(first, tf.gather(asked, cuts.example) + 2, cuts.length)
        owned = graph_windows.most_context(cuts, lengths)
        lowest = tf.constant(-math.inf, tf.float64)
        begin = tf.where(owned.values, tf.cast(tf.gather(first.values, inside.values), tf.float64), lowest)
        end = tf.cast(tf.gather(last.values, inside.values), tf.float64)
        scores, from_, to = self._spans(inside.with_values(begin), inside.with_values(end))

        # rows of a question one after the other; of equal scores top_k takes the earlier one
        rows = tf.math.bincount(cuts.example, minlength=size, maxlength=size)
        per_text = tf.RaggedTensor.from_row_lengths(scores, rows, validate=False)  # [B, (rows), n]
        per_text = per_text.to_tensor(lowest, shape=[None, None, self.n_best])
        per_text = tf.reshape(per_text, [size, tf.shape(per_text)[1] * self.n_best])
        nothing = tf.fill([size, self.n_best], lowest)  # so that there are n columns, of a batch of none as well
        scores, place = tf.math.top_k(tf.concat([per_text, nothing], 1), self.n_best)
        valid = scores > lowest
        row = (tf.cumsum(rows) - rows)[:, None] + place // self.n_best
        flat = tf.where(valid, row * self.n_best + place % self.n_best, 0)
        none = tf.zeros([1], tf.int32)  # something to gather from where there is no row

        def piece(of_row: tf.Tensor, values: tf.RaggedTensor) -> tf.Tensor:
            at = tf.gather(tf.concat([tf.reshape(of_row, [-1]), none], 0), flat)
            at += tf.gather(tf.concat([cuts.begin, none], 0), tf.where(valid, row, 0))
            at += tf.cast(values.row_starts(), tf.int32)[:, None]
            return tf.gather(tf.concat([values.values, none], 0), tf.where(valid, at, 0))

        begins, stops = (tf.where(valid, at, 0) for at in (piece(from_, starts), piece(to, ends)))
        text, stops = graph_text.slices(context, begins, stops)
        return self._decision(scores, valid, text, piece(from_, starts), stops, null)

    def _spans(self, begin: tf.RaggedTensor, end: tf.RaggedTensor) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
        """The ``n_best`` best spans of every row, one row after the other: that bounds the memory.

        Args:
            begin, end: float64 [rows, (length of the stretch)]; -inf: no span begins here.

        Returns:
            scores float64, first pieces and last pieces int32, each [rows, n_best]; -inf and 0 where there are fewer.
        """
        most, n = self.max_answer_length, self.n_best
        lowest = tf.constant(-math.inf, tf.float64)

        def best(row: tuple[tf.Tensor, tf.Tensor]) -> tuple[tf.Tensor, tf.Tensor]:
            # all pairs, in the order of first pieces, then of last ones
            later = tf.concat([row[1], tf.fill([most], lowest)], 0)
            pairs = row[0][:, None] + tf.gather(later, tf.range(tf.size(row[0]))[:, None] + tf.range(most))
            return tuple(tf.math.top_k(tf.concat([tf.reshape(pairs, [-1]), tf.fill([n], lowest)], 0), n))

        signature = (tf.TensorSpec([n], tf.float64), tf.TensorSpec([n], tf.int32))
        scores, index = tf.map_fn(best, (begin, end), fn_output_signature=signature)
        index = tf.where(scores > lowest, index, 0)
        return scores, index // most, index // most + index % most

    def _decision(
        self, scores: tf.Tensor, valid: tf.Tensor, text: tf.Tensor, start: tf.Tensor, end: tf.Tensor, null: tf.Tensor
    ) -> dict[str, tf.Tensor]:
        """Rules 4 to 7 of ``keras_bert_lab.answers``, for [B, n_best] spans in order."""
        n, lowest = self.n_best, tf.constant(-math.inf, tf.float64)
        same = (text[:, :, None] == text[:, None, :]) & valid[:, None, :]  # [B, span, earlier span]
        earlier = tf.linalg.band_part(tf.ones([n, n]), -1, 0) - tf.eye(n) > 0
        kept = valid & ~tf.reduce_any(same & earlier, -1)
        some = valid[:, 0]
        listed = ~some if not self.impossible else tf.ones_like(some)  # is null in the list?
        entries = tf.where(kept, scores, lowest)
        entries = tf.concat([entries, tf.where(listed, null, lowest)[:, None]], 1)
        probabilities = tf.nn.softmax(entries, -1)
        answered = some if not self.impossible else some & (null - scores[:, 0] <= self.threshold)
        no_answer = probabilities[:, -1] if self.impossible else tf.zeros_like(null)
        return {
            "text": tf.where(answered, text[:, 0], ""),
            "start": tf.where(answered, start[:, 0], -1),
            "end": tf.where(answered, end[:, 0], -1),
            "score": tf.cast(tf.where(answered, scores[:, 0], null), tf.float32),
            "probability": tf.cast(tf.where(answered, probabilities[:, 0], probabilities[:, -1]), tf.float32),
            "no_answer_probability": tf.cast(no_answer, tf.float32),
        }


@keras.saving.register_keras_serializable(package="keras_bert_lab")
class SpanScores(keras.layers.Layer):
    """[B, L, H] -> float32 [B, L, 2]: how well each piece begins and ends the answer (run_squad.py, create_model).

    Its variables have the original's paths, ``cls/squad/output_weights`` [2, H] and ``cls/squad/output_bias`` [2].
    """

    def __init__(self, initializer_range: float = 0.02, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.initializer_range = initializer_range

    def build(self, shape: Any) -> None:
        with keras.name_scope(self.name, override_parent="cls"):
            normal = keras.initializers.TruncatedNormal(stddev=self.initializer_range)
            self.weights_ = keras.Variable(normal, shape=(2, shape[-1]), dtype="float32", name="output_weights")
            self.bias = keras.Variable(keras.initializers.Zeros(), shape=(2,), dtype="float32", name="output_bias")

    def call(self, sequence: Any) -> Any:
        return ops.matmul(ops.cast(sequence, "float32"), ops.transpose(self.weights_)) + self.bias

    def get_config(self) -> dict[str, Any]:
        return {**super().get_config(), "initializer_range": self.initializer_range}


@keras.saving.register_keras_serializable(package="keras_bert_lab")
class PositionCrossentropy(SparseCategoricalCrossentropy):
    """Half the cross entropy of a position over the pieces of a row; y int [B], logits [B, L] -> [B].

    run_squad.py's loss is the mean of the start's and the end's; a model's loss is the sum over its outputs.
    """

    def call(self, y_true: Any, y_pred: Any) -> tf.Tensor:
        return 0.5 * super().call(y_true, y_pred)


def _table(path: str | Path) -> Iterator[Example]:
    table = Table(path, header=True)
    for name in ("question", "context"):
        table.find(name, "the column")
    for line, row in table:
        fields, where = table.fields(row), f"{path}:{line}"
        for name in ("question", "context"):
            if not isinstance(text := fields.get(name), str) and not blank(text):
                raise UserError(where, f"the {name} is a JSON {type(text).__name__}", "give a string")
        found = (fields.get(name) for name in ("question", "context"))
        question, context = (text if isinstance(text, str) else "" for text in found)
        gold = fields.get("answers")
        yield Example(question, context, None if blank(gold) else gold, where, fields=fields)


def _golds(example: Example) -> tuple[tuple[str, int], ...]:
    """(text, start) of every gold answer; () if there is none or nothing is said."""
    gold = example.gold or ()
    if isinstance(gold, Mapping):  # as some data sets have it: {"text": [...], "answer_start": [...]}
        gold = tuple(zip(gold.get("text", ()), gold.get("answer_start", ()), strict=False))
    out = []
    for answer in gold:
        if isinstance(answer, Mapping):
            answer = (answer.get("text"), answer.get("answer_start", -1))
        if isinstance(answer, str) or len(answer) != 2 or not isinstance(answer[0], str):
            raise UserError(example.where or "example", f"has the gold answer {answer!r}",
                            "give (text, start) pairs, () for no answer")  # fmt: skip
        place = answer[1]
        out.append((answer[0], place if isinstance(place, int) and not isinstance(place, bool) else -1))
    return tuple(out)


def _texts(example: Example) -> list[str]:
    return [text for text, _ in _golds(example)]


def _question(example: Example) -> squad.Question:
    golds, context = _golds(example), example.pair or ""
    lost = bool(golds) and squad.place(context, golds) is None
    return squad.Question(
        id=str(example.fields.get("id", "")),
        question=example.text,
        context=context,
        answers=golds,
        impossible=example.gold is not None and not golds,
        where=example.where,
        fault="no answer stands where the data say" if lost else None,
        labelled=example.gold is not None,
    )


# ---- in the graph ----------------------------------------------------------------------------------------------------


def _at_first(rows: tf.RaggedTensor) -> tf.Tensor:
    """[rows]: of every row the first value."""
    return tf.gather(rows.values, rows.row_starts())


def _stretches(rows: tf.RaggedTensor, begin: tf.Tensor, length: tf.Tensor) -> tf.RaggedTensor:
    """int32 [rows, (length)]: where in ``rows.values`` the places from ``begin`` on stand."""
    first = tf.cast(rows.row_starts(), tf.int32) + begin
    return tf.ragged.range(first, first + length)
