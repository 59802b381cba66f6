"""Decides whether shared libraries of packages can be loaded in an image: its torch, CUDA and base.

Pure. A fault is reported only if it is certain: a symbol counts as missing if none of the libraries that
could define it does, in whatever order they are loaded. If one of several variants of a library can be loaded
(`x_cuda118.so`, `x_cuda126.so`), faults of the other variants are ignored. These are not checked:

- symbols other than those of torch and CUDA, and weak symbols
- libraries that are only opened by path, except for another CUDA; those for other accelerators or Pythons
- libraries that use torch, in packages that work without torch
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

ABI_TAG = "B5cxx11"  # of functions that return a std::string of C++11

# The prefixes of CUDA's C functions, longer ones first; the name of the library if it is not lib + prefix.
# fmt: off
_PREFIXES = (
    "cublasLt", "cublasXt", "cublas", "cuda", "cudnn", "cufft", "cuFile", "cupti", "curand", "cusolver",
    "cusparseLt", "cusparse", "nccl", "nvJitLink", "__nvJitLink", "nvrtc",
)
# fmt: on
_NAMES = {"cublasXt": "cublas", "cuda": "cudart", "cuFile": "cufile", "__nvJitLink": "nvJitLink"}
_CUDA_LIBRARIES = {prefix: f"lib{_NAMES.get(prefix, prefix)}" for prefix in _PREFIXES}
_CUDA = re.compile(f"({'|'.join(_PREFIXES)})(?=[A-Z_])")

# A name in one of torch's namespaces: also a virtual table, type information, a guard variable.
_NESTED = re.compile(r"_Z(?P<special>T[VTIS]|GV|GR|T[HW])?N[rVK]*[RO]?")
_OF_TORCH = re.compile(rf"{_NESTED.pattern}(?:3c10|2at|5torch|6caffe2)(?=[\dA-Z])|THP[A-Z]|aoti_torch_")
_TORCH_LIBRARY = re.compile(r"lib(torch|c10|caffe2)(_[a-z_]+)?\.so")
_LENGTH = re.compile(r"[1-9]\d{0,4}")
_SPECIALS = {"TV": "vtable for ", "TT": "VTT for ", "TI": "typeinfo for ", "TS": "typeinfo name for "}

_STEM = re.compile(r"([^/]+?)\.so(\.[\d.]+)?")
# A library that needs one of these is for other accelerators than NVIDIA GPUs, or (musl) for another C
# library.
_FOREIGN = re.compile(
    r"lib(torch|c10)_(hip|xpu|npu|musa|mlu)\.so|lib(amdhip64|hsa-runtime64|sycl|rccl|ascendcl|musart|cnrt)\b"
    r"|lib(hip|roc)[a-z]+\.so|libc\.musl-"
)
_C_LIBRARY = re.compile(
    r"(libc|libm|libdl|librt|libpthread|libutil|libgcc_s|libstdc\+\+|libgomp|ld-linux-x86-64)\.so\.\d+"
)
VARIANT = re.compile(r"\d+(\.\d+)*")  # in the names of variants of a library
_MODULE = re.compile(r"(?P<name>\w+)(\.[^/]*)?\.so")
_OTHER_PYTHON = re.compile(r"\.(cpython|cp|pypy|graalpy)-?(?P<version>\d+)[^/]*\.so")
_TORCH = "torch"
_TORCH_PACKAGES = frozenset({_TORCH, "torchvision", "torchaudio"})
_MOST = 20  # symbols that are compared with those of the image

_OTHER = ": it has this function with other parameters, so this was built for another torch"
_NEW_ABI = ": built with the C++11 ABI, torch has the pre-C++11 ABI"
_OLD_ABI = ": built with the pre-C++11 ABI, torch has the C++11 ABI"
_RANK = ("", _OTHER, _NEW_ABI, _OLD_ABI)  # of the reasons found, the last in this order is shown

Lack = tuple[str, str]  # a library that is missing, or lacks a symbol or a version; and a sentence


def of_torch(symbol: str) -> bool:
    """Whether torch's libraries have the symbol, by its C++ namespace or prefix."""
    return _OF_TORCH.match(symbol) is not None


def cuda_library(symbol: str) -> str:
    """The library of CUDA, without version, that has the symbol by its prefix; "" if none."""
    found = _CUDA.match(symbol)
    return _CUDA_LIBRARIES[found[1]] if found else ""


def is_torch_library(name: str) -> bool:
    """Whether *name* is that of a library of torch, of any release."""
    return _TORCH_LIBRARY.fullmatch(name) is not None


