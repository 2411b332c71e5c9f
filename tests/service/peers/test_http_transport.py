"""The HTTP client of a node that asks others."""

from __future__ import annotations

import pytest

from service.peers.rpc import HttpTransport, NodeAddress, PeerSilent
from tests.servers.ports import free_port


async def test_a_node_that_stops_asks_nobody_and_says_so() -> None:
    """Pages that are read just then name the others as silent; they do not fail."""
    transport = HttpTransport("a secret of all nodes")
    address = NodeAddress("b", "instance", f"http://127.0.0.1:{free_port()}")
    with pytest.raises(PeerSilent, match="b at http"):
        await transport.ask(address, "hot", b"", 5.0)
    await transport.close()
    with pytest.raises(PeerSilent, match="this node is stopping"):
        await transport.ask(address, "hot", b"", 5.0)
