"""Hostile and odd documents: refused in time with a line, or read as written."""

from __future__ import annotations

import contextlib
import json
import time
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from fleet.errors import InputError
from policies.document import MAX_INT, POLICY, Limits
from policies.jsonio import load_json
from policies.yamlio import load_file, load_yaml

LOADERS: list[Any] = [yaml.SafeLoader]
if hasattr(yaml, "CSafeLoader"):
    LOADERS.append(yaml.CSafeLoader)

LAUGHS = "a: &a [x, x, x, x, x, x, x, x, x]\n" + "".join(
    f"{b}: &{b} [{', '.join([f'*{a}'] * 9)}]\n" for a, b in zip("abcdefgh", "bcdefghi", strict=True)
)
MERGES = "a: &a {x: 1}\n" + "".join(
    f"{b}: &{b} {{<<: [*{a}, *{a}], y: 1}}\n" for a, b in zip("abcdefg", "bcdefgh", strict=True)
)

#: name → (text, words of the first problem; "" where the two parsers word it differently)
HOSTILE: dict[str, tuple[str | bytes, str]] = {
    "billion laughs": (LAUGHS, "f.yaml:1: anchor &a is not accepted (write the value out)"),
    "merge bomb": (MERGES, "f.yaml:1: anchor &a is not accepted (write the value out)"),
    "recursive alias": ("a: &a [*a]", "f.yaml:1: anchor &a is not accepted (write the value out)"),
    "alias as key": ("? *a\n: 1", ""),
    "deep list": ("[" * 20_000, ""),
    "deep mapping": ("{a: " * 20_000, "f.yaml:1: nested deeper than 32 levels (flatten it)"),
    "deep block": ("\n".join(" " * i + "a:" for i in range(400)),
                   "f.yaml:33: nested deeper than 32 levels (flatten it)"),
    "deep key": ("? " * 5_000 + "a", ""),
    "duplicate": ("a: 1\nb: 2\na: 3\n",
                  'f.yaml:3: key "a" is written twice, first on line 1 (remove one of them)'),
    "5,000 digits": ("a: " + "9" * 5000,
                     f'f.yaml:1: number "{"9" * 59}…" is out of range (at most {MAX_INT})'),
    "2^63": (f"a: {2**63}",
             f'f.yaml:1: number "{2**63}" is out of range (at most {MAX_INT})'),
    "nan": ("a: .nan", 'f.yaml:1: ".nan" is not a finite number (write a number)'),
    "inf": ("a: -.INF", 'f.yaml:1: "-.INF" is not a finite number (write a number)'),
    "1e999": ("\na: 1e999", 'f.yaml:2: "1e999" is not a finite number (write a smaller number)'),
    "NUL": ("a: b\nc: d\0", "f.yaml:2: NUL in text (remove it)"),
    "escaped NUL": ('a: "\\0"', "f.yaml:1: NUL in text (remove it)"),
    "ESC": ("a: \x1b[31m", "f.yaml:1: control character U+001B in text (remove it)"),
    "escaped ESC": ('a: "\\e[31m"', "f.yaml:1: control character U+001B in text (remove it)"),
    "C1": ("a: \x9b", "f.yaml:1: control character U+009B in text (remove it)"),
    "bidi": ("a: x\u202ey", "f.yaml:1: bidirectional control U+202E in text (remove it)"),
    "surrogate": ("a: \ud800", "f.yaml:1: lone surrogate U+D800 in text (remove it)"),
    "escaped surrogate": ('a: "\\ud800"', ""),
    "not UTF-8": (b"a: 1\nb: \xff", "f.yaml:2: not UTF-8 text (save the file as UTF-8)"),
    "UTF-16": ("a: 1".encode("utf-16"), "f.yaml:1: not UTF-8 text (save the file as UTF-8)"),
    "too long": ("a: 1\n" * 60_000,
                 "f.yaml: 300000 bytes, at most 262144 are read (split it into several files)"),
    "many nodes": ("- a\n" * 50_000,
                   "f.yaml:20000: more than 20000 values (split it into several files)"),
    "many documents": ("---\na\n" * 1000,
                       "f.yaml:1001: more than 500 documents (split it into several files)"),
    "many keys": ("".join(f"k{i}: \n" for i in range(30_000)), ""),
    "many problems": ("a: 1\n" * 1000,
                      'f.yaml:2: key "a" is written twice, first on line 1 (remove one of them)'),
    "python tag": ("a: !!python/object/apply:os.system [id]",
                   ("f.yaml:1: tag tag:yaml.org,2002:python/object/apply:os.system is not accepted "
                   "(remove it)")),
    "binary tag": ("a: !!binary aGk=",
                   "f.yaml:1: tag tag:yaml.org,2002:binary is not accepted (remove it)"),
    "tag directive": ("%TAG ! tag:x,2000:\n---\na: 1", ""),
    "merge": ("a:\n  <<: {b: 1}", "f.yaml:2: merge key << is not accepted (write the fields out)"),
    "list as key": ("[a]: b", "f.yaml:1: a key must be text (write a plain key)"),
    "long scalar": ("a: " + "x" * 20_000,
                    "f.yaml:1: text of 20000 characters, at most 16384 allowed (shorten)"),
    "tab": ("a:\n\tb: 1", ""),
    "unclosed": ('a: "b', ""),
    "colon": ("a: b: c", ""),
    "only a colon": (":" * 50_000, ""),
    "dashes": ("- " * 10_000, ""),
    "quotes": ("'" * 100_001, ""),
    "comments": ("#\n" * 100_000, "-"),
    "flow commas": ("[" + "," * 10_000, ""),
}  # fmt: skip


