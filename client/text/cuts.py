"""Where a long text may be cut so that its parts, encoded one by one, give the tokens of the whole."""

from __future__ import annotations

import re
from collections.abc import Iterator

_PART_CHARS = 1024
# In each scheme of `pretokenizer` a piece ends between the two characters, whatever is before and after them: at a
# space that follows something printed, at ASCII punctuation or white space that follows an ASCII letter or digit, and
# at the punctuation of Chinese and Japanese that follows one of their letters. None composes with what is before it.
_ANYWHERE = (
    r"(?<=[\w!-~])(?= )"
    r"|(?<=[A-Za-z0-9])(?=[\x00-/:-@\[-`{-\x7f])"
    r"|(?<=[\u3041-\u3096\u30a1-\u30fa\u4e00-\u9fa5\uac00-\ud7a3])(?=[\u3001\u3002\uff01\uff0c\uff1a\uff1b\uff1f])"
)
_CUT = re.compile(_ANYWHERE)
_CUT_OR_DIGIT = re.compile(_ANYWHERE + r"|(?<=[0-9])(?=[0-9])")


def parts(text: str, splits_digits: bool) -> Iterator[str]:
    """Yields `text` in parts of about a thousand characters; longer where it has no place to cut.

    `splits_digits`: the scheme makes a piece of each digit.
    """
    pattern, start = _CUT_OR_DIGIT if splits_digits else _CUT, 0
    while start < len(text):
        end = _next_cut(pattern, text, start + _PART_CHARS)
        yield text[start:end]
        start = end


def _next_cut(pattern: re.Pattern[str], text: str, position: int) -> int:
    while position < len(text):
        # A part of the text at a time, as other threads stand still meanwhile.
        found = pattern.search(text, position, position + (1 << 16))
        if found:
            return found.start()
        # One less: what is behind the window's end is not seen from inside it.
        position += (1 << 16) - 1
    return len(text)
