"""EM and F1 of answers, to the number of the official scripts: SQuAD 1.1, SQuAD 2.0, CMRC 2018. Floor 0.

``squad1``: evaluate-v1.1.py, ``squad2``: evaluate-v2.0.py (Rajpurkar et al. 2016, 2018), ``cmrc2018``:
cmrc2018_evaluate.py (Cui et al. 2019). The first two differ where an answer has no words left after normalisation
("The", "?!"): under 1.1 its F1 is 0 even if it is right. The third cuts what is not Chinese with nltk's
`word_tokenize`, which gives other words in each release; here that is the fixed rule of `latin_words`.
"""

from __future__ import annotations

import re
import string
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

import numpy as np

from .errors import UserError
from .squad import Question

SCRIPTS = ("squad1", "squad2", "cmrc2018")

_PUNCTUATION = str.maketrans("", "", string.punctuation)
_ARTICLE = re.compile(r"\b(?:the|an|a)\b")
# What CMRC's script leaves out of texts. (Its list has the ellipsis as two characters, which equals no character.)
_SIGNS = str.maketrans("", "", "-:_*^/\\~`+=，。：？！“”；’《》·、「」（）－～『』")
_CHINESE = re.compile("([\u4e00-\u9fa5])")
_TOKEN = re.compile(
    r"""
      \.{2,}
    | [][(){}<>;@#$%&?!*"«»‘„\u2012-\u2015]
    | ,(?!\d)
    | \.(?=[])}>"'»\s]*$)
    | (?: [^][(){}<>;@#$%&?!*"«»‘„\u2012-\u2015\s.,] | ,(?=\d) | \.(?!\.|[])}>"'»\s]*$) )+
    """,
    re.VERBOSE,
)
_CLITIC = re.compile(r"([^'].*?|)('(?:s|m|d|ll|re|ve)|n't|')")


def exact(golds: Sequence[str], predicted: str, script: str = "squad2") -> float:
    """1.0 if the predicted answer equals one of the gold ones after the script's normalisation, else 0.0.

    Args:
        golds: the gold answers; none means that there is no answer ("" is right).
        predicted: the answer; "" for no answer.
        script: "squad1", "squad2" or "cmrc2018".

    Example:
        >>> exact(["The Eiffel Tower"], "eiffel tower!")
        1.0
    """
    normal = _bare if _checked(script) == "cmrc2018" else _normal
    return float(normal(predicted) in {normal(gold) for gold in _usable(golds, script)})