@pytest.mark.parametrize("loader", LOADERS, ids=lambda cls: cls.__name__)
@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_yaml_is_refused_at_once(name: str, loader: Any) -> None:
    """Cases of trust.md 3.1, each within a second, never another exception."""
    text, words = HOSTILE[name]
    began = time.perf_counter()
    if words == "-":
        assert load_yaml(text, "f.yaml", POLICY, loader=loader) == []
        assert time.perf_counter() - began < 1.0
        return
    with pytest.raises(InputError) as caught:
        load_yaml(text, "f.yaml", POLICY, loader=loader)
    assert time.perf_counter() - began < 1.0
    assert len(caught.value.problems) <= 100
    assert len(str(caught.value)) < 50_000
    said = str(caught.value.problems[0])
    assert said.startswith("f.yaml:")
    if words:
        assert said == words


@pytest.mark.parametrize("loader", LOADERS, ids=lambda cls: cls.__name__)
@pytest.mark.parametrize(
    ("written", "read"),
    [
        ("no", "no"), ("yes", "yes"), ("on", "on"), ("y", "y"), ("True", "True"),
        ("1:30", "1:30"), ("22:00", "22:00"), ("014", "014"), ("0x1f", "0x1f"), ("0o7", "0o7"),
        ("1_000", "1_000"), ("+5", "+5"), (".5", ".5"), ("5.", "5."), ("2026-99-99", "2026-99-99"),
        ("580.95.05", "580.95.05"), ("NaN", "NaN"), ("=", "="), ("10%", "10%"),
        ("null", None), ("~", None), ("", None), ("Null", "Null"),
        ("true", True), ("false", False),
        ("0", 0), ("-0", 0), ("42", 42), ("-7", -7), (str(MAX_INT), MAX_INT),
        ("1.5", 1.5), ("-2.5e-3", -0.0025), ("1e3", 1000.0),
        ('"42"', "42"), ("'true'", "true"), ('""', ""),
    ],
)  # fmt: skip
def test_plain_scalars(written: str, read: object, loader: Any) -> None:
    """JSON's types and nothing of YAML 1.1's guesses."""
    (doc,) = load_yaml(f"a: {written}", "f.yaml", loader=loader)
    assert doc.value == {"a": read}
    assert type(doc.value["a"]) is type(read)


