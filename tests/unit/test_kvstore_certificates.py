"""A job's certificates, judged by real TLS connections."""

from __future__ import annotations

import socket
import ssl
import threading
from pathlib import Path

import pytest

from laggard.system.certificates import Authority, Certificate

DEADLINE_S = 10.0


def handshake(directory: Path, server: Certificate, authority: str, *, name: str, client: Certificate | None) -> bytes:
    """Connect to a server that asks for a certificate and says hello, and return what it says."""
    server_side = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH, cadata=server.authority)
    server_side.verify_mode = ssl.CERT_REQUIRED
    server_side.load_cert_chain(*files(directory / "server", server))
    client_side = ssl.create_default_context(cadata=authority)
    if client is not None:
        client_side.load_cert_chain(*files(directory / "client", client))
    ours, theirs = socket.socketpair()
    for end in (ours, theirs):
        end.settimeout(DEADLINE_S)

    def serve() -> None:
        try:
            with theirs, server_side.wrap_socket(theirs, server_side=True) as connection:
                connection.sendall(b"hello")
        except OSError:
            pass  # the client tells

    thread = threading.Thread(target=serve)
    thread.start()
    try:
        with ours, client_side.wrap_socket(ours, server_hostname=name) as connection:
            return connection.recv(100)
    finally:
        thread.join(DEADLINE_S)


def files(folder: Path, certificate: Certificate) -> tuple[Path, Path]:
    folder.mkdir()
    paths = folder / "certificate", folder / "key"
    paths[0].write_text(certificate.certificate)
    paths[1].write_text(certificate.key)
    return paths


@pytest.mark.parametrize("name", ["10.1.2.3", "fd00::2", "node1.cluster", "127.0.0.1", "localhost"])
def test_members_of_a_job_trust_each_other_under_all_of_their_names(tmp_path: Path, name: str) -> None:
    job = Authority()
    server = job.issue("10.1.2.3", "fd00::2", "node1.cluster")
    assert handshake(tmp_path, server, job.certificate, name=name, client=job.issue()) == b"hello"


def test_a_members_certificate_is_not_valid_for_another_address(tmp_path: Path) -> None:
    job = Authority()
    with pytest.raises(ssl.SSLCertVerificationError, match="IP address mismatch"):
        handshake(tmp_path, job.issue("10.1.2.3"), job.certificate, name="10.1.2.4", client=job.issue())


def test_the_server_of_another_job_is_refused(tmp_path: Path) -> None:
    job, other = Authority(), Authority()
    with pytest.raises(ssl.SSLCertVerificationError, match="verify failed"):
        handshake(tmp_path, other.issue("10.1.2.3"), job.certificate, name="10.1.2.3", client=job.issue())


def test_a_client_of_another_job_or_of_none_cannot_connect(tmp_path: Path) -> None:
    job = Authority()
    for number, client in enumerate((Authority().issue(), None)):
        folder = tmp_path / str(number)
        folder.mkdir()
        with pytest.raises(ssl.SSLError, match=r"(?i)unknown.ca|certificate.required|decrypt"):
            handshake(folder, job.issue("10.1.2.3"), job.certificate, name="10.1.2.3", client=client)


def test_a_member_cannot_sign_for_others(tmp_path: Path) -> None:
    """A member's certificate is none of an authority: what a member signs is refused."""
    job = Authority()
    member = job.issue("10.1.2.3")
    with pytest.raises(ssl.SSLCertVerificationError):
        handshake(tmp_path, member, member.certificate, name="10.1.2.4", client=job.issue())


def test_a_key_is_not_shown() -> None:
    assert "PRIVATE" not in repr(Authority().issue("10.1.2.3"))
