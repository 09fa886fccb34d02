"""Safe loading of a YAML recipe: plain values, and the line of each of them for error messages.

Only YAML's plain types exist (no tags that build objects). Duplicate keys are refused, and so is a document that is too large, too deep, or
becomes too large when its aliases are followed.
"""

from __future__ import annotations

import difflib
from collections.abc import Hashable, Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from cloudshard.errors import RecipeError

if TYPE_CHECKING:
    import yaml

MAX_BYTES = 1 << 20
#: Values after aliases are followed. The largest recipe that a person writes has some hundreds.
MAX_VALUES = 20_000
MAX_DEPTH = 32

_PLAIN_TAGS = ("tag:yaml.org,2002:map", "tag:yaml.org,2002:seq")

Path = tuple[str | int, ...]


@dataclass(slots=True)
class Document:
    """``value``: dicts, lists and scalars. ``lines``: path → line number (from 1). ``name``: file name, for messages."""

    name: str
    value: dict[str, Any]
    lines: dict[Path, int] = field(default_factory=dict)

    def line(self, path: Path) -> int | None:
        """Line of the value at ``path``, or of the nearest one around it."""
        for end in range(len(path), -1, -1):
            if path[:end] in self.lines:
                return self.lines[path[:end]]
        return None

    def error(self, what: str, path: Path = (), *, mend: str = "") -> RecipeError:
        """A RecipeError that names file, line and field."""
        line = self.line(path)
        place = self.name if line is None else f"{self.name}, line {line}"
        spot = spell(path)
        return RecipeError(f"{spot}: {what}" if spot else what, where=place, mend=mend)


def spell(path: Path) -> str:
    """``steps[2].map`` for ("steps", 2, "map")."""
    text = ""
    for part in path:
        text += f"[{part}]" if isinstance(part, int) else f".{part}" if text else str(part)
    return text


def suggestion(word: str, known: Iterable[str]) -> str:
    """ "Did you mean …?", or the list of what is known."""
    names = sorted(known)
    close = difflib.get_close_matches(word, names, n=1, cutoff=0.6)
    if close:
        return f"Did you mean {close[0]!r}?"
    return f"Known here: {', '.join(names)}" if names else ""


def parse(text: str | bytes, name: str) -> Document:
    """The document. Raises RecipeError with the line for all that is not a plain, bounded YAML mapping."""
    import yaml

    if len(text) > MAX_BYTES:
        raise RecipeError(f"a recipe of {len(text):,} bytes is larger than {MAX_BYTES:,}", where=name)
    document = Document(name=name, value={})
    try:
        loader = yaml.SafeLoader(text)
        root = loader.get_single_node()
        if root is None:
            raise document.error("the recipe is empty")
        value = _Walk(loader, document).value(root, ())
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        place = name if mark is None else f"{name}, line {mark.line + 1}, column {mark.column + 1}"
        raise RecipeError(f"not valid YAML: {error.problem or error.context}", where=place) from None
    except yaml.YAMLError as error:
        raise RecipeError(f"not valid YAML: {' '.join(str(error).split())}", where=name) from None
    except (RecursionError, ValueError) as error:
        raise RecipeError(f"not valid YAML: {error}", where=name) from None
    if not isinstance(value, dict):
        raise document.error(f"a recipe is a mapping (name, source, steps, sink), this is a {type(value).__name__}")
    document.value = value
    return document


class _Walk:
    """Turns YAML nodes into values, counting them."""

    def __init__(self, loader: yaml.SafeLoader, document: Document) -> None:
        self._loader = loader
        self._document = document
        self._count = 0

    def value(self, node: yaml.Node, path: Path) -> Any:
        import yaml

        self._document.lines.setdefault(path, node.start_mark.line + 1)
        self._count += 1
        if self._count > MAX_VALUES or len(path) > MAX_DEPTH:
            limit = f"more than {MAX_VALUES:,} values" if self._count > MAX_VALUES else f"more than {MAX_DEPTH} levels"
            raise self._document.error(f"the recipe has {limit}", path[:3], mend="Do its aliases (*name) multiply, or contain themselves?")
        if not isinstance(node, yaml.ScalarNode) and node.tag not in _PLAIN_TAGS:
            raise self._document.error(
                f"the tag {node.tag} is not allowed", path, mend="A recipe has only mappings, lists and plain values"
            )
        if isinstance(node, yaml.MappingNode):
            return self._mapping(node, path)
        if isinstance(node, yaml.SequenceNode):
            return [self.value(child, (*path, at)) for at, child in enumerate(node.value)]
        return self._loader.construct_object(node)

    def _mapping(self, node: yaml.MappingNode, path: Path) -> dict[str, Any]:
        import yaml

        seen: dict[Hashable, int] = {}
        for key_node, _ in node.value:
            if key_node.tag == "tag:yaml.org,2002:merge":
                continue
            line = key_node.start_mark.line + 1
            if not isinstance(key_node, yaml.ScalarNode):
                raise RecipeError("a key must be a plain word", where=f"{self._document.name}, line {line}")
            if key_node.value in seen:
                what = f"the key {key_node.value!r} stands twice (first in line {seen[key_node.value]})"
                raise RecipeError(what, where=f"{self._document.name}, line {line}")
            seen[key_node.value] = line
        self._loader.flatten_mapping(node)
        result: dict[str, Any] = {}
        for key_node, value_node in node.value:
            key = key_node.value  # the text as written: "on" and "yes" are names here, not booleans
            self._document.lines[(*path, key)] = key_node.start_mark.line + 1
            result[key] = self.value(value_node, (*path, key))
        return result
