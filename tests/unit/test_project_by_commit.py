"""Requirements of git repositories are read as pip reads them; what cannot be locked is refused."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pip._internal.models.link import Link
from pip._internal.vcs.git import Git

from torchkiln.projects.asked import Repository
from torchkiln.projects.sources.by_commit import repository_required

COMMIT = "0123456789abcdef0123456789abcdef01234567"
URL = "https://host.invalid/me/tool.git"


@pytest.mark.parametrize(
    ("text", "required", "revision", "subdirectory"),
    [
        (f"tool @ git+{URL}@{COMMIT}", "tool", COMMIT, ""),
        (f"tool@git+{URL}@{COMMIT.upper()}", "tool", COMMIT, ""),
        (f"Tool[b,a] @ git+{URL}@v1.0 ; python_version > '3'", 'Tool[a,b]; python_version > "3"', "v1.0", ""),
        (f"tool @ git+{URL}", "tool", "HEAD", ""),
        (f"tool @ git+{URL}@feature/x#subdirectory=a/b", "tool", "feature/x", "a/b"),
        (f"tool @ git+{URL}@refs/pull/7/head#egg=tool&subdirectory=./a/", "tool", "refs/pull/7/head", "a"),
        (f"git+{URL}@{COMMIT}#egg=tool", "tool", COMMIT, ""),
        (f"git+{URL}#egg=tool&subdirectory=p ; sys_platform == 'linux'",
         'tool; sys_platform == "linux"', "HEAD", "p"),
        (f"GIT+{URL}#egg=tool", "tool", "HEAD", ""),
        (f"tool @ git+{URL.replace('https', 'HTTPS')}@v1", "tool", "v1", ""),
    ],
)  # fmt: skip
def test_requirements(text: str, required: str, revision: str, subdirectory: str) -> None:
    found = repository_required(text)
    assert found == (required, Repository(url=URL, revision=revision, subdirectory=subdirectory))
    # pip's own parser reads the same URL.
    place = text.partition("git+")[2] if "git+" in text else text.partition("GIT+")[2]
    link = Link(f"git+{place.split()[0]}")
    url, pip_revision, _ = Git.get_url_rev_and_auth(f"git+{place.split()[0].partition('#')[0]}")
    assert (url.replace("HTTPS", "https"), (pip_revision or "HEAD").replace(COMMIT.upper(), COMMIT)) == (
        URL,
        revision,
    )
    assert (link.subdirectory_fragment or "").strip("./") == subdirectory


@pytest.mark.parametrize(
    "text", ["tool", "tool==1.0", "./x.whl", "tool @ https://h.invalid/x.whl", "a b", "", "-e ."]
)
def test_other_requirements(text: str) -> None:
    assert repository_required(text) is None


@pytest.mark.parametrize(
    ("text", "why"),
    [
        (f"git+{URL}@{COMMIT}", "name the package: NAME @ git"),
        (f"git+{URL}#egg=tool==1.0", "name the package"),
        (f"git+{URL}#egg=tool[x]", "name the package"),
        (f"git+{URL}#egg=-x", "name the package"),
        (f"git+{URL}#egg=tool ; x", "invalid requirement"),
        (f"tool @ hg+{URL}", r"only git\+https:// is supported, not hg\+"),
        ("tool @ git+ssh://git@host.invalid/x@v1", "must begin with https://"),
        ("tool @ git+https://höst.invalid/x@v1", "not the URL of a repository"),
        (f"tool @ git+{URL}@", "no revision after the @"),
        (f"tool @ git+{URL}@-x", "'-x' is not a valid name"),
        (f"tool @ git+{URL}@a..b", "'a..b' is not a valid name"),
        (f"tool @ git+{URL}@v*", "'v\\*' is not a valid name"),
        (f"tool @ git+{URL}@{{0}}", "is not a valid name"),
        (
            f"tool @ git+{URL}@v1#subdirectory=../x",
            "invalid subdirectory: it must be a relative path inside the repository",
        ),
        (
            f"tool @ git+{URL}@v1#subdirectory=/x",
            "invalid subdirectory: it must be a relative path inside the repository",
        ),
        (
            f"tool @ git+{URL}@v1#subdirectory=a%0ab",
            "invalid subdirectory: it must be a relative path inside the repository",
        ),
        (f"tool @ git+{URL}@v1#egg=other", "egg=other does not match the name tool"),
        (f"tool @ git+{URL}@v1#sha256=1", "only egg= and subdirectory= are supported"),
        (f"tool @ git+{URL}@v1#egg=tool&egg=tool", "each once"),
    ],
)
def test_what_is_refused(text: str, why: str) -> None:
    with pytest.raises(ValueError, match=why):
        repository_required(text)


@given(
    st.lists(
        st.sampled_from(
            ("tool", "@", " ", "git+", "https://", "h.invalid", "/", "#", "egg=", "&", ";", "[", "]")
        )
        | st.text(max_size=3),
        max_size=14,
    )
)
def test_any_text_is_read_or_refused(parts: list[str]) -> None:
    try:
        found = repository_required("".join(parts))
    except ValueError:
        return
    assert found is None or found[1].url.lower().startswith("https://")
