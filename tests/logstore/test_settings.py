"""Variables in a settings file: the rules of Dropwizard's EnvironmentVariableSubstitutor(false)."""

from __future__ import annotations

import pytest

from tailrace.logstore.errors import InvalidInput
from tailrace.logstore.settings import substituted

VARIABLES = {
    "TEST": "test_value",
    "EMPTY": "",
    "OTHER": "<${TEST}>",
    "FAR": "${MISSING:-far}",
    "A": "${B}",
    "B": "${A}",
    "SELF": "${SELF}",
}


@pytest.mark.parametrize(
    ("text", "result"),
    [
        ("${TEST}", "test_value"),
        ("no replacement", "no replacement"),
        ("${DOES_NOT_EXIST}", "${DOES_NOT_EXIST}"),
        ("${DOES_NOT_EXIST:-default}", "default"),
        ("${DOES_NOT_EXIST:-${TEST}}", "${TEST}"),
        ("${TEST} ${DOES_NOT_EXIST:-default}", "test_value default"),
        ("${TEST:-not this}", "test_value"),
        ("a: ${EMPTY:-not this}\n", "a: \n"),
        ("a: ${NONE:-}\n", "a: \n"),
        ('a: ${NONE:-""}\n', 'a: ""\n'),
        ("a: ${NONE:-[a, b]}\n", "a: [a, b]\n"),
        ("${NONE:-http://h:1/:-x}", "http://h:1/:-x"),
        ("${OTHER} ${FAR}", "<test_value> far"),
        ("${TEST}${TEST}", "test_valuetest_value"),
        ("$${TEST}", "${TEST}"),
        ("$$${TEST}", "$${TEST}"),
        ("$${NONE:-${TEST}}", "${NONE:-test_value}"),
        ("$${TEST", "$${TEST"),
        ("$TEST $ {TEST} ${TEST", "$TEST $ {TEST} ${TEST"),
        ("${}", "${}"),
    ],
)
def test_variables_are_replaced_as_dropwizard_does(text: str, result: str) -> None:
    assert substituted(text, VARIABLES) == result


@pytest.mark.parametrize(("name", "chain"), [("A", "A needs B needs A"), ("SELF", "SELF needs SE")])
def test_a_variable_that_needs_itself_is_refused(name: str, chain: str) -> None:
    with pytest.raises(InvalidInput, match=chain):
        substituted(f"a: ${{{name}}}", VARIABLES)
