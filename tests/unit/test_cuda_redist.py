"""Facts about NVIDIA's archives: torchkiln's own facts, and untrusted files with other facts."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.planned import FACTS, MATRIX
from tests.servers.cuda_archives import facts_from, write_small
from torchkiln.errors import ConfigError
from torchkiln.matrix.cuda_redist import VARIABLE, digest_of, load, parse, read

# nvcc needs these to compile.
NEEDED = {"cuda_cccl", "cuda_cudart", "cuda_nvcc", "libcublas", "libcusparse", "libcusolver"}
LINE = '    cuda_nvcc: {version: "12.1.105", size: 7, sha256: "' + "a" * 64 + '"}'
GOOD = f'schema: 1\nsource: "a file for tests"\nuntrusted: true\nreleases:\n  "12.1.1":\n{LINE}\n'


def test_each_cuda_of_the_matrix_has_a_release_with_all_that_nvcc_needs() -> None:
    for cuda in MATRIX.cuda:
        release = FACTS.toolkits[cuda].toolkit.release
        archives = {item.component: item for item in FACTS.redist.releases[release]}

        assert release.startswith(f"{cuda}.")
        assert set(archives) >= NEEDED
        assert archives["cuda_nvcc"].version.startswith(f"{cuda}.")
        assert all(
            archive.path.startswith(f"{archive.component}/linux-x86_64/") for archive in archives.values()
        )
        assert all(archive.version in archive.filename for archive in archives.values())
    assert load().untrusted is False


def test_archive_hashes_are_unique() -> None:
    """No archive occurs twice, in one release or in two."""
    hashes = [archive.sha256 for archives in load().releases.values() for archive in archives]

    assert len(hashes) == len(set(hashes)) == 50


def test_facts_are_generated_from_a_server(tmp_path: Path) -> None:
    archives = write_small(tmp_path)
    (tmp_path / "redist.yaml").write_bytes(facts_from(tmp_path, "12.1.1"))

    found = read(tmp_path / "redist.yaml")
    assert found.releases == {"12.1.1": archives}
    assert found.untrusted


def test_the_digest_depends_on_the_content_and_not_on_the_order() -> None:
    (archives,) = parse(GOOD.encode(), name="x").releases.values()
    more = load().releases["12.1.1"]

    assert digest_of(more) == digest_of(reversed(more))
    assert len({digest_of(more), digest_of(archives), digest_of(more[1:]), digest_of(())}) == 4


@pytest.mark.parametrize(
    ("change", "message"),
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
    ],
)
def test_errors_are_reported_with_their_lines(change: tuple[str, str], message: str, tmp_path: Path) -> None:
    path = tmp_path / "redist.yaml"
    path.write_text(GOOD.replace(*change))

    with pytest.raises(ConfigError) as caught:
        read(path)
    assert message in caught.value.message


def test_a_file_without_the_untrusted_mark_is_refused(tmp_path: Path) -> None:
    """Otherwise a user's file could present other archives as NVIDIA's."""
    path = tmp_path / "redist.yaml"
    path.write_text(GOOD.replace("untrusted: true\n", ""))

    with pytest.raises(ConfigError, match="'untrusted' is missing"):
        read(path)
    with pytest.raises(ConfigError, match=f"{VARIABLE}: .*No such file"):
        read(tmp_path / "nowhere.yaml")
