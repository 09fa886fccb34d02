"""The difference between two fingerprints, field by field, in words for the person who has to choose between them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from difflib import SequenceMatcher
from typing import Any, NamedTuple

import msgspec

#: How many input objects are spelled out per kind of change.
NAMED_CHANGES = 3
_LONGEST_VALUE = 120


class Difference(NamedTuple):
    """``field`` in words (``parameter min_words``), and its value as ``planned`` and as ``given`` now."""

    field: str
    planned: str
    given: str


def describe_differences(planned: Mapping[str, Any], given: Mapping[str, Any]) -> tuple[Difference, ...]:
    """All differences, the code's first, the inputs' last. Empty when the fields are equal."""
    found = [
        *_steps(planned.get("steps", []), given.get("steps", [])),
        *_mapping("parameter", planned.get("parameters", {}), given.get("parameters", {})),
        *_section("source", planned.get("source", {}), given.get("source", {})),
        *_section("sink", planned.get("sink", {}), given.get("sink", {})),
        *_mapping("sharding", planned.get("sharding", {}), given.get("sharding", {})),
        *_inputs(planned.get("inputs", {}), given.get("inputs", {})),
    ]
    known = {"steps", "parameters", "source", "sink", "sharding", "inputs"}
    rest = [{key: value for key, value in side.items() if key not in known} for side in (planned, given)]
    return (*found, *_mapping("plan", rest[0], rest[1]))


def _steps(planned: Sequence[Mapping[str, Any]], given: Sequence[Mapping[str, Any]]) -> Iterator[Difference]:
    """Steps are matched by kind and label, not by number, so that one more step at the front is one difference."""
    matcher = SequenceMatcher(a=[_identity(step) for step in planned], b=[_identity(step) for step in given], autojunk=False)
    for tag, a_from, a_to, b_from, b_to in matcher.get_opcodes():
        olds, news = planned[a_from:a_to], given[b_from:b_to]
        if tag in ("equal", "replace") and len(olds) == len(news):
            for old, new in zip(olds, news, strict=True):
                if tag == "replace":
                    yield Difference(f"step {old['name']}", f"{old['kind']}", f"replaced by {new['name']}")
                else:
                    yield from _step(old, new)
            continue
        for old in olds:
            yield Difference(f"step {old['name']}", str(old["kind"]), "removed")
        for new in news:
            yield Difference(f"step {new['name']}", "absent", "added")


def _identity(step: Mapping[str, Any]) -> tuple[str, str]:
    return str(step["kind"]), str(step["name"]).partition("-")[2]


def _step(old: Mapping[str, Any], new: Mapping[str, Any]) -> Iterator[Difference]:
    title = f"step {new['name']}"
    if new["kind"] == "checkpoint":
        return
    old_function, new_function = old.get("function"), new.get("function")
    if old_function and new_function:
        if old_function["name"] != new_function["name"]:
            yield Difference(f"{title}: function", old_function["name"], new_function["name"])
        if old_function["code"] != new_function["code"]:
            yield Difference(f"{title}: code changed", f"{old_function['code'][:12]}", f"{new_function['code'][:12]}")
        yield from _mapping(f"{title}: argument", old_function["arguments"], new_function["arguments"])
    elif old_function != new_function:
        yield Difference(f"{title}: function", _words((old_function or {}).get("name")), _words((new_function or {}).get("name")))
    yield from _mapping(title + ":", old.get("params", {}), new.get("params", {}))
    if old.get("on_error") != new.get("on_error"):
        yield Difference(f"{title}: on_error", _words(old.get("on_error")), _words(new.get("on_error")))


def _section(title: str, old: Mapping[str, Any], new: Mapping[str, Any]) -> Iterator[Difference]:
    """A source or a sink: its nested options and columns one by one."""
    for key in ("options", "schema"):
        if old.get(key) == new.get(key):
            continue
        if old.get(key) is None or new.get(key) is None:
            yield Difference(f"{title} {key}", _words(old.get(key)), _words(new.get(key)))
        else:
            yield from _mapping(f"{title} {'option' if key == 'options' else 'column'}", old[key], new[key])
    plain = [{key: value for key, value in side.items() if key not in ("options", "schema")} for side in (old, new)]
    yield from _mapping(title, plain[0], plain[1])


def _mapping(title: str, old: Mapping[str, Any], new: Mapping[str, Any]) -> Iterator[Difference]:
    for key in sorted({*old, *new}):
        if key not in old:
            yield Difference(f"{title} {key}", "absent", _words(new[key]))
        elif key not in new:
            yield Difference(f"{title} {key}", _words(old[key]), "absent")
        elif old[key] != new[key]:
            yield Difference(f"{title} {key}", _words(old[key]), _words(new[key]))


def _inputs(old: Mapping[str, Any], new: Mapping[str, Any]) -> Iterator[Difference]:
    if old == new:
        return
    title = "inputs"
    if "named" in old and "named" in new:
        before, after = old["named"], new["named"]
        changes = {
            "added": sorted(after.keys() - before.keys()),
            "removed": sorted(before.keys() - after.keys()),
            "changed": sorted(url for url in before.keys() & after.keys() if list(before[url]) != list(after[url])),
        }
        said = ", ".join(_count(kind, urls) for kind, urls in changes.items() if urls)
        title = f"inputs ({said or 'in another order'})"
    yield Difference(title, _amount(old), _amount(new))


def _count(kind: str, urls: Sequence[str]) -> str:
    more = ", …" if len(urls) > NAMED_CHANGES else ""
    return f"{len(urls)} {'object' if len(urls) == 1 else 'objects'} {kind}: {', '.join(urls[:NAMED_CHANGES])}{more}"


def _amount(inputs: Mapping[str, Any]) -> str:
    if not inputs:
        return "unknown"
    return f"{inputs['objects']:,} objects, {inputs['bytes']:,} bytes, digest {str(inputs['digest'])[:12]}"


def _words(value: Any) -> str:
    """A value as JSON on one line, shortened in the middle."""
    if value is None:
        return "none"
    text = " ".join(value.split()) if isinstance(value, str) else msgspec.json.encode(value).decode()
    return text if len(text) <= _LONGEST_VALUE else f"{text[: _LONGEST_VALUE // 2]} … {text[-_LONGEST_VALUE // 2 :]}"
