"""DSSE envelopes and keys, compared with the specification's test vectors and with openssl."""

from __future__ import annotations

import base64
import json
import re
import shlex
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric import ec, ed448, rsa
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from cryptography.hazmat.primitives.asymmetric.utils import encode_dss_signature
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from hypothesis import given
from hypothesis import strategies as st

from tests.keys import ED, KEYS, P256, SECRET, pem, public_pem
from tests.reports import report
from torchkiln.attest.dsse import PASSPHRASE, decode, fingerprint, pae, private_key, public_key, sign, verify
from torchkiln.errors import ConfigError, VerificationFailed
from torchkiln.smoke.attestation import attest
from torchkiln.util.places import ROOT


def checked(data: bytes, *trusted: Any) -> tuple[str, ...]:
    """The keys in *trusted* (given as private keys) whose signatures on the envelope *data* are valid."""
    return verify(decode(data, where="x"), [key.public_key() for key in trusted], where="x.dsse.json")


# --- the encoding, compared with the specification --------------------------------------------------------

# protocol.md of secure-systems-lab/dsse, version 1.0.0, section "Test Vectors": an ECDSA signature on P-256,
# with two concatenated numbers.
SPEC: dict[str, Any] = {
    "type": "http://example.com/HelloWorld",
    "body": b"hello world",
    "pae": b"DSSEv1 29 http://example.com/HelloWorld 11 hello world",
    "x": 46950820868899156662930047687818585632848591499744589407958293238635476079160,
    "y": 5640078356564379163099075877009565129882514886557779369047442380624545832820,
    "sig": "A3JqsQGtVsJ2O2xqrI5IcnXip5GToJ3F+FnZ+O88SjtR6rDAajabZKciJTfUiHqJPcIAriEGAHTVeCUjW2JIZA==",
}
# testvectors/vectors.json of the same repository (commit 82043ad), made with the first test key of RFC 8032,
# section 7.1: (payloadType, payload, PAE in hex, signature). Ed25519 is deterministic.
RFC8032 = (
    "9d61b19deffd5a60ba844af492ec2cc44449c5697b326919703bac031cae7f60",
    "d75a980182b10ab7d54bfed3c964073a0ee172f3daa62325af021a68f707511a",
)
_BODY = "eyJfdHlwZSI6Imh0dHBzOi8vaW4tdG90by5pby9TdGF0ZW1lbnQvdjEifQ=="
_IN_TOTO = "application/vnd.in-toto+json"
_ENDS = "203433207b225f74797065223a2268747470733a2f2f696e2d746f746f2e696f2f53746174656d656e742f7631227d"
VECTORS = {
    "one signature": (
        _IN_TOTO,
        _BODY,
        "445353457631203238206170706c69636174696f6e2f766e642e696e2d746f746f2b6a736f6e" + _ENDS,
        "2WAfaHm5jluo0w+0rk8uVkluELJYWjSmU9x7EUzx+AyteDGJ4/nqyJXfmAUVFIAoQafWm7AxBZNw5M9ixNHiCA==",
    ),
    "the alphabet for URLs": (
        _IN_TOTO,
        "-_-_Pj8=",
        "445353457631203238206170706c69636174696f6e2f766e642e696e2d746f746f2b6a736f6e203520fbffbf3e3f",
        "P-_KHICeR7tI6S_YyejJTRtrXhcQyQ2LYPaL8h90KjC9qN8HU_svOQ6TuDOT1HIrsGW886DbWNWcCmX5twLrAw==",
    ),
    "a type that is longer in bytes than in characters": (
        "application/vnd.exämple+json",
        _BODY,
        "445353457631203239206170706c69636174696f6e2f766e642e6578c3a46d706c652b6a736f6e" + _ENDS,
        "xmSk/ug66ysT7ayhkCIjhAq42zgZXSsEWuzUaNL7w2eGAdF/NU6/fRXPtmfN+5DNSAs5/i2lUnHjbbjPsu0tAw==",
    ),
    "nothing signed": (
        _IN_TOTO,
        "",
        "445353457631203238206170706c69636174696f6e2f766e642e696e2d746f746f2b6a736f6e203020",
        "gSggCAaTLTYyRH6FIDBem6meyIynsYy8RTHVzwx9tnTb7Bg/1jMWnuVgI/gffqmbsC2VX5/jHfkkDqsj7CDbDg==",
    ),
}


