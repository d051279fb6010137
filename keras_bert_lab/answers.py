"""Logits of all rows of a question -> its answer, the n best with probabilities, and whether there is one. Floor 0.

The rule (run_squad.py's `write_predictions`, searched in full). A graph that follows it gives the same answers.

1. **Spans.** A question's rows are taken in the order of `windows`. A span is a pair of pieces (s, e) of one row with:
   s and e pieces of the context; s owned by the row (`squad.owned`; e need not be); ``s <= e``;
   ``e - s + 1 <= max_answer_length``. Since each piece is owned by one row, no span of the context is seen twice.
2. **Score.** ``float64(start_logit[s]) + float64(end_logit[e])``, logits being float32.
3. **Order.** Higher score first; equal scores: earlier row, then smaller s, then smaller e. This is the order of
   `top_k` over the flat array [row, s, e].
4. **n-best.** The first `n_best` spans in that order. Of those with equal text, only the first is kept (dropped ones
   are not replaced, so the list may be shorter). Text is the exact slice ``context[start:end]``: start of piece s, end
   of piece e, the latter moved over all combining marks (Unicode category Mn) that follow it directly: of an accent
   typed as a character of its own no piece is made, but it belongs to its letter.
5. **No answer.** ``null_score`` = minimum over the question's rows of
   ``float64(start_logit[0]) + float64(end_logit[0])`` ([CLS]). If answers may be missing (`impossible`), the null entry
   (text "", start = end = -1) is sorted into the list, after spans of equal score: the list then has up to
   ``n_best + 1`` entries.
6. **Probabilities.** Softmax over the scores of the list, in float64; they sum to 1. ``null_probability`` is the null
   entry's, 0 without `impossible`.
7. **Decision.** ``difference = null_score - score of the first span``. With `impossible`: no answer if
   ``difference > threshold``. Otherwise the first span is the answer. If there is no span at all (a context of
   no pieces), there is no answer, ``difference`` is inf, and the list is the null entry alone.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from . import squad
from .errors import UserError
from .windows import Windows
from .wordpiece import over_marks

SEARCHES = ("all", "original")
CHUNK = 1 << 22  # scores worked on at a time: 32 MiB


@dataclass(frozen=True)
class Span:
    """An entry of the n-best list.

    Attributes:
        text: ``context[start:end]``, exactly; "" for no answer.
        start, end: characters of the context; -1, -1 for no answer.
        score: start logit + end logit.
        probability: softmax of `score` over the list.
    """

    text: str
    start: int
    end: int
    score: float
    probability: float


@dataclass(frozen=True)
class Answer:
    """What is said about one question.

    Attributes:
        text, start, end: the answer; "", -1, -1 for no answer.
        probability: that of the answer's entry in the list.
        best: the first span, whatever the decision; None if there is none.
        null_score: the lowest [CLS] score over the rows.
        difference: ``null_score - best.score``, what `threshold` is compared with; inf without a span.
        null_probability: of no answer; 0.0 if answers cannot be missing.
        nbest: the list, best first.
    """

    text: str
    start: int
    end: int
    probability: float
    best: Span | None
    null_score: float
    difference: float
    null_probability: float
    nbest: tuple[Span, ...]


def choose(
    contexts: Sequence[str],
    windows: Windows,
    start_logits: Sequence[np.ndarray],
    end_logits: Sequence[np.ndarray],
    *,
    n_best: int = 20,
    max_answer_length: int = 30,
    impossible: bool = True,
    threshold: float = 0.0,
    search: str = "all",
) -> list[Answer]:
    """The answer to every question, see the rule above.

    Args:
        contexts: of all questions; ``windows.example`` numbers them.
        windows: all rows of all questions.
        start_logits, end_logits: a float32 array [length of row, or more: the rest is not looked at] per row.
        n_best: entries of the list.
        max_answer_length: pieces of an answer at most.
        impossible: whether "no answer" may be the answer (SQuAD 2.0).
        threshold: see 7.
        search: "all", or "original" for the original's list: of each row only the `n_best` best starts and `n_best`
            best ends are looked at, the question's pieces among them, so that the best span can be missed; equal
            scores are in the order of rows, ranks of starts, ranks of ends; spans with the text of an earlier one are
            replaced by the next; the null entry counts among the `n_best` if it is among them.

    Returns:
        One Answer a context.

    Raises:
        UserError: n_best or max_answer_length below 1, an unknown search, logits that are not numbers (NaN, infinite).
    """
    for name, value in (("n_best", n_best), ("max_answer_length", max_answer_length)):
        if value < 1:
            raise UserError(f"{name}={value}", "is no number to count to", "give at least 1")
    if search not in SEARCHES:
        raise UserError(f"search={search!r}", "unknown", "use one of " + ", ".join(SEARCHES))
    logits = [
        (_checked(s, row), _checked(e, row)) for row, (s, e) in enumerate(zip(start_logits, end_logits, strict=True))
    ]
    nulls = np.full(len(contexts), math.inf)
    np.minimum.at(nulls, windows.example, np.array([s[0] + e[0] for s, e in logits], np.float64).reshape(-1))
    find = _all_spans if search == "all" else _original_spans
    answers: list[Answer] = []
    for row, first, last, score in find(windows, logits, len(contexts), n_best, max_answer_length):
        question = len(answers)
        at = windows.splits[row]
        slices = _slices(contexts[question], windows.starts[at + first], windows.ends[at + last])
        entries, seen = [], set()
        for (start, end), value in zip(slices, score.tolist(), strict=True):
            text = contexts[question][start:end]
            if text not in seen:
                seen.add(text)
                entries.append((text, start, end, value))
                if len(entries) == n_best:
                    break
        answers.append(
            _answer(entries, float(nulls[question]), impossible, threshold, n_best if search != "all" else None)
        )
    return answers


def _answer(
    spans: list[tuple[str, int, int, float]], null: float, impossible: bool, threshold: float, most: int | None
) -> Answer:
    """Rules 5 to 7 for one question; `spans` (text, start, end, score) in order; `most`: the original's n_best."""
    nothing = ("", -1, -1, null)
    listed = list(spans)
    if impossible or not spans:
        listed.insert(sum(span[3] >= null for span in spans), nothing)
    if most is not None:  # the original adds null only; without the first span it has nothing to decide about
        listed = listed[:most] + [entry for entry in listed[most:] if entry is nothing or entry is spans[0]]
    shares = [math.exp(entry[3] - listed[0][3]) for entry in listed]
    total = sum(shares)
    nbest = tuple(Span(*entry, share / total) for entry, share in zip(listed, shares, strict=True))
    none = next((span for span, entry in zip(nbest, listed, strict=True) if entry is nothing), None)
    best = next((span for span, entry in zip(nbest, listed, strict=True) if entry is not nothing), None)
    difference = math.inf if best is None else null - best.score
    chosen = none if best is None or (none is not None and difference > threshold) else best
    assert chosen is not None  # one of the two is in every list
    return Answer(
        *(chosen.text, chosen.start, chosen.end, chosen.probability),
        best=best,
        null_score=null,
        difference=difference,
        null_probability=none.probability if impossible and none is not None else 0.0,
        nbest=nbest,
    )


