"""Names that are told apart, and lines that fit."""

from penstock.cli.output import distinct, wrapped


def test_equal_names_are_shown_with_the_folders_that_tell_them_apart() -> None:
    documents = [
        ("a.txt", "/x/one/a.txt"),
        ("a.txt", "/x/two/a.txt"),
        ("b.txt", "/x/one/b.txt"),
        ("c.txt", "/x/one/d/c.txt"),
        ("c.txt", "/x/two/d/c.txt"),
        ("p", "p"),
        ("p", "/p"),
    ]
    shown = ["one/a.txt", "two/a.txt", "b.txt", "one/d/c.txt", "two/d/c.txt", "p", "/p"]
    assert distinct(documents) == shown
    # The same document twice is no reason for more.
    assert distinct([("a.txt", "/x/a.txt"), ("a.txt", "/x/a.txt")]) == ["a.txt", "a.txt"]


def test_long_lines_wrap_at_words_and_keep_their_indent() -> None:
    line = "  " + "word " * 30
    lines = wrapped(line, 40).split("\n")
    assert all(len(one) <= 40 and one.startswith("  word") for one in lines)
    assert " ".join(lines).split() == line.split()
    path = "/" + "x" * 100
    assert path in wrapped(f"no such file: {path} was found", 40)
    assert wrapped("short", 40) == "short"
