"""Files that are the same in all packages but for the model's name."""

from pathlib import Path

_HERE = Path(__file__).parent


def fixed(path: str, name: str | None = None) -> str:
    """The file of this path; ``NAME`` in it is the model's name."""
    text = (_HERE / path).read_text("utf-8")
    return text if name is None else text.replace("NAME", name)
