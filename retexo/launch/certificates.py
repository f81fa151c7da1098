"""A node's certificates: reads and checks its folder of credentials, and makes the TLS 1.3 context.

    key.pem            this site's private key, readable only by its owner
    certificate.pem    the site's certificate, signed by the authority
    authority.pem      the authority's certificate
    revoked.pem        the authority's list of revoked certificates, with a number (RFC 5280)
    members.json       the sites: {"number": N, "members": [{"name": ..., "fingerprint": ...}, ...]}
    members.sig        the authority's signature of members.json (`openssl dgst -sha256 -sign`)

Members are listed by node_rank; a hub comes last. A fingerprint is the SHA-256 of a certificate, so
a certificate belongs to one name and one node. `retexo credentials` creates these files.
"""

import hashlib
import json
import ssl
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, TypeVar

from partitioning.errors import InputError
from partitioning.file_io import UNREADABLE, check_types, read_bytes, reading

T = TypeVar("T")


@dataclass(frozen=True)
class Member:
    """A site of the run."""

    name: str
    fingerprint: str
    """SHA-256 of its certificate, in hex."""


@dataclass(frozen=True)
class Credentials:
    """The checked content of a folder, without the private key."""

    folder: Path
    members: tuple[Member, ...]
    """By node."""
    numbers: str
    """Numbers of the two lists that the authority has signed; equal at all members."""

    def context(self, *, accepted: bool) -> ssl.SSLContext:
        """A context for TLS 1.3 with certificates on both sides.

        `node_of` then identifies the peer.
        """
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER if accepted else ssl.PROTOCOL_TLS_CLIENT)
        context.minimum_version = ssl.TLSVersion.TLSv1_3
        context.check_hostname = False  # node_of compares the whole certificate, not only its name
        context.verify_mode = ssl.CERT_REQUIRED
        context.verify_flags |= ssl.VERIFY_CRL_CHECK_LEAF | ssl.VERIFY_X509_STRICT
        context.load_cert_chain(self.folder / "certificate.pem", self.folder / "key.pem")
        for name in ("authority.pem", "revoked.pem"):
            context.load_verify_locations(self.folder / name)
        if accepted:
            context.num_tickets = 0  # no session resumption: each connection checks certificates
        return context

    def node_of(self, certificate: bytes | None) -> int | None:
        """The node that a certificate, in DER, belongs to; None for no member's certificate."""
        found = hashlib.sha256(certificate or b"").hexdigest()
        nodes = [node for node, member in enumerate(self.members) if member.fingerprint == found]
        return nodes[0] if nodes else None


def read_credentials(folder: Path, node: int, num_nodes: int) -> Credentials:
    """Read and check the credentials of a node; InputError names the file and what is wrong."""
    x509 = import_x509()
    _check_key(folder / "key.pem")
    certificate = read_pem(folder / "certificate.pem", x509.load_pem_x509_certificate)
    authority = read_pem(folder / "authority.pem", x509.load_pem_x509_certificate)
    revoked = read_revocations(folder, authority)
    members, number = _read_members(folder, authority.public_key())
    fingerprint = hashlib.sha256(
        certificate.public_bytes(import_serialization().Encoding.DER)
    ).hexdigest()
    own_nodes = [node for node, each in enumerate(members) if each.fingerprint == fingerprint]
    if len(members) not in (num_nodes, num_nodes + 1) or own_nodes != [node]:
        listed = ", ".join(f"{member.name} {index}" for index, member in enumerate(members))
        own = (
            f"this certificate belongs to node {own_nodes[0]}"
            if own_nodes
            else "this certificate is not among them"
        )
        raise InputError(
            f"node_rank={node}: {folder / 'members.json'} lists {listed}, and {own}; "
            f"list each of the {num_nodes} sites once, by node_rank"
        )
    if not certificate.not_valid_before_utc <= datetime.now(UTC) <= certificate.not_valid_after_utc:
        raise InputError(
            f"{folder / 'certificate.pem'}: not valid at this time; ask the authority for a new one"
        )
    if revoked.get_revoked_certificate_by_serial_number(certificate.serial_number) is not None:
        raise InputError(
            f"{folder / 'certificate.pem'}: was revoked; ask the authority for a new one"
        )
    crl_number = revocation_number(folder / "revoked.pem", revoked)
    found = Credentials(folder, members, f"members {number}, revoked {crl_number}")
    try:
        found.context(accepted=False)
    except ssl.SSLError as error:
        raise InputError(
            f"{folder}: key.pem and certificate.pem do not fit together: {error.reason}"
        ) from error
    return found


