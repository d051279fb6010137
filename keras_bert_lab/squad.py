"""Questions about a text: SQuAD files, their rows for the model, and where in a row the answer stands. Floor 0.

The rows are those of run_squad.py of google-research/bert (`convert_examples_to_features`): ``[CLS] question [SEP]
stretch of the context [SEP]``, a stretch every ``doc_stride`` pieces. Here answers are found by characters of the
user's text, so that every position leads back to an exact slice of it.

Example, with the two callables that `Head.features` is given::

    asked = list(read("dev.json"))
    contexts = text.pieces([q.context for q in asked])
    windows = rows(text.pieces([q.question for q in asked]), contexts, text.cut, max_length=text.max_length)
    located = locate(contexts, spans(asked), continuations(text.tokenizer.tokens))
    start, end = targets(windows, located)
"""

from __future__ import annotations

import json
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from .errors import UserError
from .tables import LISTED
from .windows import Cuts, Pieces, Windows, sliding, spread

NO_ANSWER = -1
UNKNOWN = -2
UNLABELLED = -100  # what losses take as "not labelled"

EMPTY_QUESTION = "the question is empty"
EMPTY_CONTEXT = "the context is empty"
NO_ID = "no id"
TWICE = "the id stands there twice"
NO_LIST = "answers are no list of texts with answer_start"
EMPTY_ANSWER = "an answer is empty"
ELSEWHERE = "an answer stands elsewhere than its answer_start"
ABSENT = "an answer is not in the context"
NO_BOOL = "is_impossible is neither true nor false"
BOTH = "is_impossible, but with answers"
NEITHER = "neither is_impossible nor answers"


