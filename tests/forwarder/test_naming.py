"""Paths become runs: shipped templates on paths as they are found, and those of the
configuration.
"""

from __future__ import annotations

from typing import Any

import pytest

from tailrace.forwarder.naming import Namer, RunName
from tailrace.logstore.errors import InvalidInput
from tests.forwarder.entries.packing import source

PODS = "/var/log/pods/"
AIRFLOW = "/opt/airflow/logs/"


def name(path: str, **keys: Any) -> RunName:
    keys.setdefault("fqn", "")
    return Namer(source(**keys), host="node-1").name(path, "01ABC")


@pytest.mark.parametrize(
    ("path", "fqn", "run"),
    [
        (
            "kube-system_coredns-7db6d8ff4d-x2k9p_0f3bd7f0-5a8d-4b0a-9c1e-0a4f6e1d2c3b/coredns/0.log",
            "kube-system.coredns-7db6d8ff4d-x2k9p.coredns",
            "0f3bd7f0-5a8d-4b0a-9c1e-0a4f6e1d2c3b/0",
        ),
        (
            "kube-system_kube-apiserver-master_49cc7c1fd3702c40b2686ea7486091d6/kube-apiserver/12.log",
            "kube-system.kube-apiserver-master.kube-apiserver",
            "49cc7c1fd3702c40b2686ea7486091d6/12",
        ),
        (
            "shop_orders-1_aa-01/main/3.log.20260102-030405.gz",
            "shop.orders-1.main",
            "aa-01/3",
        ),
        ("shop_orders-1_aa-01/main.v2/3.log.20260102-030405", "shop.orders-1.main.v2", "aa-01/3"),
    ],
)
def test_pods(path: str, fqn: str, run: str) -> None:
    assert name(PODS + path, template="pods") == (fqn, run)


@pytest.mark.parametrize(
    ("path", "fqn", "run"),
    [
        (
            "dag_id=etl/run_id=scheduled__2026-01-02T00:00:00+00:00/task_id=load/attempt=1.log",
            "etl.load",
            "scheduled__2026-01-02T00:00:00+00:00/attempt=1",
        ),
        (
            "dag_id=etl/run_id=manual__x/task_id=group.load/map_index=7/attempt=2.log",
            "etl.group.load",
            "manual__x/map_index=7/attempt=2",
        ),
        (
            "dag_id=etl/run_id=manual__x/task_id=wait/attempt=1.log.trigger.42.log",
            "etl.wait",
            "manual__x/attempt=1.trigger.42",
        ),
    ],
)
def test_airflow(path: str, fqn: str, run: str) -> None:
    assert name(AIRFLOW + path, template="airflow") == (fqn, run)


def test_a_template_may_have_a_run_of_its_own() -> None:
    path = PODS + "shop_orders-1_aa-01/main/3.log"
    assert name(path, template="pods", run="{pod}-{id}").run == "orders-1-01ABC"


@pytest.mark.parametrize(
    ("keys", "fqn", "run"),
    [
        ({"fqn": "app"}, "app", "01ABC"),
        ({"fqn": "{host}.{stem}", "run": "{name}"}, "node-1.orders", "orders.log.1"),
        ({"fqn": "{0}.{-2}", "run": "{source}-{id}"}, "srv.shop", "file_log-01ABC"),
        (
            {"path_pattern": "/srv/(?P<team>[a-z]+)/.*", "fqn": "{team}.{{x}}"},
            "shop.{x}",
            "01ABC",
        ),
    ],
)
def test_places_of_the_configuration(keys: dict[str, Any], fqn: str, run: str) -> None:
    assert name("/srv/shop/orders.log.1", **keys) == (fqn, run)


@pytest.mark.parametrize(
    ("keys", "says"),
    [
        ({"template": "pods"}, "does not match /var/log/pods"),
        ({"template": "airflow"}, "does not match …/dag_id"),
        ({"path_pattern": "/var/(?P<a>.*)", "fqn": "{a}"}, "does not match path_pattern"),
        ({"path_pattern": "/srv/shop/(?P<a>x?).*", "fqn": "{a}"}, "fqn would be empty"),
        ({"fqn": "a", "run": "{9}"}, "run would be empty"),
    ],
)
def test_a_path_that_has_no_run_is_an_error(keys: dict[str, Any], says: str) -> None:
    with pytest.raises(InvalidInput, match=says) as raised:
        name("/srv/shop/orders.log", **keys)
    assert raised.value.hint


@pytest.mark.parametrize("text", ["{team}", "{", "{}", "{name!r"])
def test_a_place_that_there_is_not_is_refused_before_any_file(text: str) -> None:
    with pytest.raises(InvalidInput, match="fqn: "):
        Namer(source(fqn=text), host="h")


def test_a_path_that_is_no_utf_8_has_a_name_that_is() -> None:
    assert name("/srv/a\udcff.log", fqn="{name}").fqn == "a\ufffd.log"
