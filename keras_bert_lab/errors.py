"""The one error that users meet: who is to blame, what was seen, what to do about it."""


class UserError(ValueError):
    """A request that cannot be met, told so that its author can mend it.

    Tools print it as one line and exit with status 1; libraries may catch it as a ``ValueError``.

    Args:
        culprit: the thing at fault, as the user knows it: a file and row, a tensor, an option.
        evidence: what was seen there, with the numbers or names that show it.
        remedy: what to do; may be empty only when the evidence already says it.

    Example:
        >>> raise UserError("train.tsv:17", "the label cell is empty", "fill it or drop the row")
        Traceback (most recent call last):
        ...
        keras_bert_lab.errors.UserError: train.tsv:17: the label cell is empty; fill it or drop the row
    """

    def __init__(self, culprit: object, evidence: str, remedy: str = "") -> None:
        self.culprit, self.evidence, self.remedy = str(culprit), evidence, remedy
        super().__init__(f"{culprit}: {evidence}" + (f"; {remedy}" if remedy else ""))

    def __reduce__(self):  # ValueError would pickle the sentence, not its three parts
        return type(self), (self.culprit, self.evidence, self.remedy)