@dataclass(frozen=True)
class Question:
    """One question of a file.

    Attributes:
        id: as in the file ("id"), a string.
        question, context: exactly as in the file, blanks included.
        answers: (text, answer_start) as in the file, `answer_start` in characters; -1 where the file has no number.
        impossible: the file says that the context holds no answer.
        where: "file: question ID", for messages.
        fault: what is damaged, in words that are the same for the same kind of damage ("; " between several); None if
            nothing is. A question with a fault may still be of use: see `span` and `problem`.
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
        return place(self.context, self.answers)

    @property
    def problem(self) -> str | None:
        """Why nothing can be learned from it (no question, no context, no label, no answer in its place), or None."""
        if not self.question.strip():
            return EMPTY_QUESTION
        if not self.context.strip():
            return EMPTY_CONTEXT
        if not self.labelled:
            return self.fault or "no answer given"
        return None if self.impossible or self.span else self.fault


def place(context: str, answers: Iterable[tuple[str, int]]) -> tuple[int, int] | None:
    """Characters [start, end) of the first answer (text, start) that ``context`` really has there, or None.

    Example:
        >>> place("The Japanese industry", [("Japan", 5), ("Japan", 4)])
        (4, 9)
    """
    for text, start in answers:
        if start >= 0 and text.strip() and context[start : start + len(text)] == text:
            return start, start + len(text)
    return None


def spans(questions: Iterable[Question]) -> np.ndarray:
    """int64 [questions, 2], what `locate` takes: `Question.span`, (-1, -1) if there is no answer, (-2, -2) if the
    answer is not known."""
    found = [q.span or ((NO_ANSWER,) * 2 if q.impossible else (UNKNOWN,) * 2) for q in questions]
    return np.array(found, np.int64).reshape(-1, 2)


# ---- files -----------------------------------------------------------------------------------------------------------


def read(path: str | Path, *, warn: bool = True) -> Iterator[Question]:
    """The questions of a file in SQuAD 1.1 or 2.0 form (CMRC 2018 and DRCD are, too), in the order of the file.

    Every question of the file comes out, damaged ones with their `fault`. At the end of the stream one warning counts
    the damaged ones, by kind of damage and with the ids of the first ten of each (`warn` False: none).

    Raises:
        UserError: no such file, not UTF-8, not JSON (with line and column), not of that form (with the place).
    """
    data = _parsed(Path(path))
    if not isinstance(data, Mapping) or not isinstance(data.get("data"), list):
        raise UserError(path, 'is not in SQuAD form: no list "data"', 'write {"data": [{"paragraphs": [...]}]}')
    damaged: dict[str, list[str]] = {}
    seen: set[str] = set()
    count = 0
    for place_, paragraph in _paragraphs(path, data["data"]):
        asked = paragraph.get("qas")
        if not isinstance(asked, list) or not all(isinstance(q, Mapping) for q in asked):
            raise UserError(f"{path}: {place_}", 'has no list "qas" of questions')
        for number, raw in enumerate(asked):
            question = _question(path, f"{place_}.qas[{number}]", paragraph.get("context"), raw, seen)
            count += 1
            for kind in _kinds(question):
                damaged.setdefault(kind, []).append(question.id)
            yield question
    if damaged and warn:
        bad = len({id_ for ids in damaged.values() for id_ in ids})
        warnings.warn(f"{path}: {bad} of {count} questions are damaged: {tell(damaged)}", stacklevel=2)


def damage(questions: Iterable[Question]) -> dict[str, list[str]]:
    """Kind of damage -> ids of the questions that have it, in order; their lengths are the counts."""
    found: dict[str, list[str]] = {}
    for question in questions:
        for kind in _kinds(question):
            found.setdefault(kind, []).append(question.id)
    return found


def _kinds(question: Question) -> list[str]:
    return question.fault.split("; ") if question.fault else []


def tell(damaged: Mapping[str, Sequence[str]], most: int = LISTED) -> str:
    """What `damage` found, in one line: each kind with its count and the first ids."""
    said = []
    for kind, ids in damaged.items():
        more = ", ..." if len(ids) > most else ""
        said.append(f"{kind}: {len(ids)} ({', '.join(ids[:most])}{more})")
    return "; ".join(said)


def _parsed(path: Path) -> Any:
    try:
        return json.loads(path.read_bytes().decode("utf-8-sig"))
    except FileNotFoundError:
        raise UserError(path, "no such file") from None
    except OSError as error:
        raise UserError(path, f"cannot be read ({error.strerror})") from None
    except UnicodeDecodeError as error:
        raise UserError(path, f"is not UTF-8 (byte {error.start})", "save it as UTF-8") from None
    except json.JSONDecodeError as error:
        raise UserError(path, f"is not JSON: {error.msg}, line {error.lineno}, column {error.colno}",
                        "get the whole file again") from None  # fmt: skip


def _paragraphs(path: str | Path, articles: list) -> Iterator[tuple[str, Mapping]]:
    for i, article in enumerate(articles):
        paragraphs = article.get("paragraphs") if isinstance(article, Mapping) else None
        if not isinstance(paragraphs, list):
            raise UserError(f"{path}: data[{i}]", 'has no list "paragraphs"')
        for j, paragraph in enumerate(paragraphs):
            if not isinstance(paragraph, Mapping):
                raise UserError(f"{path}: data[{i}].paragraphs[{j}]", "is not an object")
            yield f"data[{i}].paragraphs[{j}]", paragraph


def _question(path: str | Path, place_: str, context: Any, raw: Mapping, seen: set[str]) -> Question:
    faults: dict[str, None] = {}  # an ordered set
    id_ = raw.get("id")
    if id_ is None or isinstance(id_, bool) or not isinstance(id_, (str, int)) or id_ == "":
        faults[NO_ID], id_ = None, place_
    id_ = str(id_)
    if id_ in seen:
        faults[TWICE] = None
    seen.add(id_)
    question = raw.get("question")
    if not isinstance(question, str) or not question.strip():
        faults[EMPTY_QUESTION] = None
        question = question if isinstance(question, str) else ""
    if not isinstance(context, str) or not context.strip():
        faults[EMPTY_CONTEXT] = None
        context = context if isinstance(context, str) else ""
    impossible = raw.get("is_impossible", False)
    if not isinstance(impossible, bool):
        faults[NO_BOOL], impossible = None, False
    answers = _answers(raw.get("answers"), context, faults)
    if impossible and answers:
        faults[BOTH] = None
    if "is_impossible" in raw and not impossible and not answers and "answers" in raw:
        faults[NEITHER] = None
    labelled = bool(answers) or impossible
    where = f"{path}: question {id_}"
    return Question(id_, question, context, answers, impossible, where, "; ".join(faults) or None, labelled)


def _answers(raw: Any, context: str, faults: dict[str, None]) -> tuple[tuple[str, int], ...]:
    found = []
    if raw is not None and not isinstance(raw, list):
        faults[NO_LIST], raw = None, None
    for answer in raw or ():
        text, start = (answer.get("text"), answer.get("answer_start")) if isinstance(answer, Mapping) else (None, None)
        if not isinstance(text, str):
            faults[NO_LIST] = None
            continue
        if isinstance(start, float) and start.is_integer():
            start = int(start)
        if isinstance(start, bool) or not isinstance(start, int):
            faults[NO_LIST], start = None, -1
        found.append((text, start))
        if not text.strip():
            faults[EMPTY_ANSWER] = None
        elif place(context, found[-1:]) is None:
            faults[ELSEWHERE if text in context else ABSENT] = None
    return tuple(found)


# ---- rows ------------------------------------------------------------------------------------------------------------


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
        cut: ``cut(contexts, cuts, questions, dropped=...) -> Windows`` (`text.cut` of `Head.features`).
        max_length: pieces a row at most.
        stride: pieces of the context from one row's begin to the next one's (``doc_stride``: a step, not an
            overlap); where a row has room for fewer pieces, it steps by that room, so that none is left out.
        max_question: pieces of a question that are kept; the rest is cut off (``max_query_length``).

    Returns:
        Windows; `example` is the question's index, `dropped` the pieces that its question lost. A context of no pieces
        has one row with no stretch.

    Raises:
        UserError: a question that leaves no room for its context; a stride or max_question below 1.
    """
    for name, value in (("stride", stride), ("max_question", max_question)):
        if value < 1:
            raise UserError(f"{name}={value}", "is no number of pieces", "give at least 1")
    kept = np.minimum(questions.lengths, max_question)
    room = max_length - 3 - kept
    if (room < 1).any():
        tight = int((room < 1).argmax())
        raise UserError(
            f"question {tight}",
            f"has {kept[tight]} pieces, which with [CLS] and two [SEP] leaves {max(room[tight], 0)} of max_length "
            f"{max_length} for the context",
            f"raise max_length to {kept[tight] + 4} or more, or lower max_question",
        )
    lost = (questions.lengths - kept).astype(np.int32)
    if lost.any():
        at = spread(questions.splits[:-1], kept)
        splits = np.concatenate([[0], np.cumsum(kept)]).astype(np.int64)
        questions = Pieces(questions.ids[at], questions.starts[at], questions.ends[at], splits)
    cuts = sliding(contexts.lengths, room, np.minimum(stride, room))
    return cut(contexts, cuts, questions, dropped=lost[cuts.example])


