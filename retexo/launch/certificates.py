"""A node's folder of credentials: reads and checks it. `retexo credentials` creates these files.

key.pem            this site's private key, readable only by its owner
certificate.pem    its certificate, signed by the authority, with the site's name as
                   subjectAltName (DNS)
authority.pem      the authority's certificate
revoked.pem        the authority's list of revoked certificates (RFC 5280)
members.json       the names of the sites by node_rank, a hub last: {"members": [{"name": ...}]}
"""

import ssl
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, TypeVar

from cryptography import x509
from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives import serialization

from partitioning.errors import InputError
from partitioning.files.file_io import UNREADABLE, parse_json, read_bytes, reading
from retexo.launch.tls import Tls

T = TypeVar("T")


def read_credentials(folder: Path, node: int, num_nodes: int) -> Tls:
    """Read the credentials of a node: key, certificate, authority, its revocations and the members.

    Raises:
        InputError: a file is missing or damaged, the key is encrypted, not the certificate's, or
            others may read it, the certificate is not valid now or revoked, the authority did not
            sign the revocations, or the members are not `num_nodes` sites (and at most one more)
            with this node's name at place `node`. It names the file.
    """
    path = folder / "key.pem"
    read_key(path)
    mode = path.stat().st_mode & 0o777
    if mode & 0o077:
        raise InputError(
            f"{path}: others may read it (mode {mode:o}); chmod 600 it, or make a new key"
        )
    path = folder / "certificate.pem"
    certificate = read_pem(path, x509.load_pem_x509_certificate)
    authority = read_pem(folder / "authority.pem", x509.load_pem_x509_certificate)
    revoked = read_revocations(folder, authority)
    members = read_members(folder / "members.json")
    with naming_file(path):
        extension = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName)
        names = extension.value.get_values_for_type(x509.DNSName)
    fits = len(members) in (num_nodes, num_nodes + 1) and {*names} & {*members[node : node + 1]}
    if not fits:
        listed = ", ".join(f"{member} {index}" for index, member in enumerate(members))
        raise InputError(
            f"node_rank={node}: {folder / 'members.json'} lists {listed}, and {path.name} is of"
            f" {', '.join(names)}; list each of the {num_nodes} sites once, by node_rank"
        )
    if not certificate.not_valid_before_utc <= datetime.now(UTC) <= certificate.not_valid_after_utc:
        raise InputError(f"{path}: not valid at this time; ask the authority for a new one")
    if revoked.get_revoked_certificate_by_serial_number(certificate.serial_number) is not None:
        raise InputError(f"{path}: was revoked; ask the authority for a new one")
    lists = f"members {', '.join(members)}; {len(revoked)} revoked by {revoked.last_update_utc}"
    tls = Tls(folder, members, lists)
    try:
        tls.make_context(accepted=False)
    except ssl.SSLError as error:
        raise InputError(
            f"{folder}: key.pem and certificate.pem do not fit together: {error.reason}"
        ) from error
    return tls


def read_key(path: Path) -> Any:
    """Read a private key.

    Raises InputError if it is missing, damaged, or encrypted, since nobody may be there to enter a
    pass phrase.
    """

    def load(content: bytes) -> Any:
        try:
            return serialization.load_pem_private_key(content, None)
        except TypeError:
            raise InputError(
                f"{path}: is encrypted; decrypt it with openssl pkey -in {path} -out NEW and"
                " replace it by NEW"
            ) from None

    return read_pem(path, load)


def read_pem(path: Path, load: Callable[[bytes], T]) -> T:
    """Return the result of `load` for the content of a regular file; InputError names the file."""
    with naming_file(path):
        return load(read_bytes(path))


@contextmanager
def naming_file(path: Path) -> Iterator[None]:
    """Turn the errors of a damaged file, also when it is first used, into an InputError."""
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


def read_revocations(folder: Path, authority: x509.Certificate) -> x509.CertificateRevocationList:
    """Return the list of revoked certificates; InputError unless this authority has signed it."""
    path = folder / "revoked.pem"
    revoked = read_pem(path, x509.load_pem_x509_crl)
    with naming_file(path):
        public_key: Any = authority.public_key()
        if not revoked.is_signature_valid(public_key):
            raise InputError(
                f"{path}: was not signed by authority.pem; get it again from the authority"
            )
    return revoked


def read_members(path: Path) -> tuple[str, ...]:
    """Return the names of the sites, by node; InputError for a damaged file, or equal names."""
    with reading(path, "list of members", "get it again from the authority"):
        names = tuple(member["name"] for member in parse_json(read_bytes(path))["members"])
        if not all(isinstance(name, str) for name in names) or len(set(names)) < len(names):
            raise ValueError(f"its names are {str(names)[:80]}")
        return names
