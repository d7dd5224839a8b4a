"""Text for messages: suggestions for misspelt names, and client-supplied text made printable and shortened."""

from __future__ import annotations

from collections.abc import Sequence

LONGEST = 200
"""The maximum number of quoted characters of a client's text: enough for an error message, short enough for a log
line."""


def shortened(text: str, longest: int) -> str:
    """The first `longest` characters of `text`.

    >>> shortened("abcdef", 3)
    'abc...'
    """
    return text if len(text) <= longest else f"{text[:longest]}..."


def quoted(value: object, longest: int = LONGEST) -> str:
    r"""A client's text, or any other object, as a printable literal of limited length; raises nothing.

    >>> print(quoted("two" + chr(9) + "words"))
    'two\twords'
    """
    try:
        literal = ascii(value[: longest + 1] if isinstance(value, str) else value)
    except Exception as error:
        # An object of a client may not even have a representation.
        literal = f"<{type(error).__name__}>"
    return shortened(literal if literal.isprintable() else ascii(literal[: longest + 1]), longest)


def escaped(text: str) -> str:
    r"""`text` with every character escaped that cannot be printed, such as a line break.

    >>> print(escaped("Zürich" + chr(10) + "!"))
    Zürich\n!
    """
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode("ascii") for c in text)


def failure(error: BaseException) -> str:
    """Type and message of an exception that a client's bytes caused.

    >>> failure(ValueError("no data"))
    "ValueError: 'no data'"
    """
    try:
        message = str(error)
    except Exception:
        message = ""
    return f"{quoted(type(error).__name__)[1:-1]}: {quoted(message)}"


def suggestion(name: str, known: Sequence[str]) -> str:
    """A suggestion for `name`, which is not one of the `known` names.

    >>> suggestion("windw", ["rate", "window"]), suggestion("zzz", ["rate", "window"])
    ('did you mean window?', 'choose from rate, window')
    """
    import difflib

    matches = difflib.get_close_matches(name.lower(), known, 3)
    return f"did you mean {' or '.join(matches)}?" if matches else f"choose from {', '.join(known)}"
