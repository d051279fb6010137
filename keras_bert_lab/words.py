"""Words and the pieces they are made of: of sentences whose words are given, and of plain texts.

For heads that answer a word: ``windows.by_words`` cuts the rows, `owned` says where each word's answer is read.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from .sentences import Sentence
from .windows import Cuts, Pieces, most_context, spread
from .wordpiece import over_marks


@dataclass(frozen=True, eq=False)
class Words:
    """Many texts as pieces and as words, flat; a word may have no piece at all.

    Attributes:
        pieces: whole texts.
        word: int64 [pieces], the word that a piece belongs to, counted over all texts.
        first: bool [pieces], whether it is its word's first.
        starts, ends: int64 [words], characters of the text.
        splits: int64 [texts + 1]; text i has the words ``splits[i]:splits[i + 1]``.
    """

    pieces: Pieces
    word: np.ndarray
    first: np.ndarray
    starts: np.ndarray
    ends: np.ndarray
    splits: np.ndarray

    @staticmethod
    def concat(parts: Sequence[Words]) -> Words:
        """All texts of all parts, in order."""
        counts = np.cumsum([0] + [len(p.starts) for p in parts])
        return Words(
            Pieces.concat(p.pieces for p in parts),
            np.concatenate([p.word + n for p, n in zip(parts, counts, strict=False)]),
            np.concatenate([p.first for p in parts]),
            np.concatenate([p.starts for p in parts]),
            np.concatenate([p.ends for p in parts]),
            _splits(np.concatenate([np.diff(p.splits) for p in parts])),
        )

    def take(self, texts: np.ndarray) -> Words:
        """The texts in another order."""
        words, size = np.diff(self.splits)[texts], self.pieces.lengths[texts]
        at, pieces = spread(self.splits[:-1][texts], words), spread(self.pieces.splits[:-1][texts], size)
        place = np.empty(len(at), np.int64)
        place[at] = np.arange(len(at))
        taken = self.pieces.take(texts)
        return Words(
            taken, place[self.word[pieces]], self.first[pieces], self.starts[at], self.ends[at], _splits(words)
        )


def given(sentences: Sequence[Sentence], pieces: Callable[[list[str]], Pieces]) -> Words:
    """The tokens of sentences. Each is tokenized by itself, so that no piece belongs to two.

    Args:
        sentences: with tokens.
        pieces: tokenizes texts, as ``Tokenizer.pieces``.

    Example:
        >>> from keras_bert_lab.wordpiece import Tokenizer
        >>> t = Tokenizer("\\n".join("[PAD] [UNK] [CLS] [SEP] he ##llo you".split()).encode(), lower_case=True)
        >>> words = given([Sentence.of(["Hello", "you"])], t.pieces)
        >>> words.word.tolist(), words.first.tolist(), words.starts.tolist()
        ([0, 0, 1], [True, False, True], [0, 6])
    """
    counts = np.array([len(s.tokens or ()) for s in sentences], np.int64)
    number: dict[str, int] = {}
    which = np.array([number.setdefault(token, len(number)) for s in sentences for token in s.tokens or ()], np.int64)
    flat = pieces(list(number)).take(which)
    starts = np.array([x for s in sentences for x in s.starts or ()], np.int64)
    ends = np.array([x for s in sentences for x in s.ends or ()], np.int64)
    word = np.repeat(np.arange(len(which)), flat.lengths)
    splits = _splits(counts)
    shift = starts[word].astype(np.int32)
    whole = Pieces(flat.ids, flat.starts + shift, flat.ends + shift, flat.splits[splits])
    return Words(whole, word, np.diff(word, prepend=-1) != 0, starts, ends, splits)


def plain(texts: Sequence[str], pieces: Callable[[list[str]], Pieces], continues: np.ndarray) -> Words:
    """The words that the tokenizer finds in texts: it splits at blanks, punctuation and Chinese characters.

    Args:
        texts: strings.
        pieces: tokenizes texts, as ``Tokenizer.pieces``.
        continues: bool [vocabulary], entries that begin with ##: ``squad.continuations``.
    """
    found = pieces(list(texts))
    first = ~continues[found.ids]
    last = np.append(first[1:], True) if len(first) else first
    ends = found.ends[last].astype(np.int64)
    word = np.cumsum(first) - 1
    splits = np.concatenate([[0], np.cumsum(first)])[found.splits]
    for i, text in enumerate(texts):
        if not text.isascii():  # an accent that stands by itself belongs to its letter's word
            part = slice(splits[i], splits[i + 1])
            ends[part] = [over_marks(text, end) for end in ends[part].tolist()]
    return Words(found, word, first, found.starts[first].astype(np.int64), ends, splits)


def owned(rows: np.ndarray, cuts: Cuts, words: Words) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Where words are read: each at its first piece, in the window where that has most context.

    Args:
        rows: ``Windows.splits`` of rows ``[CLS] stretch [SEP]``.
        cuts: their stretches, rows of a text one after the other.
        words: the texts.

    Returns:
        Of every piece in every stretch, row after row: its place among the windows' pieces, its number among all texts'
        pieces, and whether a word is read there.
    """
    at = spread(rows[:-1] + 1, cuts.length)
    piece = spread(words.pieces.splits[:-1][cuts.example] + cuts.begin, cuts.length)
    return at, piece, most_context(cuts, words.pieces.lengths) & words.first[piece]


def _splits(lengths: np.ndarray) -> np.ndarray:
    return np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)
