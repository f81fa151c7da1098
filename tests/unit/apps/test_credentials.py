"""`retexo credentials`, and what a node reads of its folder, also of damaged or foreign files."""

import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

pytest.importorskip("cryptography")

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec, ed25519
from cryptography.hazmat.primitives.asymmetric.types import PrivateKeyTypes
from cryptography.hazmat.primitives.serialization import (
    BestAvailableEncryption,
    Encoding,
    KeySerializationEncryption,
    NoEncryption,
    PrivateFormat,
    load_pem_private_key,
)
from support import make_credentials

from partitioning.errors import InputError
from retexo.apps import credentials
from retexo.apps.credentials import main
from retexo.launch.certificates import read_credentials

COMMANDS = {
    "sign": ("sign", "authority", "new/request.pem"),
    "members": ("members", "authority", "--sites", "a", "b"),
    "revoke": ("revoke", "authority", "a"),
}


@pytest.fixture(scope="module")
def credential_folders(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two sites, and one that asks for a certificate.

    And the same of another authority in `other`.
    """
    place = tmp_path_factory.mktemp("credentials")
    for folder in (place, place / "other"):
        make_credentials(folder, "a", "b")
        credentials.request(folder / "new", "new")
    return place


@pytest.fixture
def place(credential_folders: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    shutil.copytree(credential_folders, tmp_path / "here")
    monkeypatch.chdir(tmp_path / "here")
    return tmp_path / "here"


def garbage(path: Path) -> None:
    path.write_bytes(os.urandom(300))


def foreign(path: Path) -> None:
    """Replace a file by that of another authority."""
    shutil.copy("other" / path, path)


def fifo(path: Path) -> None:
    path.unlink()
    os.mkfifo(path)


def write_key(path: Path, key: PrivateKeyTypes, encryption: KeySerializationEncryption) -> None:
    path.write_bytes(key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, encryption))


def encrypted(path: Path) -> None:
    """No pass phrase is asked for: it would be waited for on a machine without a terminal."""
    key = load_pem_private_key(path.read_bytes(), None)
    write_key(path, key, BestAvailableEncryption(b"secret"))


def another_kind(path: Path) -> None:
    write_key(path, ed25519.Ed25519PrivateKey.generate(), NoEncryption())


REMEDIES = ("from its source", "from the authority", "of one authority", "--help", "of members")
DAMAGED = {
    "sign": ("new/request.pem", "authority/key.pem", "authority/authority.pem"),
    "members": ("authority/key.pem", "authority/authority.pem", "authority/issued/a.pem"),
    "revoke": ("authority/revoked.pem", "authority/key.pem", "authority/issued/a.pem"),
}
KEY = "authority/key.pem"


@pytest.mark.parametrize(
    ("command", "file", "damage", "remedies"),
    [
        *(
            (command, file, damage, REMEDIES)
            for command, files in DAMAGED.items()
            for file in files
            for damage in (garbage, foreign, fifo)
            # Who asks is for the authority to know.
            if (file, damage) != ("new/request.pem", foreign)
        ),
        ("members", KEY, encrypted, (f"decrypt it with openssl pkey -in {KEY} -out NEW",)),
        ("members", KEY, another_kind, ("a key of another kind",)),
    ],
)
def test_files_that_the_authority_cannot_use(
    place: Path,
    capsys: pytest.CaptureFixture[str],
    command: str,
    file: str,
    damage: Callable[[Path], None],
    remedies: tuple[str, ...],
) -> None:
    """The message names the file, and nothing is written."""
    damage(Path(file))
    before = {path: path.stat().st_mtime_ns for path in place.rglob("*")}
    assert main(COMMANDS[command]) == 2
    printed = capsys.readouterr().err
    assert printed.startswith("error: ")
    assert file in printed
    assert any(remedy in printed for remedy in remedies), printed
    assert {path: path.stat().st_mtime_ns for path in place.rglob("*")} == before


@pytest.mark.parametrize("days", ["99999999", "3651", "0", "-5"])
def test_days_that_no_certificate_has(
    place: Path, capsys: pytest.CaptureFixture[str], days: str
) -> None:
    with pytest.raises(SystemExit) as ended:
        main([*COMMANDS["sign"], "--days", days])
    assert ended.value.code == 2
    assert f"argument --days: {days}: must be a number of days from 1 to 3650" in (
        capsys.readouterr().err
    )


def test_a_name_of_another_folder(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["members", "authority", "--sites", "../../a"]) == 2
    assert "'../../a': the name of a site has letters" in capsys.readouterr().err


@pytest.mark.parametrize(
    "content",
    [
        b'{"members": 5}',
        b'{"members": [{"name": 3}]}',
        b'{"members": [{"name": "a"}, {"name": "a"}]}',
        b'{"members": [{"name": "x"}], "members": [{"name": "a"}, {"name": "b"}]}',
        b'{"members": ' + b"[" * 100_000 + b"]" * 100_000 + b"}",
    ],
)
def test_a_list_of_members_that_is_none(place: Path, content: bytes) -> None:
    Path("a/members.json").write_bytes(content)
    with pytest.raises(InputError, match=r"a/members\.json: not a readable list of members"):
        read_credentials(Path("a"), 0, 2)


def test_a_certificate_of_another_program_names_its_site(place: Path) -> None:
    """Whoever signed it: of the same authority, without the name it is refused."""
    certificate = x509.load_pem_x509_certificate(Path("a/certificate.pem").read_bytes())
    key = load_pem_private_key(Path("authority/key.pem").read_bytes(), None)
    assert isinstance(key, ec.EllipticCurvePrivateKey)
    for names in (["x.org", "a"], ["x.org"], []):
        builder = x509.CertificateBuilder(
            certificate.issuer,
            certificate.subject,
            certificate.public_key(),
            7,
            certificate.not_valid_before_utc,
            certificate.not_valid_after_utc,
        )
        if names:
            alternatives = x509.SubjectAlternativeName([*map(x509.DNSName, names)])
            builder = builder.add_extension(alternatives, False)
        signed = builder.sign(key, hashes.SHA256())
        Path("a/certificate.pem").write_bytes(signed.public_bytes(Encoding.PEM))
        if "a" in names:
            assert read_credentials(Path("a"), 0, 2).members == ("a", "b")
        else:
            with pytest.raises(
                InputError, match=r"certificate\.pem(: cannot be read| is of x\.org)"
            ):
                read_credentials(Path("a"), 0, 2)


@pytest.mark.parametrize(
    ("name", "damage"),
    [
        *(
            (f"{stem}.pem", damage)
            for stem in ("key", "certificate", "authority", "revoked")
            for damage in (garbage, fifo)
        ),
        ("members.json", garbage),
        ("members.json", fifo),
        ("key.pem", encrypted),
    ],
)
def test_files_that_a_node_cannot_use(
    place: Path, name: str, damage: Callable[[Path], None]
) -> None:
    damage(Path("a", name))
    if name == "key.pem":
        Path("a", name).chmod(0o600)
    says = "is encrypted; decrypt it" if damage is encrypted else ""
    with pytest.raises(InputError, match=rf"^a/({name.split('.')[0]}|members).*{says}"):
        read_credentials(Path("a"), 0, 2)