def test_the_specifications_example_has_our_encoding_and_a_valid_signature() -> None:
    point = ec.EllipticCurvePublicNumbers(SPEC["x"], SPEC["y"], ec.SECP256R1()).public_key()
    raw = base64.b64decode(SPEC["sig"])
    der = encode_dss_signature(int.from_bytes(raw[:32], "big"), int.from_bytes(raw[32:], "big"))
    envelope = {
        "payload": base64.b64encode(SPEC["body"]).decode(),
        "payloadType": SPEC["type"],
        "signatures": [{"sig": base64.b64encode(der).decode()}],
    }

    assert pae(SPEC["type"], SPEC["body"]) == SPEC["pae"]
    envelope_read = decode(json.dumps(envelope).encode(), where="x")
    assert verify(envelope_read, [point], where="x") == (fingerprint(point),)


@pytest.mark.parametrize(("kind", "payload", "encoded", "sig"), VECTORS.values(), ids=VECTORS.keys())
def test_published_vectors(kind: str, payload: str, encoded: str, sig: str) -> None:
    """Encoding and signature equal the published ones; the published signature is valid."""
    key = Ed25519PrivateKey.from_private_bytes(bytes.fromhex(RFC8032[0]))
    known = Ed25519PublicKey.from_public_bytes(bytes.fromhex(RFC8032[1]))
    body = base64.urlsafe_b64decode(payload.translate(str.maketrans("+/", "-_")))
    envelope = {"payload": payload, "payloadType": kind, "signatures": [{"keyid": "A", "sig": sig}]}

    assert pae(kind, body).hex() == encoded
    assert verify(decode(json.dumps(envelope).encode(), where="x"), [known], where="x")
    made = json.loads(sign(kind, body, key))["signatures"][0]["sig"]
    assert made.translate(str.maketrans("+/", "-_")) == sig.translate(str.maketrans("+/", "-_"))


def test_a_published_signature_of_another_type_is_refused() -> None:
    """This is the test vector `payload-type-swapped` of the same repository."""
    known = Ed25519PublicKey.from_public_bytes(bytes.fromhex(RFC8032[1]))
    _, payload, _, sig = VECTORS["one signature"]
    envelope = {"payload": payload, "payloadType": "application/vnd.example.other+json"}
    envelope_read = json.dumps({**envelope, "signatures": [{"sig": sig}]}).encode()

    with pytest.raises(VerificationFailed):
        verify(decode(envelope_read, where="x"), [known], where="x")


@given(first=st.tuples(st.text(), st.binary()), second=st.tuples(st.text(), st.binary()))
def test_no_two_messages_share_an_encoding(first: tuple[str, bytes], second: tuple[str, bytes]) -> None:
    try:
        assert (pae(*first) == pae(*second)) == (first == second)
    except UnicodeEncodeError:
        return  # a lone surrogate is not text


# --- compared with openssl, an independent implementation ----------------------------------------


needs_openssl = pytest.mark.skipif(
    not shutil.which("openssl"), reason="openssl is not installed: apt-get install openssl"
)


def openssl(*arguments: str, cwd: Path, given: bytes | None = None) -> subprocess.CompletedProcess[bytes]:
    return subprocess.run(["openssl", *arguments], cwd=cwd, input=given, capture_output=True, check=False)


_BY_SHELL = r"""
set -eu
jq() { python3 -c 'import json,sys; print(json.load(open("e.json"))'"$1"')'; }
jq '["payload"]' | base64 -d > payload
jq '["signatures"][0]["sig"]' | base64 -d > sig
type=$(jq '["payloadType"]')
{
    printf 'DSSEv1 %d %s %d ' "$(printf %s "$type" | wc -c)" "$type" "$(wc -c < payload)"
    cat payload
} > signed
"""


@needs_openssl
@pytest.mark.parametrize("key", KEYS.values(), ids=KEYS.keys())
def test_openssl_accepts_our_signature_of_bytes_built_by_a_shell(key: Any, tmp_path: Path) -> None:
    (tmp_path / "e.json").write_bytes(attest(report(), key))
    (tmp_path / "public.pem").write_bytes(public_pem(key))
    subprocess.run(["bash", "-c", _BY_SHELL], cwd=tmp_path, check=True)
    how = ["-rawin"] if key is ED else ["-rawin", "-digest", "sha256"]
    verify_command = (
        "pkeyutl",
        "-verify",
        "-pubin",
        "-inkey",
        "public.pem",
        *how,
        "-in",
        "signed",
        "-sigfile",
        "sig",
    )

    assert openssl(*verify_command, cwd=tmp_path).returncode == 0
    (tmp_path / "signed").write_bytes((tmp_path / "signed").read_bytes() + b" ")
    assert openssl(*verify_command, cwd=tmp_path).returncode != 0


