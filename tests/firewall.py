"""A firewall in a network namespace: nothing comes in but answers. Rules of nftables, over netlink;
no program of them.

table inet closed { chain in { type filter hook input priority 0; policy drop;
    ct state established,related accept
    iif lo accept } }
"""

import ctypes
import os
import socket
import struct
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

CLONE_NEWNET = 0x40000000
NETLINK_NETFILTER = 12
NFNL_SUBSYS_NFTABLES = 10
BATCH_BEGIN, BATCH_END = 16, 17
NEWTABLE, NEWCHAIN, NEWRULE = 0, 3, 6
REQUEST, ACK, CREATE, APPEND, ERROR = 1, 4, 0x400, 0x800, 2
INET, LOCAL_IN, DROP, ACCEPT = 1, 1, 0, 1
CT_STATE, ESTABLISHED_RELATED, IIF, LOOPBACK = 0, 0x2 | 0x4, 4, 1
NOT_EQUAL, EQUAL = 1, 0
VERDICT_REGISTER, REGISTER = 0, 1


def close_inbound(namespace: str) -> None:
    """Drop what others begin to send into a namespace; OSError where the kernel has no nftables."""
    table, chain = _text(1, "closed"), "in"
    hook = _nest(4, _number(1, LOCAL_IN), _number(2, 0))
    established = [
        _expression("ct", _number(1, REGISTER), _number(2, CT_STATE)),
        _expression(
            "bitwise",
            _number(1, REGISTER),
            _number(2, REGISTER),
            _number(3, 4),
            _data(4, struct.pack("=I", ESTABLISHED_RELATED)),
            _data(5, bytes(4)),
        ),
        _compare(NOT_EQUAL, 0),
    ]
    loopback = [
        _expression("meta", _number(1, REGISTER), _number(2, IIF)),
        _compare(EQUAL, LOOPBACK),
    ]
    verdict = _nest(2, _nest(2, _number(1, ACCEPT)))
    accept = _expression("immediate", _number(1, VERDICT_REGISTER), verdict)
    messages = [
        _message(NEWTABLE, CREATE, table),
        _message(
            NEWCHAIN, CREATE, table, _text(3, chain), hook, _number(5, DROP), _text(7, "filter")
        ),
        *(
            _message(NEWRULE, CREATE | APPEND, table, _text(2, chain), _nest(4, *rule, accept))
            for rule in (established, loopback)
        ),
    ]
    with (
        _inside(namespace),
        socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, NETLINK_NETFILTER) as netlink,
    ):
        netlink.sendall(b"".join([_batch(BATCH_BEGIN), *messages, _batch(BATCH_END)]))
        for _ in messages:
            answer = netlink.recv(1 << 16)
            kind, code = (
                struct.unpack_from("=H", answer, 4)[0],
                struct.unpack_from("=i", answer, 16)[0],
            )
            if kind == ERROR and code:
                raise OSError(-code, f"nftables: {os.strerror(-code)}")


@contextmanager
def _inside(namespace: str) -> Iterator[None]:
    """This thread in another network namespace."""
    libc = ctypes.CDLL(None, use_errno=True)
    with (
        Path("/proc/thread-self/ns/net").open(encoding="utf-8") as own,
        Path(f"/run/netns/{namespace}").open(encoding="utf-8") as other,
    ):
        if libc.setns(other.fileno(), CLONE_NEWNET):
            raise OSError(ctypes.get_errno(), "setns")
        try:
            yield
        finally:
            libc.setns(own.fileno(), CLONE_NEWNET)


# --- messages of netlink, as in linux/netfilter/nf_tables.h ----------


def _attribute(kind: int, content: bytes) -> bytes:
    return struct.pack("=HH", len(content) + 4, kind) + content + bytes(-len(content) % 4)


def _nest(kind: int, *attributes: bytes) -> bytes:
    return _attribute(kind | 0x8000, b"".join(attributes))


def _number(kind: int, value: int) -> bytes:
    return _attribute(kind, struct.pack(">I", value))


def _text(kind: int, value: str) -> bytes:
    return _attribute(kind, value.encode() + b"\0")


def _data(kind: int, value: bytes) -> bytes:
    return _nest(kind, _attribute(1, value))


def _expression(name: str, *attributes: bytes) -> bytes:
    return _nest(1, _text(1, name), _nest(2, *attributes))


def _compare(how: int, value: int) -> bytes:
    return _expression(
        "cmp", _number(1, REGISTER), _number(2, how), _data(3, struct.pack("=I", value))
    )


def _message(kind: int, flags: int, *attributes: bytes) -> bytes:
    body = struct.pack(">BBH", INET, 0, 0) + b"".join(attributes)
    header = struct.pack(
        "=IHHII", len(body) + 16, NFNL_SUBSYS_NFTABLES << 8 | kind, REQUEST | ACK | flags, 1, 0
    )
    return header + body


def _batch(kind: int) -> bytes:
    return struct.pack("=IHHII", 20, kind, REQUEST, 0, 0) + struct.pack(
        ">BBH", 0, 0, NFNL_SUBSYS_NFTABLES
    )
