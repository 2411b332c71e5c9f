"""The pages for users of other systems name what Tailrace takes over from these, as it does."""

from __future__ import annotations

import re
from pathlib import Path

from tailrace.coordination.settings import DynamoDbSettings
from tailrace.forwarder.config.source import SUPPORTED
from tailrace.logstore.openmetadata_settings import translate
from tailrace.pipelines.logback import convert

USE = Path(__file__).parents[2] / "docs" / "use"
APPENDER = """<appender name="OUT" class="x.ConsoleAppender"/>
<root level="ALL"><appender-ref ref="OUT"/></root>"""


def rows(page: str, heading: str) -> list[list[list[str]]]:
    """The words in code of each cell of the table below a heading."""
    text = (USE / page).read_text().partition(f"## {heading}\n")[2].partition("\n## ")[0]
    lines = [line for line in text.splitlines() if line.startswith("| ")][1:]
    return [[re.findall(r"`([^`]+)`", cell) for cell in line.split("|")[1:-1]] for line in lines]


def test_openmetadatas_keys_become_the_settings_that_the_page_names() -> None:
    table = [row for row in rows("from-openmetadata.md", "Settings") if row[0]]
    ours = {
        key: setting
        for keys, settings in table
        for key, setting in zip(keys, settings, strict=False)
    }
    section: dict[str, object] = {"type": "s3", "bucketName": "logs"}
    names = {key for row in table for key in row[0]} - {"type", "enabled", "awsConfig"}
    of_aws = {key for key in names if re.match(r"aws|assume|endPoint|profile", key)}
    for key in names - of_aws - {"bucketName"}:
        one = {"enableServerSideEncryption": "true", "sseAlgorithm": "aws:kms"}.get(key, "7")
        translate({"logStorageConfiguration": {**section, key: one}})
    for key in of_aws:
        role = {"assumeRoleArn": "arn"} if key.startswith("assumeRoleS") else {}
        translate({"logStorageConfiguration": {**section, "awsConfig": {**role, key: "x"}}})
    flat = {key: name for key, name in ours.items() if name.startswith("runs.")}
    assert len(flat) == 8
    for key, name in flat.items():
        content, _ = translate({"logStorageConfiguration": {"type": "default", key: "7"}})
        assert name.partition(".")[2] in content["runs"], key


def test_logbacks_properties_become_the_keys_that_the_page_names() -> None:
    table = rows("from-cdap.md", "CDAP's settings")
    ours = {keys[0]: settings[0] for keys, settings in table if settings}
    assert len(ours) == 4
    for key, name in ours.items():
        value = "0.5" if "ratio" in key else "7"
        text = f'<property name="{key}" value="{value}"/>{APPENDER}'
        found = convert(f"<configuration>{text}</configuration>".encode(), "logback")
        assert name in found.content, key


def test_the_pages_name_every_operator_and_every_key_of_dynamodb() -> None:
    collector = (USE / "from-opentelemetry-collector.md").read_text()
    assert [name for name in SUPPORTED if f"`{name}`" not in collector] == []
    prepper = (USE / "from-data-prepper.md").read_text()
    assert [name for name in DynamoDbSettings.model_fields if f"`{name}`" not in prepper] == []