def continuations(tokens: Sequence[str]) -> np.ndarray:
    """bool [vocabulary]: the entries that continue a word (``##...``)."""
    return np.array([t.startswith("##") for t in tokens], bool)


def locate(contexts: Pieces, spans: np.ndarray, continues: np.ndarray) -> np.ndarray:
    """The pieces of each context that an answer covers.

    An answer that begins or ends inside a word, in the midst of a piece or with a piece that continues a word, covers
    whole words ("Japan" in "Japanese" is "Japanese"); one that begins with a word and ends with a piece covers
    just its pieces. (The original, `_improve_answer_span`: blank-to-blank words with their punctuation instead of
    words; and of several places with the same words in them the first, which in Chinese, where all is one word, can be
    far from the answer.)

    Args:
        contexts: whole contexts, one a question.
        spans: int [questions, 2], see `spans`: characters [start, end) of the answer in the context; negative values
            stay as they are.
        continues: bool [vocabulary], see `continuations`.

    Returns:
        int64 [questions, 2]: first and last piece (inclusive); (-1, -1) for no answer; (-2, -2) for one that is not
        known, or of whose characters no piece is made.
    """
    spans = np.asarray(spans, np.int64).reshape(-1, 2)
    located = spans.copy()
    asked = np.flatnonzero((spans >= 0).all(axis=1))
    if not len(asked):
        return located
    # One increasing sequence over all contexts, so that one search finds the place in each.
    far = 1 + int(max(contexts.ends.max(initial=0), spans.max()))
    row = np.repeat(np.arange(len(contexts)), contexts.lengths)
    begins, ends = (np.maximum.accumulate(row * far + v) for v in (contexts.starts, contexts.ends))
    a, b = (asked * far + spans[asked, k] for k in (0, 1))
    first = np.searchsorted(ends, a, side="right")  # the first piece that ends after the answer's begin
    last = np.searchsorted(begins, b, side="left") - 1  # the last one that begins before its end
    none = first > last
    first, last = np.where(none, 0, first), np.where(none, 0, last)

    inside = continues[contexts.ids] if len(contexts.ids) else np.zeros(1, bool)
    word = np.cumsum(~inside) - 1  # which word a piece belongs to; a text's first piece begins one
    opens = np.flatnonzero(~inside)
    closes = np.append(opens[1:], len(inside)) - 1
    whole = inside[first] | (begins[first] < a) | (ends[last] > b) if len(contexts.ids) else none
    if len(opens):
        first, last = np.where(whole, opens[word[first]], first), np.where(whole, closes[word[last]], last)
    origin = contexts.splits[:-1][asked]
    located[asked] = np.where(none[:, None], UNKNOWN, np.stack([first - origin, last - origin], axis=1))
    return located