def f1(golds: Sequence[str], predicted: str, script: str = "squad2") -> float:
    """The highest F1, 0 to 1, between the predicted answer and the gold ones.

    Of words that both have, in any order (SQuAD); of the longest run of Chinese characters and Latin words that both
    have (CMRC 2018). Arguments as in `exact`.

    Example:
        >>> round(f1(["in the Eiffel Tower"], "Eiffel Tower"), 3)
        0.8
    """
    units = _segments if _checked(script) == "cmrc2018" else _words
    found = units(predicted)
    return max(_f1(units(gold), found, script) for gold in _usable(golds, script))


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
        script: "squad1", "squad2" or "cmrc2018".
        differences: "squad2": id -> how much speaks for no answer (the script's --na-prob-file); adds best_exact,
            best_exact_thresh, best_f1, best_f1_thresh.
        threshold: "squad2", with `differences`: an answer whose difference is above it counts as no answer
            (--na-prob-thresh); None: none does.

    Returns:
        "squad1": exact_match, f1. "squad2": exact, f1, total, and these with the prefixes HasAns_ and NoAns_ where
        there are such questions. "cmrc2018": average, f1, em, total (the script prints them in capitals). A question
        without prediction counts 0 (squad1, cmrc2018) or is left out (squad2), as in the scripts; `missing` says how
        many.

    Raises:
        UserError: an unknown script, a threshold without differences, a difference that is lacking.
    """
    _checked(script)
    if differences is not None and script != "squad2":
        raise UserError("differences", f"have no meaning in {script}", "leave them out")
    golds = [(q.id, [text for text, _ in q.answers]) for q in questions]
    if script == "squad2":  # where an id stands there twice, the last question has it
        golds = list(dict(golds).items())
    both = [
        (exact(texts, predictions[id_], script), f1(texts, predictions[id_], script))
        for id_, texts in golds
        if id_ in predictions
    ]
    missing = len(golds) - len(both)
    if script != "squad2":
        em, mean = _mean(both, len(golds))
        if script == "squad1":
            return {"exact_match": em, "f1": mean, "missing": missing}
        return {"average": (em + mean) / 2, "f1": mean, "em": em, "total": len(golds), "missing": missing}
    answered = dict(zip((id_ for id_, _ in golds if id_ in predictions), both, strict=True))
    return {**_squad2(dict(golds), answered, predictions, differences, threshold), "missing": missing}


def _squad2(
    golds: Mapping[str, list[str]],
    scores: Mapping[str, tuple[float, float]],
    predictions: Mapping[str, str],
    differences: Mapping[str, float] | None,
    threshold: float | None,
) -> dict[str, float]:
    lacking = sorted(scores.keys() - differences.keys()) if differences is not None else []
    if lacking:
        raise UserError("differences", f"lack {len(lacking)} questions ({lacking[0]})", "give one for every answer")
    if threshold is not None and differences is None:
        raise UserError("threshold", "is given without differences", "give both")
    kept = dict(scores)
    if threshold is not None and differences is not None:
        kept.update({id_: (float(not golds[id_]),) * 2 for id_ in scores if differences[id_] > threshold})
    groups = {"": list(kept), "HasAns_": [i for i in kept if golds[i]], "NoAns_": [i for i in kept if not golds[i]]}
    out: dict[str, float] = {}
    for prefix, ids in groups.items():
        if ids or not prefix:
            em, mean = _mean((kept[i] for i in ids), len(ids))
            out |= {f"{prefix}exact": em, f"{prefix}f1": mean, f"{prefix}total": len(ids)}
    if differences is not None:
        for which, name in enumerate(("exact", "f1")):
            best, at = _best(golds, predictions, {id_: pair[which] for id_, pair in scores.items()}, differences)
            out |= {f"best_{name}": best, f"best_{name}_thresh": at}
    return out


def _best(
    golds: Mapping[str, list[str]],
    predictions: Mapping[str, str],
    scores: Mapping[str, float],
    differences: Mapping[str, float],
) -> tuple[float, float]:
    """The script's `find_best_thresh`: from "answer nothing" on, questions are answered one by one, the least doubtful
    first. (Questions of equal difference too, although no threshold lies between them: `answers.tune` does not.)"""
    total = best = float(sum(not texts for texts in golds.values()))
    at = 0.0
    for id_ in sorted(differences, key=lambda i: differences[i]):
        if id_ in scores:
            total += scores[id_] if golds[id_] else -float(bool(predictions[id_]))
            if total > best:
                best, at = total, float(differences[id_])
    return (100.0 * best / len(scores) if scores else 0.0), at


def _mean(pairs: Iterable[tuple[float, float]], count: int) -> tuple[float, float]:
    """Mean exact match and mean F1 in percent."""
    pairs = list(pairs)
    if not count:
        return 0.0, 0.0
    return 100.0 * sum(p[0] for p in pairs) / count, 100.0 * sum(p[1] for p in pairs) / count


def _f1(gold: Sequence[str], predicted: Sequence[str], script: str) -> float:
    if script == "cmrc2018":
        same = longest_run(gold, predicted)
    elif script == "squad2" and not (gold and predicted):
        return float(gold == predicted)
    else:
        same = (Counter(gold) & Counter(predicted)).total()
    if not same:
        return 0.0
    precision, recall = same / len(predicted), same / len(gold)
    return 2 * precision * recall / (precision + recall)


def longest_run(one: Sequence[str], other: Sequence[str]) -> int:
    """Length of the longest stretch that stands in both sequences without a gap."""
    number = {unit: i for i, unit in enumerate({*one, *other})}
    b = np.array([number[unit] for unit in other], np.int64)
    run, longest = np.zeros(len(b), np.int64), 0  # run[j]: of the common stretch that ends before j
    for unit in one:
        run = np.where(b == number[unit], np.concatenate([[0], run[:-1]]) + 1, 0)
        longest = max(longest, int(run.max(initial=0)))
    return longest


def latin_words(text: str) -> list[str]:
    """Words of a stretch without Chinese characters, as nltk's `word_tokenize` cuts nearly always (without its sentence
    splitter): signs stand alone, commas and full stops within numbers and words do not, clitics are cut off.

    Example:
        >>> latin_words('li ming\\'s "1,000.5 km" (u.s.).')
        ['li', 'ming', "'s", '``', '1,000.5', 'km', "''", '(', 'u.s.', ')', '.']
    """
    words: list[str] = []
    for match in _TOKEN.finditer(text):
        word = match[0]
        if word == '"':
            word = "``" if match.start() == 0 or text[match.start() - 1] in " ([{<" else "''"
        elif "'" in word:
            if word[0] == "'" and len(word) > 1 and not _CLITIC.fullmatch(word):
                words.append("'")
                word = word[1:]
            cut = _CLITIC.fullmatch(word)
            if cut and cut[1]:
                words.append(cut[1])
                word = cut[2]
        words.append(word)
    return words


def _segments(text: str) -> list[str]:
    """CMRC's units: Chinese characters, and the words of what is between them; its signs vanish and part nothing."""
    out: list[str] = []
    for i, part in enumerate(_CHINESE.split(_bare(text))):
        out += [part] if i % 2 else latin_words(part)
    return out


def _bare(text: str) -> str:
    """CMRC's normal form: lower case, no outer blanks, none of its signs."""
    return text.lower().strip().translate(_SIGNS)


def _normal(text: str) -> str:
    """SQuAD's: lower case, without ASCII punctuation and articles, blanks single."""
    return " ".join(_ARTICLE.sub(" ", text.lower().translate(_PUNCTUATION)).split())


def _words(text: str) -> list[str]:
    return _normal(text).split()


def _usable(golds: Sequence[str], script: str) -> list[str]:
    if isinstance(golds, str):
        raise UserError("golds", "is one string", "give a list of gold answers")
    return [gold for gold in golds if script != "squad2" or _normal(gold)] or [""]


def _checked(script: str) -> str:
    if script not in SCRIPTS:
        raise UserError(f"script={script!r}", "unknown", "use one of " + ", ".join(SCRIPTS))
    return script
