"""The facts of NVIDIA's archives: what ships, and files that say that they are untrusted."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.gridcase import FACTS, MATRIX
from tests.standin.cuda_archives import facts_from, write_small
from torchkiln.errors import ConfigError
from torchkiln.matrix.cuda_redist import VARIABLE, digest_of, load, parse, read

# Without these no nvcc compiles.
NEEDED = {"cuda_cccl", "cuda_cudart", "cuda_nvcc", "libcublas", "libcusparse", "libcusolver"}
LINE = '    cuda_nvcc: {version: "12.1.105", size: 7, sha256: "' + "a" * 64 + '"}'
GOOD = f'schema: 1\nsource: "a file for tests"\nuntrusted: true\nreleases:\n  "12.1.1":\n{LINE}\n'


def test_each_cuda_of_the_matrix_has_a_release_with_all_that_nvcc_wants() -> None:
    for cuda in MATRIX.cuda:
        release = FACTS.toolkits[cuda].toolkit.release
        archives = {one.component: one for one in FACTS.redist.releases[release]}

        assert release.startswith(f"{cuda}.")
        assert set(archives) >= NEEDED
        assert archives["cuda_nvcc"].version.startswith(f"{cuda}.")
        assert all(one.path.startswith(f"{one.component}/linux-x86_64/") for one in archives.values())
        assert all(one.version in one.filename for one in archives.values())
    assert load().untrusted is False


def test_no_hash_stands_twice() -> None:
    """Different parts, and releases, have different archives."""
    hashes = [one.sha256 for archives in load().releases.values() for one in archives]

    assert len(hashes) == len(set(hashes)) == 50


def test_what_a_server_of_that_layout_has_becomes_facts(tmp_path: Path) -> None:
    archives = write_small(tmp_path)
    (tmp_path / "redist.yaml").write_bytes(facts_from(tmp_path, "12.1.1"))

    found = read(tmp_path / "redist.yaml")
    assert found.releases == {"12.1.1": archives}
    assert found.untrusted


def test_the_digest_hangs_on_each_word_and_not_on_the_order() -> None:
    (archives,) = parse(GOOD.encode(), name="x").releases.values()
    more = load().releases["12.1.1"]

    assert digest_of(more) == digest_of(reversed(more))
    assert len({digest_of(more), digest_of(archives), digest_of(more[1:]), digest_of(())}) == 4


@pytest.mark.parametrize(
    ("change", "told"),
    [
        (("schema: 1", "schema: 2"), "redist.yaml:1: schema: "),
        (("size: 7", "size: 0"), "redist.yaml:6: releases.12.1.1.cuda_nvcc.size: "),
        (("size: 7", 'size: "7"'), "redist.yaml:6: releases.12.1.1.cuda_nvcc.size: "),
        (("aaaa", "AAAA"), "64 lower-case hex digits"),
        (("12.1.105", "12.1.105/../x"), "is not a version"),
        (("cuda_nvcc", "../nvcc"), "is not a component"),
        (('"12.1.1":', '"12.1":'), "is not a release of the toolkit"),
        (("source", "sauce"), "sauce"),
        ((LINE, ""), "releases.12.1.1"),
        (("releases:", "releases: [\n"), "not valid YAML"),
    ],
)
def test_faults_are_told_with_their_lines(change: tuple[str, str], told: str, tmp_path: Path) -> None:
    path = tmp_path / "redist.yaml"
    path.write_text(GOOD.replace(*change))

    with pytest.raises(ConfigError) as caught:
        read(path)
    assert told in caught.value.message


def test_a_file_that_does_not_say_what_it_stands_for_is_refused(tmp_path: Path) -> None:
    """Nobody passes made-up archives for NVIDIA's by a setting."""
    path = tmp_path / "redist.yaml"
    path.write_text(GOOD.replace("untrusted: true\n", ""))

    with pytest.raises(ConfigError, match="'untrusted' is missing"):
        read(path)
    with pytest.raises(ConfigError, match=f"{VARIABLE}: .*No such file"):
        read(tmp_path / "nowhere.yaml")
    with pytest.raises(ConfigError, match="not UTF-8"):
        parse(b"\xff\xfe", name="x")
