"""`retexo credentials`: create the keys and certificates of the sites of a run.

A site creates its key, which stays there, and a request. The authority signs the request and lists
the members of a run:

    retexo credentials authority AUTHORITY                   once, at the authority
    retexo credentials request FOLDER --name east            at each site: key.pem and request.pem
    retexo credentials sign AUTHORITY request.pem            at the authority: issued/east.pem
    retexo credentials members AUTHORITY --sites north east south    in the order of node_rank
    retexo credentials revoke AUTHORITY east                 its certificate is refused from now on
    retexo credentials init FOLDER --sites north east south  all steps in one place, for trials

retexo/launch/certificates.py describes a site's folder. Keys and certificates are PEM files, so an
existing authority can sign them.
"""

import argparse
import hashlib
import json
import os
import re
import shutil
import sys
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec, rsa

from partitioning.errors import InputError
from partitioning.files.file_io import open_regular
from retexo.launch.certificates import (
    naming_file,
    read_key,
    read_pem,
    read_revocations,
)

DAYS = 365
"""Default validity of certificates."""
LIST_DAYS = 3650
"""Validity of the authority's certificate and of the list of revoked certificates."""
SHARED = ("authority.pem", "revoked.pem", "members.json")
"""Files that the authority copies to all sites."""


def main(arguments: Sequence[str]) -> int:
    """Run the command; return 0, or 2 for unusable input, which is printed to stderr.

    Options that cannot be parsed raise SystemExit with status 2.
    """
    parser = argparse.ArgumentParser(
        "retexo credentials",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    commands = parser.add_subparsers(dest="command", required=True)
    for name in ("authority", "request", "sign", "members", "revoke", "init"):
        command = commands.add_parser(name)
        command.add_argument("folder", type=Path, help="of the authority, of request: of the site")
        if name == "request":
            command.add_argument("--name", required=True)
        if name in ("members", "init"):
            command.add_argument(
                "--sites", nargs="+", required=True, help="in the order of node_rank"
            )
        if name == "sign":
            command.add_argument("request", type=Path)
        if name == "revoke":
            command.add_argument("name")
        if name in ("sign", "init"):
            command.add_argument("--days", type=int, default=DAYS)
    options = vars(parser.parse_args(arguments))
    if not 1 <= options.get("days", DAYS) <= LIST_DAYS:
        parser.error(
            f"argument --days: {options['days']}: must be a number of days from 1 to {LIST_DAYS},"
            " for which the authority's own certificate is valid"
        )
    try:
        globals()[options.pop("command")](**options)
    except (InputError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    return 0


def authority(folder: Path) -> None:
    """Create an authority: key.pem, authority.pem and an empty revoked.pem in `folder`.

    The folder is created where missing; FileExistsError if it has a key.
    """
    key = _new_key(folder)
    certificate = _certificate("retexo authority", key.public_key(), key, None, LIST_DAYS)
    _write_pem(folder / "authority.pem", certificate)
    _write_pem(folder / "revoked.pem", _make_revocation_list(key, certificate, ()))
    print(f"{folder}: a new authority; who has its key.pem decides who takes part")


def request(folder: Path, name: str) -> None:
    """Create a site's key.pem and request.pem, the request for its certificate, in a folder.

    The folder is created where missing; FileExistsError if it has a key, InputError for a name with
    other characters than letters, digits, dots and hyphens. Prints the digest of the key.
    """
    _check_name(name)
    key = _new_key(folder)
    builder = x509.CertificateSigningRequestBuilder().subject_name(_make_x509_name(name))
    _write_pem(folder / "request.pem", builder.sign(key, hashes.SHA256()))
    digest = _key_digest(key.public_key())
    print(f"{folder / 'request.pem'}: send it to the authority; key.pem stays here. Key {digest}")


def sign(folder: Path, request: Path, days: int = DAYS) -> None:
    """Sign a request. First compare the digest of the key with the site, for example by phone.

    Writes issued/NAME.pem in the authority's folder, valid for `days`, and prints the digest.
    InputError for a wrong request, or a name that has a certificate.
    """
    key, issuer = _authority(folder)
    signing_request = read_pem(request, x509.load_pem_x509_csr)
    with naming_file(request):
        names = signing_request.subject.get_attributes_for_oid(x509.NameOID.COMMON_NAME)
        name = str(names[0].value) if names else ""
        _check_name(name)
        if not signing_request.is_signature_valid:
            raise InputError(f"{request}: its signature is not by the key that is in it")
    issued = folder / "issued" / f"{name}.pem"
    if issued.exists():
        raise InputError(f"{issued}: {name} has a certificate; revoke it first")
    issued.parent.mkdir(exist_ok=True)
    _write_pem(issued, _certificate(name, signing_request.public_key(), key, issuer, days))
    digest = _key_digest(signing_request.public_key())
    print(f"{issued}: certificate.pem of {name}. Key {digest}: ask the site whether it is this")


def members(folder: Path, sites: Sequence[str]) -> None:
    """Write members.json, the sites of a run in order of node_rank; print what each site needs.

    Replaces an earlier one. InputError for a name that is there twice or has no certificate.

    Args:
        folder: of the authority; issued/NAME.pem has the certificate of each site.
        sites: names of the members.
    """
    path = folder / "members.json"
    _, issuer = _authority(folder)
    if len(set(sites)) < len(sites):
        raise InputError(f"--sites {' '.join(sites)}: a name is there twice")
    for site in sites:
        _issued(folder, site, issuer)
    listed = {"members": [{"name": site} for site in sites]}
    _write_bytes(path, json.dumps(listed, indent=1).encode())
    print(
        f"{path}: every site needs, as they are: {', '.join(SHARED)}; and its issued/NAME.pem as"
        " certificate.pem"
    )


def revoke(folder: Path, name: str) -> None:
    """Add the certificate of the site `name` to the authority's list of revoked certificates.

    Rewrites revoked.pem, renames the certificate in issued/, and prints what to do. InputError if
    the site has no certificate, or files of the authority are damaged.
    """
    key, issuer = _authority(folder)
    certificate = _issued(folder, name, issuer)
    before = read_revocations(folder, issuer)
    entry = x509.RevokedCertificateBuilder(certificate.serial_number, datetime.now(UTC)).build()
    with naming_file(folder / "revoked.pem"):
        revoked = _make_revocation_list(key, issuer, (*before, entry))
    _write_pem(folder / "revoked.pem", revoked)
    (folder / "issued" / f"{name}.pem").rename(
        folder / "issued" / f"{name}-{certificate.serial_number:x}.revoked"
    )
    print(
        f"{folder / 'revoked.pem'}: give it to all sites; those with another list than node 0's"
        " are refused"
    )


def init(folder: Path, sites: Sequence[str], days: int = DAYS) -> None:
    """Do all steps in one place, for trials.

    Create the folders `authority` and one by site; those of the sites are ready for use.
    FileExistsError where one has a key; folders that were made before stay.
    """
    authority(folder / "authority")
    for site in sites:
        request(folder / site, site)
        sign(folder / "authority", folder / site / "request.pem", days)
    members(folder / "authority", sites)
    hand_out(folder, sites)
    print(
        f"{folder}: for trials. All keys were made in one place; for real data each site makes its"
        " own, by `request`"
    )


def hand_out(folder: Path, sites: Sequence[str]) -> None:
    """Copy the authority's files, and each site's certificate.pem, to the sites' folders.

    `init` created these in `folder`, beside the authority's.
    """
    for site in sites:
        for name in SHARED:
            shutil.copyfile(folder / "authority" / name, folder / site / name)
        shutil.copyfile(
            folder / "authority" / "issued" / f"{site}.pem", folder / site / "certificate.pem"
        )


# --- keys, certificates, lists ----------


def _new_key(folder: Path) -> ec.EllipticCurvePrivateKey:
    """Create a key in folder/key.pem that only its owner may read; FileExistsError: it is there."""
    key, form = ec.generate_private_key(ec.SECP256R1()), serialization.PrivateFormat.PKCS8
    folder.mkdir(parents=True, exist_ok=True)
    descriptor = os.open(folder / "key.pem", os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(descriptor, "wb") as file:
        file.write(
            key.private_bytes(serialization.Encoding.PEM, form, serialization.NoEncryption())
        )
    return key


def _certificate(
    name: str, public_key: Any, key: Any, issuer: x509.Certificate | None, days: int
) -> x509.Certificate:
    """Sign with `key`, whose certificate is `issuer`; None for the authority's own certificate."""
    now, is_authority = datetime.now(UTC), issuer is None
    use = dict.fromkeys(
        (
            "content_commitment",
            "key_encipherment",
            "data_encipherment",
            "key_agreement",
            "encipher_only",
            "decipher_only",
        ),
        False,
    )
    purposes = [x509.ExtendedKeyUsageOID.SERVER_AUTH, x509.ExtendedKeyUsageOID.CLIENT_AUTH]
    extensions: list[tuple[x509.ExtensionType, bool]] = [
        (x509.BasicConstraints(ca=is_authority, path_length=0 if is_authority else None), True),
        (
            x509.KeyUsage(
                digital_signature=True, key_cert_sign=is_authority, crl_sign=is_authority, **use
            ),
            True,
        ),
        (x509.SubjectKeyIdentifier.from_public_key(public_key), False),
        (x509.AuthorityKeyIdentifier.from_issuer_public_key(key.public_key()), False),
    ]
    if not is_authority:
        extensions.append((x509.ExtendedKeyUsage(purposes), False))
        extensions.append((x509.SubjectAlternativeName([x509.DNSName(name)]), False))
    builder = x509.CertificateBuilder(
        _make_x509_name(name) if issuer is None else issuer.subject,
        _make_x509_name(name),
        public_key,
        x509.random_serial_number(),
        now - timedelta(minutes=5),
        now + timedelta(days=days),
    )
    for extension, critical in extensions:
        builder = builder.add_extension(extension, critical)
    return builder.sign(key, hashes.SHA256())


def _make_revocation_list(
    key: Any, issuer: x509.Certificate, revoked: Sequence[x509.RevokedCertificate]
) -> x509.CertificateRevocationList:
    """Make and sign the authority's list of revoked certificates."""
    now = datetime.now(UTC)
    builder = x509.CertificateRevocationListBuilder(
        issuer.subject, now, now + timedelta(days=LIST_DAYS), revoked_certificates=list(revoked)
    )
    builder = builder.add_extension(x509.CRLNumber(len(revoked) + 1), False)
    identifier = x509.AuthorityKeyIdentifier.from_issuer_public_key(key.public_key())
    return builder.add_extension(identifier, False).sign(key, hashes.SHA256())


def _authority(folder: Path) -> tuple[Any, x509.Certificate]:
    """Return the key and certificate of an authority; InputError if they do not belong together."""
    path = folder / "key.pem"
    key = read_key(path)
    if not isinstance(key, ec.EllipticCurvePrivateKey | rsa.RSAPrivateKey):
        raise InputError(
            f"{path}: a key of another kind than RSA and elliptic curves; get it again from the"
            " authority"
        )
    certificate = read_pem(folder / "authority.pem", x509.load_pem_x509_certificate)
    with naming_file(folder / "authority.pem"):
        if certificate.public_key() != key.public_key():
            raise InputError(
                f"{folder / 'authority.pem'}: does not belong to {path}; take both of one authority"
            )
    return key, certificate


def _issued(folder: Path, name: str, issuer: x509.Certificate) -> x509.Certificate:
    """Return the certificate of a site; InputError if this authority has not issued one."""
    _check_name(name)
    path = folder / "issued" / f"{name}.pem"
    if not path.exists():
        raise InputError(f"{path}: {name} has no certificate that is not revoked; sign its request")
    certificate = read_pem(path, x509.load_pem_x509_certificate)
    with naming_file(path):
        certificate.verify_directly_issued_by(issuer)
    return certificate


def _write_pem(path: Path, pem_object: Any) -> None:
    """Write a certificate, request or list of revocations in PEM."""
    _write_bytes(path, pem_object.public_bytes(serialization.Encoding.PEM))


def _write_bytes(path: Path, content: bytes) -> None:
    """Write a file, through no link: `open_regular` refuses it."""
    with open_regular(path, "wb") as file:
        file.write(content)


def _key_digest(public_key: Any) -> str:
    """Return the digest that two people compare on the phone: 32 hex digits of a sha256."""
    form = serialization.PublicFormat.SubjectPublicKeyInfo
    content = public_key.public_bytes(serialization.Encoding.DER, form)
    return hashlib.sha256(content).hexdigest()[:32]


def _make_x509_name(name: str) -> x509.Name:
    """Return an X.509 name whose common name is `name`."""
    return x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, name)])


def _check_name(name: str) -> None:
    """Raise InputError unless a site's name has only letters, digits, dots and hyphens."""
    if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9.-]{0,62}", name):
        raise InputError(
            f"{name!r}: the name of a site has letters, digits, dots and hyphens, at most 63"
        )
