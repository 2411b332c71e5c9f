"""A few lines of YAML stand for no more than a machine holds, whatever reads them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import yaml

from service.access.rules import read as read_rules
from service.settings import load_settings
from tailrace.forwarder.config.load import read as read_forwarder
from tailrace.logstore.bounded_yaml import MAX_DEPTH, MAX_NODES, load_yaml
from tailrace.logstore.errors import InvalidInput
from tailrace.pipelines.appenders.registry import AppenderRegistry
from tailrace.pipelines.definition import read as read_pipeline

LAUGHS = "a0: &a0 [x, x, x, x, x, x, x, x, x, x]\n" + "".join(
    f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 10)}]\n" for n in range(1, 9)
)
READERS: dict[str, Callable[[str], object]] = {
    "service": lambda path: load_settings({}, config=path),
    "rules": read_rules,
    "forwarder": read_forwarder,
    "pipeline": lambda path: read_pipeline(path, AppenderRegistry()),
}
TEXTS = {
    "laughs": f"{LAUGHS}name: p\nappenders: *a8\n",
    "merged": LAUGHS.replace("[x,", "[{x: 1},").replace(" x", " {x: 1}") + "b: {<<: *a8}\n",
    "holds itself": "name: &a {b: *a}\n",
    "deep lists": "name: " + "[" * 100_000,
    "deep keys": "name: " + "{a: " * 100_000,
    "deep dashes": "- " * 100_000 + "a",
    "no date": "name: 2026-13-45\n",
    "no number": f"name: {'9' * 5000}\n",
    "a key of keys": "? {a: b}\n: c\n",
    "many": "name: [" + "a," * MAX_NODES + "]\n",
    "an unknown tag": "name: !!python/object/apply:os.system ['true']\n",
    "binary": "name: !!binary '*'\n",
    "control": "name: \x07\n",
    "two": "---\na: b\n---\nc: d\n",
}


@pytest.mark.parametrize("reader", READERS)
@pytest.mark.parametrize("text", TEXTS)
def test_every_reader_refuses_it_in_a_sentence(tmp_path: Path, reader: str, text: str) -> None:
    path = tmp_path / "tailrace.yaml"
    path.write_text(TEXTS[text])
    with pytest.raises(InvalidInput):
        READERS[reader](str(path))


def test_aliases_and_depth_within_the_bounds_are_as_in_any_yaml() -> None:
    for text in (
        "a: &x {b: [1, 2]}\nc: *x\nd: {<<: *x, e: *x}\n",
        "[" * (MAX_DEPTH - 1) + "]" * (MAX_DEPTH - 1),
        "a: 2026-11-30\nb: 1e3\nc: ~\n",
        "",
    ):
        assert load_yaml(text) == yaml.safe_load(text)
    many = load_yaml("[" + "a," * (MAX_NODES - 2) + "]")
    assert len(many) == MAX_NODES - 2
