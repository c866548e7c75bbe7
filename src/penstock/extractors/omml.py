"""Convert Word equations to one line of text, such as x^2, (a+b)/c, √(x)."""

from xml.etree.ElementTree import Element

_OWN_LINE = ("mr", "e")


def local(element: Element) -> str:
    """The name without its namespace. Documents in Strict format use other namespaces than most documents."""
    return element.tag.rpartition("}")[2]


def value(element: Element | None, name: str = "val") -> str | None:
    """The value of an attribute in any namespace."""
    if element is None:
        return None
    for key, found in element.attrib.items():
        if key.rpartition("}")[2] == name:
            return found
    return None


def child(element: Element | None, *path: str) -> Element | None:
    for name in path:
        element = next((found for found in element if local(found) == name), None) if element is not None else None
    return element


def linear(element: Element | None) -> str:
    """The text of an equation or a part of one."""
    if element is None:
        return ""
    match local(element):
        case "t":
            return element.text or ""
        case "f":
            return f"{_group(element, 'num')}/{_group(element, 'den')}"
        case "sSup" | "sSub" | "sSubSup" | "sPre":
            return _group(element, "e") + _scripts(element)
        case "limLow" | "limUpp":
            return f"{_part(element, 'e')}_{_group(element, 'lim')}"
        case "rad":
            return f"{_part(element, 'deg')}√{_group(element, 'e')}"
        case "nary":
            sign = value(child(element, "naryPr", "chr")) or "∫"
            return f"{sign}{_scripts(element)} {_part(element, 'e')}"
        case "d":
            return _delimited(element)
        case "func":
            return f"{_part(element, 'fName')} {_part(element, 'e')}"
        case "m" | "eqArr":
            return "; ".join(linear(row) for row in element if local(row) in _OWN_LINE)
        case "mr":
            return ", ".join(linear(cell) for cell in element)
        case name:
            return "" if name.endswith("Pr") else "".join(map(linear, element))


def _part(element: Element, name: str) -> str:
    return linear(child(element, name)).strip()


def _group(element: Element, name: str) -> str:
    text = _part(element, name)
    return (
        text
        if len(text) <= 1 or text.isalnum() or (text[0] == "(" and text.find(")") == len(text) - 1)
        else f"({text})"
    )


def _scripts(element: Element) -> str:
    scripts = ((mark, _group(element, name)) for mark, name in (("_", "sub"), ("^", "sup")))
    return "".join(mark + text for mark, text in scripts if text)


def _delimited(element: Element) -> str:
    settings = child(element, "dPr")
    begin, end, between = (value(child(settings, name)) for name in ("begChr", "endChr", "sepChr"))
    inside = (between or "|").join(linear(part) for part in element if local(part) == "e")
    return f"{'(' if begin is None else begin}{inside}{')' if end is None else end}"
