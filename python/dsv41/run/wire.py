"""The wire of the control connection: proofs, framed lines, their size and their deadlines.

Both ends know a key of 32 bytes. Each sends 32 random bytes; the HMAC-SHA256 of both under the key
is the key of this connection. Whoever connects proves with it that it knows the key, whoever
listens proves it too. After that a message is one line: the HMAC of direction, number and text,
a space, and the text, one JSON object. A line that is longer, late, altered or repeated ends the
connection.
"""

from __future__ import annotations

import asyncio
import contextlib
import hmac
import json
import secrets
import stat
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any

from dsv41.errors import Unsafe
from dsv41.plan import canonical

GREETING = "dsv41.control/1"
LIMIT = 4096  # bytes of a line; a Plan's digest, a cause and a MAC have less than 1,500
KEY_BYTES = 32
SAYS = 1024  # characters of a cause that go over the wire
_CLIENT, _SERVER = b"client", b"server"
Message = dict[str, Any]


class Gone(Exception):
    """The connection ended; `says` is how."""

    def __init__(self, says: str) -> None:
        super().__init__(says)
        self.says = says


class Stranger(Gone):
    """The other end did not prove that it knows the key."""


def read_key(path: Path) -> bytes:
    """The 32 bytes of a key file; Unsafe D420 when it is absent, open to others or no key."""
    try:
        mode = stat.S_IMODE(path.stat().st_mode)
        text = path.read_text(encoding="ascii").strip()
    except (OSError, UnicodeDecodeError) as error:
        says = f"There is no control key at {path}: {getattr(error, 'strerror', None) or error}."
        raise Unsafe("D420", says, fix="dsv41 serve makes it and sends it to every node") from error
    if mode & 0o077:
        says = f"{path} has mode {mode:04o}; expected 0600 or stricter."
        raise Unsafe("D420", says, fix=f"chmod 600 {path}")
    try:
        key = bytes.fromhex(text)
    except ValueError:
        key = b""
    if len(key) != KEY_BYTES:
        says = f"{path} is no key: expected {2 * KEY_BYTES} hex digits, found {len(text)} bytes."
        raise Unsafe("D420", says, fix="dsv41 serve makes a new one and sends it to every node")
    return key


def new_key() -> str:
    """The text of a new key file."""
    return secrets.token_hex(KEY_BYTES) + "\n"


@dataclass(kw_only=True, slots=True)
class Wire:
    """One end of a connection whose other end has proven itself."""

    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter
    session: bytes
    ours: bytes
    theirs: bytes
    sent: int = 0
    heard: int = 0

    async def hear(self, *, seconds: float) -> Message:
        """The next message; Gone when none comes in time, or a wrong one."""
        line = await read_line(self.reader, seconds=seconds)
        proof, _, text = line.partition(b" ")
        if not hmac.compare_digest(proof, self._mac(self.theirs, self.heard, text)):
            raise Stranger("a message was altered on its way")
        self.heard += 1
        return _object(text)

    def send(self, message: Message) -> None:
        """Queue a message; one that cannot be sent shows as a lost connection later."""
        text = canonical(message).encode()
        line = self._mac(self.ours, self.sent, text) + b" " + text + b"\n"
        self.sent += 1
        with contextlib.suppress(OSError, RuntimeError):
            self.writer.write(line)

    async def close(self) -> None:
        """End the connection, with what was sent before on its way."""
        await close(self.writer)

    def _mac(self, direction: bytes, number: int, text: bytes) -> bytes:
        whole = direction + number.to_bytes(8, "little") + text
        return hmac.new(self.session, whole, sha256).hexdigest().encode()


async def greet(
    reader: asyncio.StreamReader, writer: asyncio.StreamWriter, key: bytes
) -> tuple[Wire, Message]:
    """The listening end: the wire and the hello of a peer that knows the key, else Stranger."""
    nonce = secrets.token_hex(32)
    _plain(writer, {"dsv41": GREETING, "nonce": nonce})
    said = _object(await read_line(reader))
    hello, proof = said.get("hello"), said.get("proof")
    if not isinstance(hello, dict) or not isinstance(proof, str):
        raise Stranger("it does not speak this protocol")
    session = _session(key, nonce, str(hello.get("nonce")))
    if not hmac.compare_digest(proof.encode(), _proof(session, _CLIENT, hello)):
        _plain(writer, {"refused": "the control keys differ"})
        raise Stranger("it does not know the control key")
    _plain(writer, {"proof": _proof(session, _SERVER, hello).decode()})
    wire = Wire(reader=reader, writer=writer, session=session, ours=_SERVER, theirs=_CLIENT)
    return wire, hello


async def introduce(
    reader: asyncio.StreamReader, writer: asyncio.StreamWriter, key: bytes, hello: Message
) -> Wire:
    """The connecting end: the wire to one that knows the key, else Stranger."""
    challenge = _object(await read_line(reader))
    if challenge.get("dsv41") != GREETING:
        raise Stranger("it does not speak this protocol")
    whole = {**hello, "nonce": secrets.token_hex(32)}
    session = _session(key, str(challenge.get("nonce")), whole["nonce"])
    _plain(writer, {"hello": whole, "proof": _proof(session, _CLIENT, whole).decode()})
    answer = _object(await read_line(reader))
    if "refused" in answer:
        raise Stranger("it says that the control keys differ")
    if not hmac.compare_digest(str(answer.get("proof")).encode(), _proof(session, _SERVER, whole)):
        raise Stranger("it does not know the control key")
    return Wire(reader=reader, writer=writer, session=session, ours=_CLIENT, theirs=_SERVER)


async def read_line(reader: asyncio.StreamReader, *, seconds: float | None = None) -> bytes:
    """One line without its end; Gone at the end, after `seconds`, or when it is too long."""
    try:
        async with asyncio.timeout(seconds):
            line = await reader.readline()
    except TimeoutError as error:
        raise Gone(f"nothing was heard for {seconds:g} s") from error
    except ValueError as error:
        raise Stranger(f"a line has more than {LIMIT} bytes") from error
    except OSError as error:
        raise Gone(error.strerror or str(error)) from error
    if not line.endswith(b"\n"):
        raise Gone("the connection was closed")
    return line[:-1]


async def close(writer: asyncio.StreamWriter) -> None:
    """End a connection without waiting for the other end for long."""
    writer.close()
    with contextlib.suppress(OSError, TimeoutError):
        async with asyncio.timeout(0.5):
            await writer.wait_closed()
    writer.transport.abort()


def _plain(writer: asyncio.StreamWriter, message: Message) -> None:
    with contextlib.suppress(OSError, RuntimeError):
        writer.write(canonical(message).encode() + b"\n")


def _object(line: bytes) -> Message:
    try:
        data = json.loads(line)
        canonical(data).encode()  # half a surrogate pair is JSON and no text
    except (ValueError, RecursionError) as error:
        raise Stranger("a line is not JSON") from error
    if not isinstance(data, dict):
        raise Stranger("a line is no JSON object")
    return data


def _session(key: bytes, server: str, client: str) -> bytes:
    both = canonical({"client": client, "server": server, "what": GREETING})
    return hmac.new(key, both.encode(), sha256).digest()


def _proof(session: bytes, direction: bytes, hello: Message) -> bytes:
    whole = direction + b" hello " + canonical(hello).encode()
    return hmac.new(session, whole, sha256).hexdigest().encode()
