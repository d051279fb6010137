"""EM and F1 of answers, to the number of the official scripts: SQuAD 1.1, SQuAD 2.0, CMRC 2018. Floor 0."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from .squad import Question

SCRIPTS = ("squad1", "squad2", "cmrc2018")


def exact(golds: Sequence[str], predicted: str, script: str = "squad2") -> float:
    """1.0 if the predicted answer equals one of the gold ones after the script's normalisation, else 0.0.

    Args:
        golds: the gold answers; none means that there is no answer (under "squad2": "" is right).
        predicted: the answer; "" for no answer.
        script: "squad1", "squad2" or "cmrc2018".
    """
    raise NotImplementedError


def f1(golds: Sequence[str], predicted: str, script: str = "squad2") -> float:
    """The highest F1, 0 to 1, between the predicted answer and the gold ones: over words (SQuAD), or over the longest
    common run of characters and Latin words (CMRC 2018)."""
    raise NotImplementedError


def evaluate(
    questions: Iterable[Question],
    predictions: Mapping[str, str],
    script: str = "squad2",
    *,
    differences: Mapping[str, float] | None = None,
    threshold: float | None = None,
) -> dict[str, float]:
    """The official script's numbers, in percent, under its own names.

    Args:
        questions: with gold answers.
        predictions: id -> answer; "" for no answer.
        differences: "squad2": id -> how much speaks for no answer (the script's --na-prob-file); adds best_exact,
            best_exact_thresh, best_f1, best_f1_thresh.
        threshold: "squad2", with `differences`: answers above it count as no answer (--na-prob-thresh); None: none do.

    Returns:
        "squad1": exact_match, f1. "squad2": exact, f1, total, and these with the prefixes HasAns_ and NoAns_.
        "cmrc2018": average, f1, em, total. A question without prediction counts 0 (squad1, cmrc2018) or is left out
        (squad2), as in the scripts; `missing` says how many.
    """
    raise NotImplementedError