def is_cuda_library(name: str) -> bool:
    """Whether *name* is that of a library of CUDA that torch brings, of any version."""
    return stem_of(name) in _CUDA_LIBRARIES.values()


def is_foreign(name: str) -> bool:
    """Whether only code for other accelerators or another C library needs the library *name*."""
    return _FOREIGN.match(name) is not None


def is_c_library(name: str) -> bool:
    """Whether *name* is a library of the C or C++ compiler: only its versions are checked."""
    return _C_LIBRARY.fullmatch(name) is not None


def stem_of(name: str) -> str:
    """The name of a library without its version: libcudart.so.12 is libcudart."""
    found = _STEM.fullmatch(name)
    return found[1] if found else name


def qualified(symbol: str) -> str:
    """A mangled name without parameters and ABI tags; "" if it has no qualified name.

    Symbols that begin with the result, apart from ABI tags, are the same function with other parameters.
    """
    names, end = _components(symbol)
    ends = symbol.startswith(("E", "C", "D"), end)  # the name, or with a constructor or destructor
    return symbol[: end + 1].replace(ABI_TAG, "") if len(names) > 1 and ends else ""


def readable(symbol: str) -> str:
    """`c10::detail::torchCheckFail` for a mangled name, without parameters; other symbols are unchanged."""
    names, end = _components(symbol)
    special = _NESTED.match(symbol)
    if not names or not special:
        return symbol
    last = {"C": (names[-1],), "D": (f"~{names[-1]}",)}.get(symbol[end : end + 1], ())
    return _SPECIALS.get(special["special"] or "", "") + "::".join((*names, *last))


def _components(symbol: str) -> tuple[list[str], int]:
    """The names that make up a qualified name, and where it ends."""
    start = _NESTED.match(symbol)
    if not start:
        return [], 0
    names, at = [], start.end()
    while length := _LENGTH.match(symbol, at):
        begin = length.end()
        at = begin + int(length[0])
        names.append(symbol[begin:at])
        at += len(ABI_TAG) if symbol.startswith(ABI_TAG, at) else 0
    return names, min(at, len(symbol))


