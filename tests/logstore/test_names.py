from __future__ import annotations

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from tailrace.logstore import keys
from tailrace.logstore.batch import RunKey
from tailrace.logstore.errors import InvalidName
from tailrace.logstore.keys import check_name, decode, encode

NAMES = st.text(st.characters(codec="utf-8"), max_size=400)
HARD = st.text(st.sampled_from("./%~\0 _-aé\U0001f600"), max_size=120)
ANY_NAME = NAMES | HARD


@given(ANY_NAME)
@example("")
@example("..")
@example("%")
@example("a~b")
@example("x" * 200)
@example("." + "x" * 198)
def test_a_component_is_safe_and_gives_the_name_back(name: str) -> None:
    component = encode(name)
    assert component not in ("", ".", "..")
    assert not component.startswith(".")
    assert "/" not in component
    assert len(component.encode()) <= 200
    assert component.isascii()
    assert component.isprintable()
    assert decode(component) == (None if "~" in component else name)


@given(ANY_NAME, ANY_NAME)
@example("", "%")
@example("a/b", "a%2Fb")
@example(".a", "%2Ea")
@example("x" * 400, "x" * 401)
def test_two_names_never_share_a_component(one: str, other: str) -> None:
    assert (encode(one) == encode(other)) == (one == other)


@given(st.text(st.characters(codec="utf-8"), min_size=201, max_size=600))
def test_a_long_name_is_cut_at_a_whole_escape(name: str) -> None:
    head, mark, digest = encode(name).partition("~")
    assert mark == "~"
    assert len(digest) == 40
    assert decode(head) is not None or "%" in head


def test_what_stays_readable() -> None:
    assert encode("mysql_prod.sales-db.Run_7") == "mysql_prod.sales-db.Run_7"
    assert encode(".hidden") == "%2Ehidden"
    assert encode("..") == "%2E."
    assert encode("a b/ü\0") == "a%20b%2F%C3%BC%00"


@pytest.mark.parametrize("component", ["", ".a", "%2", "%zz", "%2e", "%61", "%FF", "a/b", "é"])
def test_a_component_that_encode_never_gives_has_no_name(component: str) -> None:
    assert decode(component) is None


@pytest.mark.parametrize("name", ["", "x" * 4097, "é" * 2049, "\ud800"])
def test_names_that_are_refused(name: str) -> None:
    with pytest.raises(InvalidName) as caught:
        check_name(name, "fqn")
    assert caught.value.field == "fqn"
    assert caught.value.hint


@pytest.mark.parametrize("name", ["x", "/", "..", "\0", "x" * 2000, "é" * 2048, "\U0001f600"])
def test_names_that_are_taken(name: str) -> None:
    check_name(name, "run")


@given(ANY_NAME, ANY_NAME, ANY_NAME)
def test_no_key_leaves_its_prefix(fqn: str, run: str, node: str) -> None:
    key = RunKey(fqn, run)
    for prefix, spelled, depth in (
        ("runs/", keys.run_manifest(key), 3),
        ("pipeline-logs/", keys.logs(keys.PREFIX, key), 4),
        ("pipeline-logs/", keys.partial(keys.PREFIX, key), 4),
        ("pipeline-logs/", keys.chunk_text(keys.PREFIX, key, "0" * 26), 5),
        ("pipeline-logs/", keys.chunk_index(keys.PREFIX, key, "0" * 26), 5),
        ("pipeline-logs/.active/", keys.active(keys.PREFIX, key, node), 5),
        ("segments/", keys.segment(node, 1), 3),
        ("segments/.aside/", keys.quarantine_marker(node, 1), 4),
        ("coordination/text/", keys.watermark(node), 3),
        ("coordination/nodes/", keys.node_registration(node), 3),
        ("coordination/deleted/", keys.deleted_run(key, "0" * 26), 4),
        ("coordination/deleted/", keys.deleted_pipeline(fqn), 4),
    ):
        assert spelled.startswith(prefix)
        components = spelled.split("/")
        assert len(components) == depth
        assert all(part not in ("", ".", "..") for part in components)
        assert len(spelled) < 1024  # S3's limit


@given(ANY_NAME, ANY_NAME)
def test_a_run_is_found_from_its_manifest(fqn: str, run: str) -> None:
    spelled = keys.run_manifest(RunKey(fqn, run))
    assert keys.parse_run_manifest(spelled) == (None if "~" in spelled else (fqn, run))


def test_segments_are_found_from_their_keys() -> None:
    assert keys.segment("node-01", 7) == "segments/node-01/00000000000000000007.parquet"
    assert keys.parse_segment(keys.segment("node-01", 7)) == ("node-01", 7)
    for other in (
        keys.quarantine_marker("n", 1),
        "segments/n/1.parquet",
        "runs/a/b.json",
        "segments/n",
    ):
        assert keys.parse_segment(other) is None


def test_a_run_and_its_pipeline_are_deleted_under_different_keys() -> None:
    assert keys.deleted_pipeline("f") != keys.deleted_run(RunKey("f", ".pipeline"), "")
    assert keys.deleted_run(RunKey("f", "r"), "T") == "coordination/deleted/f/r~T"