@pytest.mark.parametrize("loader", LOADERS, ids=lambda cls: cls.__name__)
def test_positions(loader: Any) -> None:
    """Scalars stand where they are written, collections at their key, unknown at the parent."""
    text = "# comment\na:\n  b: 1\n  c:\n    - x\n    - {d: é, e: 2}\n---\nf: 1\n"
    first, second = load_yaml(text, "f.yaml", loader=loader)
    assert first.at(("a",)) == (2, 1)
    assert first.at(("a", "b")) == (3, 6)
    assert first.at(("a", "c")) == (4, 3)
    assert first.at(("a", "c", 0)) == (5, 7)
    assert first.at(("a", "c", 1, "e")) == (6, 17)
    assert first.at(("a", "nothing", "here")) == (2, 1)
    assert first.at(()) == (2, 1)
    assert second.where(("f",)) == "f.yaml:8"
    assert first.problem(("a", "x/y~z"), "bad").pointer == "/a/x~1y~0z"


def test_all_problems_of_one_text_are_told() -> None:
    """Not only the first: duplicates, anchors and bad numbers together."""
    with pytest.raises(InputError) as caught:
        load_yaml("a: 1\na: 2\nb: &x 1\nc: .nan\n", "f.yaml")
    assert [str(p) for p in caught.value.problems] == [
        'f.yaml:2: key "a" is written twice, first on line 1 (remove one of them)',
        "f.yaml:3: anchor &x is not accepted (write the value out)",
        'f.yaml:4: ".nan" is not a finite number (write a number)',
    ]


def test_windows_line_ends_and_byte_order_mark() -> None:
    """Files from other editors are read as they are meant."""
    (doc,) = load_yaml("\ufeffa: 1\r\nb: 2\r\n".encode(), "f.yaml")
    assert doc.value == {"a": 1, "b": 2}
    assert doc.at(("b",)) == (2, 4)


def test_load_file(tmp_path: Any) -> None:
    """One document a file; empty is None; what cannot be read is said."""
    path = tmp_path / "c.yaml"
    path.write_text("")
    assert load_file(path).value is None
    path.write_text("a: 1\n---\nb: 1\n")
    with pytest.raises(InputError, match=r"c\.yaml:3: a second document \(keep one"):
        load_file(path)
    with pytest.raises(InputError, match="no such file or directory"):
        load_file(tmp_path / "none.yaml")
    with pytest.raises(InputError, match="is a directory"):
        load_file(tmp_path)


JSON_BAD = {
    '{"a": NaN}': 'f.json:1: not JSON: a value expected, not "NaN"',
    '{"a": -Infinity}': 'f.json:1: not JSON: a value expected, not "-Infinity"',
    '{"a": 1e999}':
        'f.json:1: "1e999" is not a finite number (write a smaller number)',
    '{"a": 1,\n"a": 2}':
        'f.json:2: key "a" is written twice, first on line 1 (remove one of them)',
    '["x",]': 'f.json:1: not JSON: a value expected, not "]"',
    '{"a": 01}': 'f.json:1: not JSON: a value expected, not "01"',
    "{'a': 1}": 'f.json:1: not JSON: a key in double quotes expected, not "\'"',
    '{"a" 1}': 'f.json:1: not JSON: ":" expected, not "1"',
    "[1 2]": 'f.json:1: not JSON: "," or "]" expected, not "2"',
    '{"a": 1} x': "f.json:1: text after the end of the document (remove it)",
    '{"a": "\\ud800"}': "f.json:1: lone surrogate U+D800 in text (remove it)",
    '{"a": "\\u0000"}': "f.json:1: NUL in text (remove it)",
    "": "f.json:1: not JSON: a value expected, not the end",
    "[" * 30_000: "f.json:1: nested deeper than 32 levels (flatten it)",
    '{"a":' * 30_000: "f.json:1: nested deeper than 32 levels (flatten it)",
    "[" + "1," * 30_000: "f.json:1: more than 20000 values (split it into several files)",
    "[" + "1," * 600 + "1]": "f.json:1: more than 500 documents (use several files)",
    "9" * 5000:
        f'f.json:1: number "{"9" * 59}…" is out of range (at most {MAX_INT})',
}  # fmt: skip