@needs_openssl
def test_the_documented_commands_make_a_usable_key(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The test runs the openssl commands of docs/gate.md in order."""
    monkeypatch.setenv(PASSPHRASE, SECRET)
    lines = re.findall(r"^    (openssl .*)$", (ROOT / "docs" / "gate.md").read_text(), re.MULTILINE)
    output = b""
    for line in lines:
        done = subprocess.run(["bash", "-c", line], cwd=tmp_path, capture_output=True, check=False)
        assert done.returncode == 0, (line, done.stderr)
        output = done.stdout

    assert len(lines) >= 3
    secret = private_key((tmp_path / "kiln.pem").read_bytes(), SECRET, where="kiln.pem")
    public = public_key((tmp_path / "kiln.pub.pem").read_bytes(), where="kiln.pub.pem")
    assert isinstance(secret, Ed25519PrivateKey)
    assert checked(attest(report(), secret), secret) == (fingerprint(public),)
    assert output.split()[0].decode() == fingerprint(public)  # the last command prints the key


@needs_openssl
def test_a_signature_by_openssl_is_valid(tmp_path: Path) -> None:
    (tmp_path / "key.pem").write_bytes(pem(ED))
    (tmp_path / "signed").write_bytes(b"DSSEv1 1 t 2 hi")
    assert (
        openssl(
            *shlex.split("pkeyutl -sign -inkey key.pem -rawin -in signed -out sig"), cwd=tmp_path
        ).returncode
        == 0
    )
    sig = base64.b64encode((tmp_path / "sig").read_bytes()).decode()
    envelope = {"payload": "aGk=", "payloadType": "t", "signatures": [{"sig": sig}]}

    assert checked(json.dumps(envelope).encode(), ED)


# --- keys -------------------------------------------------------------------------------------------

RSA = rsa.generate_private_key(public_exponent=65537, key_size=2048)
SSH = ED.private_bytes(Encoding.PEM, PrivateFormat.OpenSSH, NoEncryption())


@pytest.mark.parametrize(
    ("data", "passphrase", "why"),
    [
        (b"", None, "not a private key in PEM format"),
        (b"\xff\x00 nonsense", None, "not a private key in PEM format"),
        (pem(ED)[:60] + b"!!" + pem(ED)[60:], None, "not a private key in PEM format"),
        (pem(ED, SECRET), None, f"the key is encrypted: set {PASSPHRASE}"),
        (
            pem(ED, SECRET),
            "wrong " + SECRET,
            f"not a private key in PEM format, or wrong passphrase in {PASSPHRASE}",
        ),
        (pem(ED), SECRET, f"the key has no passphrase, and {PASSPHRASE} is set"),
        (public_pem(ED), None, "is a public key; --key requires a private key"),
        (public_pem(ED), SECRET, "is a public key; --key requires a private key"),
        (SSH, None, "SSH keys"),
        (pem(RSA), None, "unsupported key type: RSA"),
        (pem(ec.generate_private_key(ec.SECP384R1())), None, "unsupported key type: ECDSA on secp384r1"),
        (pem(ed448.Ed448PrivateKey.generate()), None, "unsupported key type: Ed448"),
    ],
)
def test_an_unusable_private_key_is_reported_without_its_content(
    data: bytes, passphrase: str | None, why: str
) -> None:
    with pytest.raises(ConfigError) as refused:
        private_key(data, passphrase, where="key.pem")

    envelope_read = f"{refused.value.message} {refused.value.hint}"
    assert why in envelope_read
    assert envelope_read.startswith("key.pem: ")
    assert SECRET not in envelope_read
    assert not any(line.decode("latin-1") in envelope_read for line in data.split()[3:-3])
    assert refused.value.__cause__ is None


@pytest.mark.parametrize(
    ("data", "why"),
    [
        (b"", "not a public key in PEM format"),
        (pem(ED), "is a private key; --trust requires a public key"),
        (pem(ED, SECRET), "is a private key; --trust requires a public key"),
        (SSH, "is a private key; --trust requires a public key"),
        (public_pem(RSA), "unsupported key type: RSA"),
        (public_pem(ec.generate_private_key(ec.SECP256K1())), "unsupported key type: ECDSA on secp256k1"),
    ],
)
def test_an_unusable_public_key_is_reported(data: bytes, why: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(why)):
        public_key(data, where="key.pem")


@pytest.mark.parametrize("key", KEYS.values(), ids=KEYS.keys())
@pytest.mark.parametrize("passphrase", ["", SECRET])
def test_a_key_reads_back(key: Any, passphrase: str) -> None:
    found = private_key(pem(key, passphrase), passphrase or None, where="key.pem")

    assert pem(found) == pem(key)
    assert fingerprint(public_key(public_pem(key), where="key.pem")) == fingerprint(key.public_key())


def test_ecdsa_hashes_with_sha256() -> None:
    envelope = json.loads(attest(report(), P256))
    signed = pae(envelope["payloadType"], base64.b64decode(envelope["payload"]))

    P256.public_key().verify(base64.b64decode(envelope["signatures"][0]["sig"]), signed, ec.ECDSA(SHA256()))
