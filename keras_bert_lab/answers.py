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
   (text "", start = end = -1) is sorted into the list (after spans of equal score), the list is cut to `n_best`
   entries, and if null is no longer among them it is added at the end.
6. **Probabilities.** Softmax over the scores of the list, in float64; they sum to 1. ``null_probability`` is the null
   entry's, 0 without `impossible`.
7. **Decision.** ``difference = null_score - score of the first span``. With `impossible`: no answer if
   ``difference > threshold``. Otherwise the first span is the answer. If there is no span at all (a context of
   no pieces), there is no answer, ``difference`` is inf, and the list is the null entry alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from .windows import Windows


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
        probability: its entry's in the list; a first span that did not make the list (only possible for n_best 1
            with null before it, and a threshold above the difference) has its share of the softmax of the two.
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
            scores are in the order of rows, ranks of starts, ranks of ends; of equal texts the later are replaced.

    Returns:
        One Answer a context.
    """
    raise NotImplementedError


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
    raise NotImplementedError
