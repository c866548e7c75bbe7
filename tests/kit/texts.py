"""Texts that splitters have failed on, made from a seed."""

from random import Random

SCREEN_DUMP = "```\nshort line\n" + (" " * 80 + "\n") * 13 + "another\n```\n"


def screen_dump(random: Random) -> str:
    """What is copied from a terminal: mostly blank lines of spaces, some words."""
    lines = []
    for _ in range(random.randint(2, 60)):
        kind = random.random()
        if kind < 0.6:
            lines.append(" " * random.choice([0, 1, 4, 40, 79, 80, 132]))
        elif kind < 0.8:
            lines.append(" " * random.randint(0, 70) + random.choice(["x", "another", "short line", "$ ls -l"]))
        else:
            lines.append("word " * random.randint(1, 30))
    body = "\n".join(lines)
    return random.choice([f"```\n{body}\n```\n", f"Before.\n\n```\n{body}\n```\n\nAfter.", f"# Head\n\n{body}"])


def flags(random: Random) -> str:
    """Letters of several code points, in runs that are longer than a chunk."""
    letters = ["🇩🇪", "🇫🇷", "🇺", "a", " ", "\n", "👨‍👩‍👧‍👦", "e\u0301", "\u200d", "\r\n", "👍🏽"]
    return "".join(random.choice(letters) * random.choice([1, 1, 1, 700]) for _ in range(random.randint(1, 12)))
