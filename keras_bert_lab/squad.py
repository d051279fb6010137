"""Questions about a text: SQuAD files, their rows for the model, and where in a row the answer stands. Floor 0.

The rows are those of run_squad.py of google-research/bert (`convert_examples_to_features`): ``[CLS] question [SEP]
stretch of the context [SEP]``, a stretch every ``doc_stride`` pieces. Here answers are found by characters of the
user's text, so that every position leads back to an exact slice of it.

Example, with the two callables that `Head.features` is given::

    asked = list(read("dev.json"))
    contexts = text.pieces([q.context for q in asked])
    windows = rows(text.pieces([q.question for q in asked]), contexts, text.cut, max_length=text.max_length)
    spans = np.array([q.span or (-1, -1) for q in asked])
    start, end = targets(windows, locate(contexts, spans, continuations(text.tokenizer.tokens)))
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from .windows import Cuts, Pieces, Windows


@dataclass(frozen=True)
class Question:
    """One question of a file.

    Attributes:
        id: as in the file ("id"), a string.
        question, context: exactly as in the file, blanks included.
        answers: (text, answer_start) as in the file, `answer_start` in characters; -1 where the file has no number.
        impossible: the file says that the context holds no answer.
        where: "file: question ID", for messages.
        fault: what is damaged, in words that are the same for the same kind of damage; None if nothing is. A
            question with a fault may still be of use: see `span` and `problem`.
        labelled: whether the file says what the answer is (an answer, or that there is none).
    """

    id: str
    question: str
    context: str
    answers: tuple[tuple[str, int], ...] = ()
    impossible: bool = False
    where: str = ""
    fault: str | None = None
    labelled: bool = False

    @property
    def span(self) -> tuple[int, int] | None:
        """Characters [start, end) of the first answer that stands where the file says; None if there is none."""
        raise NotImplementedError

    @property
    def problem(self) -> str | None:
        """Why nothing can be learned from it (no question, no context, no label, no answer in its place), or None."""
        raise NotImplementedError


def read(path: str | Path, *, warn: bool = True) -> Iterator[Question]:
    """The questions of a file in SQuAD 1.1 or 2.0 form (CMRC 2018 and DRCD are, too), in the order of the file.

    Every question of the file comes out, damaged ones with their `fault`. At the end of the stream one warning counts
    the damaged ones, by kind of damage and with the ids of the first ten of each (`warn` False: none).

    Raises:
        UserError: no such file, not JSON (with line and column), not of that form at all (no ``data`` list).
    """
    raise NotImplementedError


def damage(questions: Iterable[Question]) -> dict[str, list[str]]:
    """Kind of damage -> ids of the questions that have it, in order; their lengths are the counts."""
    raise NotImplementedError


def rows(
    questions: Pieces,
    contexts: Pieces,
    cut: Callable[..., Windows],
    *,
    max_length: int,
    stride: int = 128,
    max_question: int = 64,
) -> Windows:
    """``[CLS] question [SEP] stretch [SEP]`` rows of all questions.

    Args:
        questions, contexts: whole texts, one each a question.
        cut: ``cut(contexts, cuts, questions) -> Windows`` (`text.cut` of `Head.features`).
        max_length: pieces a row at most.
        stride: pieces of the context from one row's begin to the next one's (``doc_stride``: a step, not an
            overlap); where a row has room for fewer pieces, it steps by that room, so that none is left out.
        max_question: pieces of a question that are kept; the rest is cut off (``max_query_length``).

    Returns:
        Windows; `example` is the question's index. A context of no pieces has one row with no stretch.

    Raises:
        UserError: a question that leaves no room for its context; a stride or max_question below 1.
    """
    raise NotImplementedError


def continuations(tokens: Sequence[str]) -> np.ndarray:
    """bool [vocabulary]: the entries that continue a word (``##...``)."""
    raise NotImplementedError


def locate(contexts: Pieces, spans: np.ndarray, continues: np.ndarray) -> np.ndarray:
    """The pieces of each context that an answer covers.

    Args:
        contexts: whole contexts, one a question.
        spans: int [questions, 2], characters [start, end) of the answer in the context; (-1, -1): no answer.
        continues: bool [vocabulary], see `continuations`.

    Returns:
        int64 [questions, 2]: first and last piece (inclusive); (-1, -1) where there is no answer, or only characters
        of which no piece is made. An end of the answer inside a word moves to the word's end: the whole word is
        learned ("Japan" in "Japanese" is "Japanese").
    """
    raise NotImplementedError


def targets(windows: Windows, located: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Positions in each row, int32 [rows] twice: the answer's first and last piece; 0 and 0 ([CLS]) where the row does
    not hold the whole answer or there is none."""
    raise NotImplementedError


def context(windows: Windows) -> np.ndarray:
    """bool, flat like ``windows.input_ids``: pieces of the context (not the question, [CLS], [SEP])."""
    raise NotImplementedError


def owned(windows: Windows) -> np.ndarray:
    """bool, flat like ``windows.input_ids``: pieces of the context which this row shows with the most context.

    The rule of the original (`_check_is_max_context`): in a row whose stretch has n pieces, a piece with l pieces of
    the stretch before and r after it scores ``min(l, r) + 0.01 * n`` (float64); of the rows of the same question that
    show it, the one with the highest score owns it, the earliest if several have. Every piece is owned by exactly
    one row.
    """
    raise NotImplementedError


def owner(cuts: Cuts) -> np.ndarray:
    """bool, flat over the rows' stretches one after the other: see `owned`."""
    raise NotImplementedError
