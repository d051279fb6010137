"""Files for named-entity recognition. (The readers are being written; the names below stand.)"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .tags import Span


@dataclass(frozen=True)
class Sentence:
    """One sentence (in plain text and JSONL: one text).

    Attributes:
        text: the text. Of CoNLL columns and JSONL tokens: the tokens, joined.
        tokens: the words as the file gives them, or None if the file leaves words to the reader's tokenizer
            (plain text, JSONL with character spans): see `with_words`.
        starts, ends: of each token, characters of ``text``; ``text[starts[i]:ends[i]] == tokens[i]``. None
            without tokens.
        tags: one a token, or None if the file has none.
        entities: gold entities in characters of ``text`` (JSONL with character spans), or None.
        columns: CoNLL: all cells of each token's line; else None.
        before: CoNLL: the lines of comments and -DOCSTART- ahead of the sentence, as they were.
        where: "file:line" of the first token.
        fields: JSONL: the whole object.
    """

    text: str
    tokens: tuple[str, ...] | None = None
    starts: tuple[int, ...] | None = None
    ends: tuple[int, ...] | None = None
    tags: tuple[str, ...] | None = None
    entities: tuple[Span, ...] | None = None
    columns: tuple[tuple[str, ...], ...] | None = None
    before: tuple[str, ...] = ()
    where: str = ""
    fields: Mapping[str, Any] = dataclasses.field(default_factory=dict)

    @classmethod
    def of(cls, tokens: Sequence[str], tags: Sequence[str] | None = None, *, join: str | None = None, **more: Any):
        """A sentence of ready tokens; join: what stands between them, None: `joint`'s answer."""
        raise NotImplementedError

    def with_words(self, starts: Sequence[int], ends: Sequence[int], scheme: str = "IOB2") -> Sentence:
        """The same with tokens ``text[starts[i]:ends[i]]``, and ``tags`` in the scheme if there are ``entities``.

        An entity that begins or ends inside a word takes the whole word.
        """
        raise NotImplementedError


def read(
    path: str | Path,
    *,
    token: int | str = 0,
    tag: int | str = -1,
    format: str | None = None,  # "conll", "jsonl", "text"
    encoding: str = "utf-8",
    join: str | None = None,
) -> Iterator[Sentence]:
    """Sentences, streamed."""
    raise NotImplementedError


def joint(tokens: Iterable[str]) -> str:
    """What stands between tokens: "" if most of them are single wide (Chinese-like) characters, else " "."""
    raise NotImplementedError


def align(entities: Iterable[Span], starts: Sequence[int], ends: Sequence[int]) -> tuple[list[Span], list[Span]]:
    """(entities in words, those of the given that begin or end inside a word or cover none)."""
    raise NotImplementedError


def write(path: str | Path, sentences: Iterable[Sentence], predicted: Iterable[Sequence[str]]) -> None:
    """CoNLL columns: all that was read, and the prediction as the last one."""
    raise NotImplementedError