class Unreadable(Exception):
    """A library of the image cannot be read now; the text names what is missing."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Library:
    """A shared library in the wheel of a package, with what the check uses of it."""

    package: str
    path: str  # in the wheel
    soname: str  # "" if it has none
    needed: tuple[str, ...]
    versions: Mapping[str, frozenset[str]]  # library of the C or C++ compiler -> versions that it must have
    undefined: frozenset[str]  # for which `is_claimed` is true; without weak ones
    defined: frozenset[str]  # for which `is_claimed` is true

    @property
    def name(self) -> str:
        """The name of the file."""
        return self.path.rpartition("/")[2]

    @property
    def names(self) -> frozenset[str]:
        """The names by which other libraries may need this one: its file name and its SONAME."""
        return frozenset({self.name, self.soname} - {""})

    @property
    def is_module(self) -> bool:
        """Whether it is an extension module of Python, which only Python can load."""
        found = _MODULE.fullmatch(self.name)
        return found is not None and f"PyInit_{found['name']}" in self.defined

    @property
    def uses_torch(self) -> bool:
        """Whether it needs a library or a symbol of torch."""
        return any(map(is_torch_library, self.needed)) or any(map(of_torch, self.undefined))

    def is_for(self, python: str) -> bool:
        """Whether an image with this version of Python may load it, and it is for no other accelerator."""
        other = _OTHER_PYTHON.search(self.name)
        of_python = not other or other["version"] == python.replace(".", "")
        return of_python and not any(map(is_foreign, self.needed))


def is_claimed(symbol: str) -> bool:
    """Whether *symbol* belongs to torch or CUDA, or identifies an extension module, by its name."""
    return of_torch(symbol) or bool(cuda_library(symbol)) or symbol.startswith("PyInit_")


@dataclass(frozen=True, kw_only=True, slots=True)
class Parent:
    """The parent image; a function raises Unreadable if a file that it needs is not in the cache."""

    releases: Mapping[str, str]  # fixed package -> its name and version
    places: Callable[[], Mapping[str, tuple[str, int]]]  # library of a fixed package -> package, size
    library: Callable[[str], Library]  # one of these libraries
    versions: Callable[[], Mapping[str, frozenset[str]]]  # library of the C or C++ compiler -> its versions
    of_cuda: Callable[[], Collection[str]]  # its libraries of CUDA
    glibc: tuple[int, int]  # that of the operating system


@dataclass(frozen=True, kw_only=True, slots=True)
class Fault:
    """A library that cannot be loaded in the image."""

    package: str
    path: str
    library: str  # the library that is missing, or lacks a symbol or a version
    sentence: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Fit:
    """The faults, by package and path, and what could not be checked."""

    faults: tuple[Fault, ...] = ()
    doubts: tuple[
        Fault, ...
    ] = ()  # of libraries that are opened by path: their packages may work without them
    unread: tuple[str, ...] = ()


def fit(libraries: Sequence[Library], parent: Parent, python: str) -> Fit:
    """Check the *libraries* of all packages that are added to an image.

    :param python: the version of the image's Python, "3.11".
    """
    check = _Check(libraries, parent)
    usable = [one for one in libraries if one.is_for(python)]
    loaded = {id(one): one for one in _imported(usable)}
    faults = _by_variant(loaded.values(), check.lacks)
    doubts = _by_variant([one for one in usable if id(one) not in loaded], check.other_cuda)
    return Fit(faults=faults, doubts=doubts, unread=tuple(sorted(check.unread)))


def _by_variant(some: Iterable[Library], lacks: Callable[[Library], Iterable[Lack]]) -> tuple[Fault, ...]:
    """What *some* libraries lack, by package and path, unless a variant of the same library lacks nothing."""
    found: dict[tuple[str, str], list[list[Fault]]] = defaultdict(list)
    for library in some:
        faults = [
            Fault(package=library.package, path=library.path, library=lacking, sentence=sentence)
            for lacking, sentence in lacks(library)
        ]
        found[library.package, VARIANT.sub("#", library.path)].append(faults)
    chosen = (fault for variants in found.values() if all(variants) for each in variants for fault in each)
    return tuple(sorted(chosen, key=lambda fault: (fault.package, fault.path)))


def _imported(libraries: Sequence[Library]) -> Iterator[Library]:
    """Extension modules, libraries that use torch (`torch.ops` loads them), and the libraries that both need.

    Packages open other libraries by path, and often continue without them: bitsandbytes has one for each
    version of CUDA. The same holds for libraries that use torch in a package whose modules do not use torch:
    open3d has operators for one release of torch.
    """
    modules = [library for library in libraries if library.is_module]
    loaded = with_needed(modules, libraries)
    of_torch = {library.package for library in loaded if library.uses_torch}
    without = {library.package for library in modules} - of_torch
    opened = [one for one in libraries if one.uses_torch and one.package not in without]
    return iter({id(one): one for one in (*loaded, *with_needed(opened, libraries))}.values())


def with_needed(waiting: Iterable[Library], libraries: Sequence[Library]) -> list[Library]:
    """The libraries *waiting*, and those of *libraries* that they need."""
    by_name = {name: library for library in libraries for name in library.names}
    found = {id(library): library for library in waiting}
    rest = list(found.values())
    while rest:
        needed = (by_name[name] for name in rest.pop().needed if name in by_name)
        new = {id(library): library for library in needed if id(library) not in found}
        found |= new
        rest += new.values()
    return list(found.values())


class _Check:
    """Looks for the libraries and symbols that libraries need; `unread`: what is not in the cache."""

    def __init__(self, libraries: Sequence[Library], parent: Parent) -> None:
        self._own = {name for library in libraries for name in library.names}
        self._defined = frozenset().union(*(library.defined for library in libraries))
        self._parent = parent
        self.unread: set[str] = set()

    def lacks(self, library: Library) -> list[Lack]:
        """Why *library* cannot be loaded."""
        groups: dict[str, set[str]] = defaultdict(set)  # by the library that must define them, or _TORCH
        for symbol in library.undefined - self._defined:
            if place := _place(symbol, library):
                groups[place].add(symbol)
        steps: list[Callable[[], Iterable[Lack]]] = [
            partial(self._libraries, [name for name in library.needed if name not in self._own]),
            partial(self._versions, library.versions),
            *(partial(self._symbols, place, groups[place], library.needed) for place in sorted(groups)),
        ]
        return self._all(steps)

    def other_cuda(self, library: Library) -> list[Lack]:
        """The libraries of another CUDA than the image's that *library* needs."""
        needed = [name for name in library.needed if name not in self._own]
        return self._all([lambda: ((name, why) for name in needed if (why := self._other_cuda(name)))])

    def _all(self, steps: Iterable[Callable[[], Iterable[Lack]]]) -> list[Lack]:
        found: list[Lack] = []
        for step in steps:
            try:
                found += step()
            except Unreadable as error:
                self.unread.add(str(error))
        return found

    def _libraries(self, names: Iterable[str]) -> Iterator[Lack]:
        """The libraries of torch or CUDA that the image has in another version, or not at all."""
        for name in names:
            if sentence := self._other_cuda(name):
                yield name, sentence
            elif is_torch_library(name) and name not in self._parent.places():
                torch = self._parent.releases.get(_TORCH, _TORCH)
                yield name, f"needs {name}, which {torch} does not have: built for another torch"

    def _other_cuda(self, name: str) -> str:
        """Why the image lacks *name*: it has that library of CUDA in another version; "" if not."""
        if not is_cuda_library(name) or name in (there := self._parent.of_cuda()):
            return ""
        others = sorted(other for other in there if stem_of(other) == stem_of(name))
        of_cuda = re.match(r"lib(?:cudart|cublas(?:Lt)?)\.so\.(\d+)", name)
        built = f": built for CUDA {of_cuda[1]}" if of_cuda else ""
        return f"needs {name}, the image has {', '.join(others)}{built}" if others else ""

    def _versions(self, required: Mapping[str, Collection[str]]) -> Iterator[Lack]:
        """The symbol versions (GLIBCXX_3.4.32) that the base lacks; those of a newer glibc need no base."""
        glibc, lacks = self._parent.glibc, "which the image does not have"
        wanted = [(one, version) for one in sorted(required.keys() - self._own) for version in required[one]]
        newer = {one for one in wanted if one[1].startswith("GLIBC_") and _numbers(one[1]) > glibc}
        for name, version in sorted(newer):
            yield name, f"needs {version} of {name}, {lacks}; its newest is GLIBC_{glibc[0]}.{glibc[1]}"
        for name, version in sorted({*wanted} - newer):
            there = self._parent.versions().get(name, frozenset())
            if there and version not in there:
                alike = [one for one in there if one.startswith(version.rstrip("0123456789."))]
                newest = f"; its newest is {max(alike, key=_numbers)}" if alike else ""
                yield name, f"needs {version} of {name}, {lacks}{newest}"

    def _symbols(self, place: str, symbols: Collection[str], needed: Sequence[str]) -> Iterator[Lack]:
        """The *symbols* that no library defines which could; nothing if *place* is not in the image."""
        places, missing, of_cuda = self._parent.places(), {*symbols}, place != _TORCH
        if of_cuda and place not in places:
            return
        owner = places[place][0] if of_cuda else _TORCH
        packages = {owner} if of_cuda else _TORCH_PACKAGES
        names = [name for name, (one, _) in places.items() if one in packages or (of_cuda and name in needed)]
        # The library that should define them, then those that are needed, then others; smaller ones first.
        names.sort(key=lambda name: (name != place, name not in needed, places[name][1]))
        searched: list[Library] = []
        for name in names:
            searched.append(self._parent.library(name))
            missing -= searched[-1].defined
            if not missing:
                return
        shown, why = _shown(sorted(missing), [symbol for one in searched for symbol in one.defined])
        of = f" of {place}" if of_cuda else ""
        more = f" and {len(missing) - 1} more" if len(missing) > 1 else ""
        release = self._parent.releases.get(owner, owner)
        lacking = place if of_cuda else "libtorch"
        yield lacking, f"needs {shown}{of}{more}, which {release} does not have{why}"