def _checked(logits: np.ndarray, row: int) -> np.ndarray:
    values = np.asarray(logits, np.float32).astype(np.float64)
    if not np.isfinite(values).all():
        raise UserError(f"logits of row {row}", "are not all finite numbers", "look at the weights and the input")
    return values


def _slices(context: str, starts: np.ndarray, ends: np.ndarray) -> Iterator[tuple[int, int]]:
    """Characters of each span; the end moves over combining marks, of which no piece is made."""
    for start, end in zip(starts.tolist(), ends.tolist(), strict=True):
        yield start, over_marks(context, end)


Found = tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]  # rows, first and last pieces, scores: one question's


def _all_spans(
    windows: Windows, logits: list[tuple[np.ndarray, np.ndarray]], questions: int, n_best: int, longest: int
) -> Iterator[Found]:
    """The `n_best` best spans of every question, by rules 1 to 3."""
    may_start, may_end = squad.owned(windows), squad.context(windows)
    lengths = windows.lengths
    width = int(lengths.max(initial=1))
    span = min(longest, width)
    step = max(1, CHUNK // (width * span))
    found = []
    for begin in range(0, len(windows), step):
        part = range(begin, min(begin + step, len(windows)))
        start = np.full((len(part), width), -np.inf)
        end = np.full((len(part), width + span - 1), -np.inf)
        for i, row in enumerate(part):
            at = slice(windows.splits[row], windows.splits[row + 1])
            n = lengths[row]
            start[i, :n][may_start[at]] = logits[row][0][:n][may_start[at]]
            end[i, :n][may_end[at]] = logits[row][1][:n][may_end[at]]
        # score[i, s, k]: from piece s to piece s + k
        score = start[:, :, None] + np.lib.stride_tricks.sliding_window_view(end, span, axis=1)
        flat = score.reshape(len(part), -1)
        wanted = flat > -np.inf
        if n_best < flat.shape[1]:
            wanted &= flat >= np.partition(flat, flat.shape[1] - n_best, axis=1)[:, flat.shape[1] - n_best, None]
        of, place = np.nonzero(wanted)
        found.append((part[0] + of, place // span, place // span + place % span, flat[of, place]))
    every = [np.concatenate([f[k] for f in found]) if found else np.zeros(0, int) for k in range(4)]
    rows, first, last, scores = every
    question = windows.example[rows].astype(np.int64)
    order = np.lexsort((last, first, rows, -scores, question))
    splits = np.searchsorted(question[order], np.arange(questions + 1))
    for opens, closes in pairwise(splits):
        mine = order[opens : min(closes, opens + n_best)]
        yield rows[mine], first[mine], last[mine], scores[mine]


def _original_spans(
    windows: Windows, logits: list[tuple[np.ndarray, np.ndarray]], questions: int, n_best: int, longest: int
) -> Iterator[Found]:
    """The spans that the original looks at, in its order."""
    may_start, may_end = squad.owned(windows), squad.context(windows)
    of_question = np.argsort(windows.example, kind="stable")
    splits = np.searchsorted(windows.example[of_question], np.arange(questions + 1))
    for opens, closes in pairwise(splits):
        found = [(np.zeros(0, np.int64),) * 4]
        for row in of_question[opens:closes]:
            at = slice(windows.splits[row], windows.splits[row + 1])
            ranked = [np.argsort(-values, kind="stable")[:n_best] for values in logits[row]]
            first, last = (v.reshape(-1) for v in np.meshgrid(*ranked, indexing="ij"))
            inside = np.maximum(first, last) < windows.lengths[row]
            first, last = first[inside], last[inside]
            good = may_start[at][first] & may_end[at][last] & (first <= last) & (last - first < longest)
            first, last = first[good], last[good]
            found.append((np.full(len(first), row), first, last, logits[row][0][first] + logits[row][1][last]))
        rows, firsts, lasts, scores = (np.concatenate(parts) for parts in zip(*found, strict=True))
        order = np.argsort(-scores, kind="stable")
        yield rows[order], firsts[order], lasts[order], scores[order]


def tune(differences: np.ndarray, scores: np.ndarray, possible: np.ndarray) -> tuple[float, float]:
    """The threshold with the best mean score on a dev set.

    Args:
        differences: float64 [questions], `Answer.difference`.
        scores: float [questions], what the first span scores (F1 or exact, 0 to 1); 0 where there is no answer.
        possible: bool [questions], whether the question has an answer.

    Returns:
        (threshold, mean score with it): "no answer if difference > threshold". Half-way between the two differences
        that it separates; of equally good ones, the lowest. Questions of equal difference are never separated (the
        official script counts as if they could be).
    """
    differences, scores = np.asarray(differences, np.float64), np.asarray(scores, np.float64)
    possible = np.asarray(possible, bool)
    if not len(differences):
        return 0.0, 0.0
    gain = np.where(possible, scores, -1.0)  # of answering instead of not
    levels, level = np.unique(differences[np.isfinite(differences)], return_inverse=True)
    sums = np.bincount(level, gain[np.isfinite(differences)], len(levels))
    # answered: none, those of level 0, of levels 0 and 1, ...
    totals = (~possible).sum() + np.concatenate([[0.0], np.cumsum(sums)])
    # Sums of numbers such as 2/3 differ in their last bits by the order: what is that close is equal.
    cut = int(np.flatnonzero(totals >= totals.max() - 1e-9)[0])
    mean = float(totals[cut] / len(differences))
    if not len(levels):
        return 0.0, mean
    if cut in (0, len(levels)):
        return float(levels[0] - 1 if cut == 0 else levels[-1] + 1), mean
    low, high = float(levels[cut - 1]), float(levels[cut])
    middle = low + (high - low) / 2
    return (middle if low <= middle < high else low), mean