def targets(windows: Windows, located: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Positions in each row, int32 [rows] twice: the answer's first and last piece.

    0 and 0 ([CLS]) where the row does not hold the whole answer or there is none; -100 where it is not known.
    """
    first, last = np.asarray(located, np.int64).reshape(-1, 2)[windows.example].T
    begin, length, origin = _stretches(windows)
    held = (first >= begin) & (last < begin + length)
    out = []
    for piece in (first, last):
        position = np.where(held, piece - begin + origin, 0)
        out.append(np.where(piece == UNKNOWN, UNLABELLED, position).astype(np.int32))
    return out[0], out[1]


def context(windows: Windows) -> np.ndarray:
    """bool, flat like ``windows.input_ids``: pieces of the context (not the question, [CLS], [SEP])."""
    return (windows.token_type_ids == 1) & (windows.starts >= 0)


def owned(windows: Windows) -> np.ndarray:
    """bool, flat like ``windows.input_ids``: pieces of the context which this row shows with the most context.

    The rule of the original (`_check_is_max_context`): in a row whose stretch has n pieces, a piece with l pieces of
    the stretch before and r after it scores ``min(l, r) + 0.01 * n`` (float64); of the rows of the same question that
    show it, the one with the highest score owns it, the earliest if several have. Every piece is owned by exactly
    one row.
    """
    begin, length, _ = _stretches(windows)
    flat = np.zeros(len(windows.input_ids), bool)
    flat[context(windows)] = owner(Cuts(windows.example, begin, length))
    return flat


def owner(cuts: Cuts) -> np.ndarray:
    """bool, flat over the rows' stretches one after the other: see `owned`."""
    if not int(cuts.length.sum()):
        return np.zeros(0, bool)
    row = np.repeat(np.arange(len(cuts)), cuts.length)
    before = spread(np.zeros_like(cuts.length), cuts.length)
    # float64 as in the original: where 0.01 * n is more than 1, its rounding decides
    score = np.minimum(before, cuts.length[row] - 1 - before) + 0.01 * cuts.length[row]
    most = int((cuts.begin + cuts.length).max())
    piece = np.asarray(cuts.example, np.int64)[row] * most + cuts.begin[row] + before
    order = np.lexsort((row, -score, piece))
    best = np.zeros(len(piece), bool)
    best[order[np.diff(piece[order], prepend=-1) != 0]] = True
    return best


def _stretches(windows: Windows) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Of each row: its first piece of the context, how many it shows, and the position of the first; int64 [rows]."""
    inside = np.concatenate([[0], np.cumsum(context(windows))])
    length = np.diff(inside[windows.splits])
    origin = windows.lengths - 1 - length
    return np.asarray(windows.begin, np.int64), length, origin
