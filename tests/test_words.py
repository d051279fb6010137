"""Words and their pieces: given ones, those of plain texts, and where each is read."""

import numpy as np

from keras_bert_lab.sentences import Sentence
from keras_bert_lab.squad import continuations
from keras_bert_lab.windows import by_words, cut
from keras_bert_lab.wordpiece import Tokenizer
from keras_bert_lab.words import Words, given, owned, plain

VOCAB = "[PAD] [UNK] [CLS] [SEP] , . a b c ##a ##b ##c 中 e ##e"
TOKENIZER = Tokenizer("\n".join(VOCAB.split()).encode(), lower_case=True)
CONTINUES = continuations(TOKENIZER.tokens)
TEXTS = ["abc, a 中中", "", "  ", "cae\u0301 b.", "x" * 201 + " a"]


def spelled(words, texts):
    return [
        [text[a:b] for a, b in zip(words.starts[i:j], words.ends[i:j], strict=True)]
        for text, i, j in zip(texts, words.splits[:-1], words.splits[1:], strict=True)
    ]


def test_words_of_plain_texts_are_the_tokenizers():
    words = plain(TEXTS, TOKENIZER.pieces, CONTINUES)
    assert spelled(words, TEXTS) == [["abc", ",", "a", "中", "中"], [], [], ["cae\u0301", "b", "."], ["x" * 201, "a"]]
    basic = [[start for _, start, _ in TOKENIZER.basic(text)] for text in TEXTS]
    assert words.starts.tolist() == [start for row in basic for start in row]
    tokens = [TOKENIZER.tokens[i] for i in words.pieces.ids]
    assert words.first.tolist() == [not token.startswith("##") for token in tokens]
    assert words.word.tolist() == (np.cumsum(words.first) - 1).tolist()


def test_given_words_keep_their_place_whatever_becomes_of_them():
    sentences = [Sentence.of(["ab,c", "\u200b", "中", "", "a"]), Sentence.of([]), Sentence.of(["b"])]
    words = given(sentences, TOKENIZER.pieces)
    assert words.splits.tolist() == [0, 5, 5, 6]
    assert words.word.tolist() == [0, 0, 0, 0, 2, 4, 5]
    assert words.first.tolist() == [True, False, False, False, True, True, True]
    for sentence, row in zip(sentences, range(3), strict=True):
        _, starts, ends = words.pieces[row]
        joined = "".join(sentence.text[a:b] for a, b in zip(starts, ends, strict=True))
        assert joined == sentence.text.replace(" ", "").replace("\u200b", "")
    assert len(given([], TOKENIZER.pieces).splits) == 1


def test_both_kinds_together_in_any_order():
    one, two = given([Sentence.of(["abc", "\u200b", "b"])], TOKENIZER.pieces), plain(TEXTS, TOKENIZER.pieces, CONTINUES)
    order = np.array([3, 0, 5, 2, 1, 4])
    mixed = Words.concat([one, two]).take(order)
    texts = [*["abc \u200b b"], *TEXTS]
    assert spelled(mixed, [texts[i] for i in order]) == [
        (spelled(one, texts[:1]) + spelled(two, TEXTS))[i] for i in order
    ]
    places = mixed.pieces.starts[mixed.first]
    assert places.tolist() == mixed.starts[np.unique(mixed.word[mixed.first])].tolist()


def test_every_word_with_a_piece_is_read_once():
    random = np.random.default_rng(0)
    texts = [" ".join(random.choice(["abc", "a", ",", "cabab", "中"], n)) for n in (0, 1, 7, 40)]
    words = plain(texts, TOKENIZER.pieces, CONTINUES)
    for room, stride in ((1, 1), (4, 2), (9, 9), (500, 1)):
        cuts = by_words(words.first, words.pieces.lengths, room, stride)
        windows = cut(words.pieces, cuts, cls_id=2, sep_id=3)
        at, piece, read = owned(windows.splits, cuts, words)
        assert (windows.input_ids[at] == words.pieces.ids[piece]).all()
        assert sorted(words.word[piece[read]].tolist()) == list(range(len(words.starts)))
        assert words.first[piece[read]].all()
