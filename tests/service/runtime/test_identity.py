"""Who a node is, over starts, copies and cuts of the power."""

from __future__ import annotations

import pytest

from service.runtime.identity import DataFolder, NodeIdentity
from service.shipping.missing import MissingSegments
from tailrace.logstore.batch import RunKey
from tailrace.logstore.errors import Damaged, FolderLocked, InvalidName
from tailrace.logstore.keys import MAX_NAME_BYTES
from tests.service.journal.rig import Rig
from tests.simulation.powercut import PowerCut, PowerCutFileSystem

FOLDER = "/data"


def folder(fs: PowerCutFileSystem) -> DataFolder:
    rig = Rig(fs=fs)
    return DataFolder(fs, FOLDER, rig.clock, rig.dice)


def write(fs: PowerCutFileSystem, text: bytes) -> None:
    if fs.stat(f"{FOLDER}/node.json") is not None:
        fs.unlink(f"{FOLDER}/node.json")
    file = fs.open(f"{FOLDER}/node.json", "create")
    file.write([text])
    file.close()


def test_a_folder_keeps_its_incarnation() -> None:
    fs = PowerCutFileSystem()
    first = folder(fs)
    made = first.identity("node")
    assert made.node.startswith("node-")
    assert len(made.incarnation) == 26
    assert not made.registered
    first.release()
    assert folder(fs).identity("node") == made


def test_a_folder_belongs_to_one_process_at_a_time() -> None:
    fs = PowerCutFileSystem()
    first = folder(fs)
    with pytest.raises(FolderLocked):
        folder(fs)
    first.release()
    folder(fs).release()


def test_a_fork_is_another_node_that_knows_its_parents() -> None:
    fs = PowerCutFileSystem()
    first = folder(fs)
    parent = first.identity("node")
    fork = first.forked(parent, name="renamed", base=7, seq=3)
    second = first.forked(fork, name="renamed", base=9, seq=1)
    assert (fork.base, fork.parent_seq, fork.parents) == (7, 3, (parent.node,))
    assert second.parents == (fork.node, parent.node)
    assert len({parent.incarnation, fork.incarnation, second.incarnation}) == 3
    first.release()
    assert folder(fs).identity("renamed") == second


def test_what_the_store_lacks_is_remembered_by_all_that_follow() -> None:
    fs = PowerCutFileSystem()
    first = folder(fs)
    parent = first.identity("node")
    lost = MissingSegments(parent.node, 3, 5, None, 90, 40, (RunKey("p", "r"),))
    more = MissingSegments("node-2", 1, 1, 90, 95, 95)
    fork = first.forked(parent, name="node", base=40, seq=2, missing=[lost])
    second = first.forked(fork, name="node", base=95, seq=0, missing=[more])
    assert second.missing == (more, lost)
    first.release()
    assert folder(fs).identity("node") == second


def test_a_folder_without_losses_stays_readable_for_earlier_versions() -> None:
    fs = PowerCutFileSystem()
    first = folder(fs)
    first.forked(first.identity("node"), name="node", base=40, seq=2)
    file = fs.open(f"{FOLDER}/node.json", "read")
    assert b'"missing"' not in file.pread(file.size(), 0)


@pytest.mark.parametrize("name", ["", "x" * (MAX_NAME_BYTES + 1), "\ud800"])
def test_a_name_that_cannot_be_a_key_is_refused_before_anything_is_made(name: str) -> None:
    fs = PowerCutFileSystem()
    with pytest.raises(InvalidName):
        folder(fs).identity(name)
    assert fs.stat(f"{FOLDER}/node.json") is None


@pytest.mark.parametrize("text", [b"", b"{", b"[]", b"null", b'{"name":"x"}', b'{"parents":[]}'])
def test_a_damaged_identity_is_an_error_with_a_hint_and_never_a_new_node(text: bytes) -> None:
    fs = PowerCutFileSystem()
    made = folder(fs)
    made.identity("node")
    made.release()
    write(fs, text)
    with pytest.raises(Damaged) as caught:
        folder(fs).identity("node")
    assert caught.value.hint


def test_a_power_cut_at_every_call_leaves_the_old_identity_or_the_new_one() -> None:
    call = 0
    while True:
        call += 1
        fs = PowerCutFileSystem(fail_at=call)
        known: list[NodeIdentity] = []
        try:
            place = folder(fs)
            known.append(place.identity("node"))
            known.append(place.forked(known[0], name="node", base=1, seq=1))
        except PowerCut:
            pass
        for seed in range(4):
            after = folder(fs.reboot(seed)).identity("node")
            if len(known) == 2:
                assert after == known[1]
            elif known:
                assert after == known[0] or after.parents == (known[0].node,)
        if len(fs.calls) < call:
            break
    assert call > 10