def _check_key(path: Path) -> None:
    """InputError if the key is missing, or others may read it."""
    try:
        mode = path.stat().st_mode
    except OSError as error:
        raise InputError(
            f"distributed.credentials: {path}: {error.strerror}; see retexo credentials"
        ) from error
    if mode & 0o077:
        raise InputError(
            f"{path}: others may read it (mode {mode & 0o777:o}); chmod 600 it, or make a new key"
        )
    read_key(path)


def read_key(path: Path) -> Any:
    """Read a private key.

    Raises InputError if it is encrypted, since nobody may be there to enter a pass phrase.
    """

    def load(content: bytes) -> Any:
        try:
            return import_serialization().load_pem_private_key(content, None)
        except TypeError:
            raise InputError(
                f"{path}: is encrypted; decrypt it with openssl pkey -in {path} -out NEW and"
                " replace it by NEW"
            ) from None

    return read_pem(path, load)


def read_pem(path: Path, load: Callable[[bytes], T]) -> T:
    """The result of `load` for the content of a regular file; InputError names the file."""
    with naming_file(path):
        return load(read_bytes(path))


@contextmanager
def naming_file(path: Path) -> Iterator[None]:
    """Turn the errors of a damaged file, also when it is first used, into an InputError."""
    x509 = import_x509()
    from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm

    foreign = (x509.InvalidVersion, x509.DuplicateExtension, x509.ExtensionNotFound)
    try:
        yield
    except InputError:
        raise
    except OSError as error:
        raise InputError(f"{path}: {error.strerror}; see retexo credentials --help") from error
    except (*UNREADABLE, *foreign, InvalidSignature, UnsupportedAlgorithm) as error:
        reason = str(error) or type(error).__name__
        raise InputError(
            f"{path}: cannot be read: {reason}; get it again from its source"
        ) from error


def read_revocations(folder: Path, authority: Any) -> Any:
    """The list of revoked certificates; InputError unless this authority has signed it."""
    path = folder / "revoked.pem"
    revoked = read_pem(path, import_x509().load_pem_x509_crl)
    with naming_file(path):
        if not revoked.is_signature_valid(authority.public_key()):
            raise InputError(
                f"{path}: was not signed by authority.pem; get it again from the authority"
            )
    return revoked


def revocation_number(path: Path, revoked: Any) -> int:
    """The number of a list of revoked certificates; InputError without one."""
    x509 = import_x509()
    with naming_file(path):
        for extension in revoked.extensions:
            if isinstance(extension.value, x509.CRLNumber):
                return int(extension.value.crl_number)
    raise InputError(
        f"{path}: has no number (CRLNumber of RFC 5280); get it again from the authority"
    )


def _read_members(folder: Path, authority: Any) -> tuple[tuple[Member, ...], int]:
    """Read members.json and check the authority's signature.

    Return the members and the list's number.
    """
    path = folder / "members.json"
    content, signature = (read_pem(each, bytes) for each in (path, folder / "members.sig"))
    if not is_signed(authority, signature, content):
        raise InputError(
            f"{path}: members.sig is not its signature by authority.pem; get both again from the"
            " authority"
        )
    with reading(path, "list of members", "get it again from the authority"):
        listed = json.loads(content)
        members = tuple(
            Member(**{name: each[name] for name in ("name", "fingerprint")})
            for each in listed["members"]
        )
        for member in members:
            check_types(member)
        return members, number_of(listed)


def number_of(listed: Any) -> int:
    """The number of a list of members; ValueError without one."""
    number = listed["number"]
    if type(number) is not int or not 0 < number < 2**63:
        raise ValueError(f"number is {str(number)[:40]}")
    return number


def is_signed(public_key: Any, signature: bytes, content: bytes) -> bool:
    """Whether this key (elliptic curve or RSA) has signed the SHA-256 of the content."""
    from cryptography.exceptions import InvalidSignature
    from cryptography.hazmat.primitives import hashes
    from cryptography.hazmat.primitives.asymmetric import ec, padding

    of_curve = isinstance(public_key, ec.EllipticCurvePublicKey)
    how = (ec.ECDSA(hashes.SHA256()),) if of_curve else (padding.PKCS1v15(), hashes.SHA256())
    try:
        public_key.verify(signature, content, *how)
    except InvalidSignature:
        return False
    return True


def import_x509() -> Any:
    """Import cryptography.x509; InputError if it is not installed."""
    try:
        from cryptography import x509
    except ImportError as error:
        raise InputError(
            "credentials and gradient.secure need cryptography: pip install -e '.[sites]' -c"
            " constraints.txt"
        ) from error
    return x509


def import_serialization() -> Any:
    import_x509()
    from cryptography.hazmat.primitives import serialization

    return serialization