@pytest.mark.parametrize("text", JSON_BAD, ids=lambda text: text[:20])
def test_hostile_json(text: str) -> None:
    """RFC 8259 with our limits, each within a second."""
    began = time.perf_counter()
    with pytest.raises(InputError) as caught:
        load_json(text, "f.json")
    assert time.perf_counter() - began < 1.0
    assert str(caught.value.problems[0]) == JSON_BAD[text]


def test_json_positions_and_lists() -> None:
    """A list at the top is several documents; places are counted through lines."""
    first, second = load_json('[\n {"a": 1},\n {"b": {"c": [2]}}\n]\n', "f.json")
    assert first.value == {"a": 1}
    assert second.at(("b", "c", 0)) == (3, 15)
    assert second.start == (3, 2)


def test_large_json_is_linear() -> None:
    """Line counting does not start from the top for each value."""
    entries = ",\n".join(["1" + " " * 40] * 40)
    text = "[" + ",\n".join([f"[{entries}]"] * 450) + "]"
    began = time.perf_counter()
    docs = load_json(text, "f.json")
    assert len(docs) == 450
    assert docs[-1].at((39,)) == (450 * 40, 1)
    assert time.perf_counter() - began < 1.0


TEXT = st.text(
    st.characters(
        exclude_categories=("Cs", "Cc"),
        exclude_characters="\u061c\u200e\u200f\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069"
        "\ufeff\u2028\u2029",
    ),
    max_size=12,
)
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-MAX_INT, MAX_INT) | TEXT
    | st.floats(allow_nan=False, allow_infinity=False),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(TEXT, inner, max_size=4),
    max_leaves=20,
)  # fmt: skip


class NoAlias(yaml.SafeDumper):
    """PyYAML's writer without aliases for equal objects."""

    def ignore_aliases(self, data: Any) -> bool:
        """Always."""
        return True


def _quoted(dumper: yaml.SafeDumper, text: str) -> yaml.ScalarNode:
    """PyYAML writes YAML 1.1, to which 0E0 is a plain string; to YAML 1.2 it is a number."""
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style='"')


NoAlias.add_representer(str, _quoted)


@given(st.dictionaries(TEXT, VALUES, max_size=4))
def test_what_others_write_is_read_back(value: dict[str, Any]) -> None:
    """JSON by the standard library and YAML by PyYAML give the value back."""
    (doc,) = load_json(json.dumps(value), "f.json")
    assert doc.value == value
    (doc,) = load_json(json.dumps(value, ensure_ascii=False, indent=2), "f.json")
    assert doc.value == value
    text = yaml.dump(value, Dumper=NoAlias, allow_unicode=True)
    (doc,) = load_yaml(text, "f.yaml")
    assert doc.value == value


SMALL = Limits(size=4096, nodes=50, depth=8, documents=5, scalar=100)


@given(st.text(max_size=60) | st.text("[]{}:,-?&*!|>'\"%@ \n\t#ab1.~<", max_size=60))
def test_no_text_raises_anything_else(text: str) -> None:
    """Any text: documents within the limits, or InputError with a place."""
    for read, name in ((load_yaml, "f.yaml"), (load_json, "f.json")):
        try:
            docs = read(text, name, SMALL)
        except InputError as error:
            places = [p.where for p in error.problems]
        else:
            places = []
            json.dumps([d.value for d in docs], allow_nan=False).encode()
        assert all(place.startswith(name) for place in places)


@given(st.binary(max_size=60))
def test_no_bytes_raise_anything_else(data: bytes) -> None:
    """The same for bytes."""
    for read in (load_yaml, load_json):
        with contextlib.suppress(InputError):
            read(data, "f", SMALL)
