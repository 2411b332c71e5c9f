"""Lines of containers: CRI and Docker, parts of lines, and entries of several lines in them."""

from __future__ import annotations

from typing import Any

import pytest

from tailrace.forwarder.model import FileFacts
from tests.forwarder.entries.packing import FILE, read

POD = FileFacts(
    "/var/log/pods/some-ns_kube-controller-kind_49cc7c1fd3702c40b2686ea7486091d6/kube-controller/1.log"
)
K8S = {
    "k8s.namespace.name": "some-ns",
    "k8s.pod.name": "kube-controller-kind",
    "k8s.pod.uid": "49cc7c1fd3702c40b2686ea7486091d6",
    "k8s.container.name": "kube-controller",
    "k8s.container.restart_count": "1",
}
CONTAINER = [{"type": "container"}]


@pytest.mark.parametrize("form", ["", "containerd"])
def test_containerd(form: str) -> None:
    line = b"2023-06-22T10:27:25.813799277Z stdout F standalone containerd line\n"
    assert read(line, file=POD, operators=[{"type": "container", "format": form}]) == [
        {
            "ts": 1687429645.813799,
            "attributes": {**K8S, "log.iostream": "stdout"},
            "message": "standalone containerd line",
        }
    ]


@pytest.mark.parametrize("form", ["", "crio"])
def test_crio(form: str) -> None:
    line = b"2024-04-13T07:59:37.505201169-05:00 stderr F standalone crio line\n"
    found = read(line, operators=[{"type": "container", "format": form}])
    assert found == [
        {
            "ts": 1713013177.505201,
            "attributes": {"log.iostream": "stderr"},
            "message": "standalone crio line",
        }
    ]


@pytest.mark.parametrize("form", ["", "docker"])
def test_docker(form: str) -> None:
    line = b'{"log":"INFO: here\\n","stream":"stdout","time":"2024-03-30T08:31:20.545192187Z"}\n'
    found = read(line, file=POD, operators=[{"type": "container", "format": form}])
    assert found == [
        {
            "ts": 1711787480.545192,
            "attributes": {**K8S, "log.iostream": "stdout"},
            "message": "INFO: here",
        }
    ]


def test_without_metadata_of_the_path() -> None:
    line = b"2023-06-22T10:27:25Z stdout F x\n"
    operator = {"type": "container", "add_metadata_from_filepath": False}
    assert read(line, file=POD, operators=[operator])[0]["attributes"] == {"log.iostream": "stdout"}


@pytest.mark.parametrize("step", [1, 40, 10_000])
def test_parts_are_joined_those_of_each_stream_apart(step: int) -> None:
    data = (
        b"2023-06-22T10:27:25.000000001Z stdout P multi \n"
        b"2023-06-22T10:27:26.000000000Z stderr P other\n"
        b"2023-06-22T10:27:27.000000000Z stdout F line\n"
        b"2023-06-22T10:27:28.000000000Z stderr F  stream\n"
        b'{"log":"half ","stream":"stdout","time":"2024-03-30T08:31:20Z"}\n'
        b'{"log":"whole\\n","stream":"stdout","time":"2024-03-30T08:31:21Z"}\n'
    )
    found = read(data, step=step, operators=CONTAINER)
    assert [(r["ts"], r["message"]) for r in found] == [
        (1687429645.0, "multi line"),
        (1687429646.0, "other stream"),
        (1711787480.0, "half whole"),
    ]


@pytest.mark.parametrize("step", [1, 40, 10_000])
def test_lines_of_containers_are_joined_to_entries(step: int) -> None:
    said = ["java.lang.Error: x", "\tat a.b.C(D.java:1)", "done"]
    data = "".join(f"2023-06-22T10:27:25Z stdout F {line}\n" for line in said).encode()
    data += b"2023-06-22T10:27:25Z stderr F apart\n"
    found = read(data, step=step, operators=CONTAINER, multiline={"builtin": "java"})
    expected = ["java.lang.Error: x\n\tat a.b.C(D.java:1)", "done", "apart"]
    assert sorted(r["message"] for r in found) == sorted(expected)
    start = read(data, step=step, operators=CONTAINER, multiline={"line_start_pattern": "^[jd]"})
    assert [r["message"] for r in start if r["attributes"]["log.iostream"] == "stdout"] == expected[
        :2
    ]


def test_a_quiet_stream_holds_no_other_back() -> None:
    lines = [b"2023-06-22T10:27:25Z stderr F once\n"]
    lines += [b"2023-06-22T10:27:25Z stdout F line %d\n" % number for number in range(400)]
    keys: dict[str, Any] = {"operators": CONTAINER, "multiline": {"continuation_pattern": r"\s"}}
    found = read(b"".join(lines), step=1000, **keys)
    assert len(found) == 401
    assert found.index(next(r for r in found if r["message"] == "once")) < 150


def test_what_is_no_line_of_a_container_is_sent_as_it_is_or_dropped() -> None:
    data = b"no container's\n{broken\n2023-06-22T10:27:25Z stdout F x\n"
    data += b"2023-13-99T00:00:00Z stdout F y\n"
    sent = [r["message"] for r in read(data, operators=CONTAINER)]
    assert sent == ["no container's", "{broken", "x", "2023-13-99T00:00:00Z stdout F y"]
    dropped = read(data, file=FILE, operators=[{"type": "container", "on_error": "drop"}])
    assert [r["message"] for r in dropped] == ["x"]


def test_a_line_of_another_stream_is_none_of_docker() -> None:
    lines = b"".join(
        b'{"log":"x","stream":"s%d","time":"2024-03-30T08:31:20Z"}\n' % number
        for number in range(3)
    )
    found = read(lines, operators=CONTAINER)
    assert [record["message"] for record in found] == lines.decode().splitlines()