def _place(symbol: str, library: Library) -> str:
    """Where the undefined *symbol* must be defined: in torch, or in a library of CUDA; "": unknown."""
    if of_torch(symbol):
        return _TORCH
    stem = cuda_library(symbol)
    return next((name for name in library.needed if stem and stem_of(name) == stem), "")


def _shown(symbols: Sequence[str], there: Iterable[str]) -> tuple[str, str]:
    """One of the missing *symbols* for a message, and why the image, which has those *there*, may lack it."""
    present = [(symbol.replace(ABI_TAG, ""), symbol) for symbol in there]
    reasons = [(symbol, _why(symbol, present)) for symbol in symbols[:_MOST]]
    first, why = max(reasons, key=lambda one: _RANK.index(one[1]))
    name, short = readable(first), first[:160] + "…" * (len(first) > 160)
    return first if name == first else f"{name} ({short})", why


def _why(symbol: str, present: Iterable[tuple[str, str]]) -> str:
    """What the symbols of the same function suggest about the build; "" if there are none.

    :param present: the symbols that the searched libraries define, each without and with its ABI tags.
    """
    prefix, plain = qualified(symbol), symbol.replace(ABI_TAG, "")
    alike = [one for one in present if prefix and one[0].startswith(prefix)]
    new = [one for one in alike if "cxx11" in one[1]]
    if "cxx11" in symbol:
        return _NEW_ABI if len(new) < len(alike) else _OTHER if alike else ""
    # Ss is the std::string before C++11.
    if new and ("Ss" in symbol or any(other == plain for other, _ in new)):
        return _OLD_ABI
    return _OTHER if alike else ""


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in re.findall(r"\d{1,9}", version))
