"""The documents that `ingest --list` names."""


def listed(files: tuple[str, ...]) -> list[str]:
    """The paths and URLs in these files. Empty lines and lines that begin with # are ignored."""
    from penstock.errors import UsageError

    found: list[str] = []
    for file in files:
        try:
            with open(file, encoding="utf-8", errors="surrogateescape") as lines:
                texts = [line.strip() for line in lines]
        except (OSError, ValueError) as error:
            raise UsageError(f"--list {file}: {getattr(error, 'strerror', None) or error}") from None
        found += [text for text in texts if text and not text.startswith("#")]
    if files and not found:
        raise UsageError(f"--list {files[0]}: there are no paths or URLs in it")
    return found
